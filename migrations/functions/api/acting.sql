-- Actions of people and programs: each is carried out and recorded in the audit log in one transaction.

-- Carries out an action: worker.spawn, worker.terminate, pool.pause, pool.resume, pool.limit, pool.unlimit,
-- pool.policy, task.cancel, task.retry, schedule.put, schedule.pause, schedule.resume, schedule.remove, cluster.create,
-- cluster.scale, cluster.delete, cluster.drain, cluster.reconcile, cluster.bootstrap_ssh, database.moved or
-- database.copied. p_subject: the worker, pool ('*': every pool, or the whole fleet), task, schedule, cluster or fleet.
-- Returns the answer of the function that does it. An action that changes nothing is not recorded.
create or replace function public.fleet_act(
    p_fleet text, p_actor text, p_action text, p_subject text, p_args jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_pool text := nullif(p_subject, '*');
    v_answer jsonb;
begin
    if p_action = 'worker.spawn' then
        v_answer := public.fleet_spawn(p_fleet, null, p_args, p_now);
    elsif p_action = 'worker.terminate' then
        v_answer := public.fleet_request_termination(
            p_fleet, p_subject, p_args->>'reason', coalesce((p_args->>'at_once')::boolean, false), p_now);
    elsif p_action = 'pool.pause' then
        v_answer := public.fleet_pause(
            p_fleet, v_pool, coalesce(p_args->>'reason', 'no reason given'), (p_args->>'for_s')::numeric, p_now);
    elsif p_action = 'pool.resume' then
        v_answer := public.fleet_pause(p_fleet, v_pool, null, null, p_now);
    elsif p_action = 'pool.limit' then
        if p_args->>'most' is null then
            perform public.internal_refuse('OR007', 'a limit names how many workers are allowed at most');
        end if;
        v_answer := public.fleet_scale_limit(
            p_fleet, v_pool, (p_args->>'most')::int, coalesce(p_args->>'reason', 'no reason given'),
            (p_args->>'for_s')::numeric, p_now);
    elsif p_action = 'pool.unlimit' then
        v_answer := public.fleet_scale_limit(p_fleet, v_pool, null, null, null, p_now);
    elsif p_action = 'pool.policy' then
        v_answer := public.fleet_scaling_policy(p_fleet, v_pool, p_args->>'policy', p_now);
    elsif p_action = 'task.cancel' then
        v_answer := public.task_cancel(p_subject::uuid, p_now);
    elsif p_action = 'task.retry' then
        v_answer := public.task_retry(p_subject::uuid, p_now);
    elsif p_action = 'schedule.put' then
        v_answer := public.task_schedule(p_args || jsonb_build_object('name', p_subject), p_now);
    elsif p_action in ('schedule.pause', 'schedule.resume') then
        v_answer := public.task_schedule_pause(p_subject, p_action = 'schedule.pause', p_now);
    elsif p_action = 'schedule.remove' then
        v_answer := public.task_schedule_remove(p_subject, p_now);
    elsif p_action like 'cluster.%' then
        v_answer := public.internal_cluster_act(p_fleet, p_actor, p_action, p_subject, p_args, v_now);
    elsif p_action in ('database.moved', 'database.copied') then
        v_answer := public.internal_confirm_database(p_action = 'database.copied');
    else
        perform public.internal_refuse('OR007', format('there is no action %L', left(p_action, 100)));
    end if;
    if coalesce(v_answer->>'outcome', '') not in ('already', 'not_found', 'not_ended', 'no_members')
       and coalesce((v_answer->>'found')::boolean, true)
       and (p_action <> 'worker.spawn' or (v_answer->>'created')::boolean) then
        perform public.internal_audit(p_fleet, p_actor, p_action, p_subject,
            case when p_action <> 'worker.spawn' then nullif(p_args, '{}')
                else jsonb_build_object('pool', p_args->'pool') end, v_now);
    end if;
    return v_answer;
end
$$;
