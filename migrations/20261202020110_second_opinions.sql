-- A second opinion counts only if it began after the tasks had begun to fail: what worked before says nothing about a
-- release whose tasks fail everywhere from one moment on. Failures that the handler itself calls permanent hold a worker
-- back only if another worker completes such tasks: five bad inputs in a row say nothing about a healthy worker.

alter table public.task_attempts add column permanent boolean;
comment on column public.task_attempts.permanent is 'The handler said that another attempt would fail as well';

comment on column public.workers.held_back is 'Why it claims no more: {since, first, failures, types, codes}';

-- When another worker completed a task of the types that this one failed, which it had begun since then.
create or replace function public.internal_done_elsewhere(p_worker public.workers) RETURNS timestamp with time zone
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select max(a.ended_at)
      from public.workers o
     cross join lateral (
           select n.task_id, n.outcome, n.started_at, n.ended_at from public.task_attempts n
            where n.worker_id = o.id order by n.started_at desc limit 20) a
      join public.tasks t on t.id = a.task_id
     where o.fleet = p_worker.fleet and o.status <> 'terminated' and o.pool = p_worker.pool and o.id <> p_worker.id
       and a.outcome = 'complete'
       and a.started_at >= coalesce(p_worker.held_back->>'first', p_worker.held_back->>'since')::timestamptz
       and p_worker.held_back->'types' ? t.task_type
$$;

create or replace function public.internal_hold_back(p_worker public.workers, p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_limit int := greatest(1, coalesce((p_worker.metadata->>'max_failures')::int, 5));
    v_failures int;
    v_types text[];
    v_codes text[];
    v_first timestamptz;
    v_permanent boolean;
    v_held jsonb;
    v_task uuid;
    c_look constant int := 200;  -- attempts of this worker that are looked at: two claims of the largest size
    c_named constant int := 5;  -- types and codes that are remembered
begin
    if p_worker.held_back is not null or p_worker.own_program or p_worker.status not in ('active', 'idle') then
        return;
    end if;
    with newest as (
        select a.task_id, a.ended_at, a.outcome, a.failure_code, a.permanent from public.task_attempts a
         where a.worker_id = p_worker.id order by a.started_at desc limit c_look
    ), failed as (
        select n.task_id, n.failure_code, n.ended_at, n.permanent from newest n
         where n.outcome = 'failed'
           and n.ended_at > coalesce((select max(d.ended_at) from newest d where d.outcome = 'complete'), '-infinity')
    )
    select count(distinct f.task_id), (array_agg(distinct t.task_type))[1:c_named],
           (array_agg(distinct f.failure_code))[1:c_named],
           min(f.ended_at), bool_and(coalesce(f.permanent, false))
      into v_failures, v_types, v_codes, v_first, v_permanent
      from failed f left join public.tasks t on t.id = f.task_id;
    if v_failures < v_limit then
        return;
    end if;
    v_held := jsonb_build_object('since', p_now, 'first', v_first, 'failures', v_failures,
                                 'types', to_jsonb(array_remove(v_types, null)),
                                 'codes', to_jsonb(array_remove(v_codes, null)));
    if v_permanent then  -- the handler blames these tasks, and nothing contradicts it unless others complete such tasks
        p_worker.held_back := v_held;
        if public.internal_done_elsewhere(p_worker) is null then
            return;
        end if;
    end if;
    update public.workers w
       set held_back = v_held,
           waiting_on = 'orchestrator',
           waiting_for = format('a second opinion: it claims no more after %s different tasks failed in a row (%s)',
                                v_failures, array_to_string(v_codes, ', '))
     where w.id = p_worker.id;
    for v_task in
        select t.id from public.tasks t where t.worker_id = p_worker.id and t.status = 'In Progress'
         order by t.id for update skip locked loop
        perform public.internal_give_up(v_task, 'released', jsonb_build_object('code', 'RELEASED', 'message',
            format('Worker %s claims no more: its last %s tasks failed', p_worker.id, v_failures)), false, false, p_now);
    end loop;
    perform pg_notify('orchestrator_fleet', p_worker.id);
end
$$;

create or replace function public.worker_fail(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_failure jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_unable boolean := coalesce(p_failure->>'code' = 'NO_HANDLER', false);
    v_worker public.workers := public.internal_caller(p_worker_id, true);  -- its row is locked before its task's
    v_type text;
    v_release text;
    v_outcome text;
    v_here boolean;
    c_wait_s constant int := 60;  -- doubling up to ten times as much; over when the first of that release is promoted
begin
    perform public.internal_check_keys(coalesce(p_failure, '{}'),
        array['code', 'message', 'point', 'exit_class', 'retryable', 'detail'], 'p_failure');
    perform public.internal_check_size(p_failure, 65536, 'p_failure');
    v_outcome := public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt,
        array['failed', 'cancelled'] || case when v_unable then array['released'] end);
    if v_outcome = 'held' and v_unable then
        select t.task_type, public.internal_succeeding(v_worker, t.task_type, v_now) into v_type, v_release
          from public.tasks t where t.id = p_task_id;
    end if;
    if v_outcome = 'held' and v_release is not null then
        v_outcome := public.internal_give_up(p_task_id, 'released', p_failure || jsonb_build_object(
            'code', 'EARLIER_RELEASE', 'message', format('Worker %s is of an earlier release, %s, which has no handler for %s; %s has one',
                                                         p_worker_id, v_worker.release, v_type, v_release)), false, false, v_now);
        v_here := public.internal_is_here(v_worker.fleet, v_worker.pool, v_release);
        if not v_here then
            update public.tasks t
               set run_after = v_now + c_wait_s * least(2 ^ least(t.uncounted - 1, 4), 10) * interval '1 second'
             where t.id = p_task_id and t.status = 'Queued';
        end if;
        update public.workers w
           set metadata = w.metadata || jsonb_build_object('lacks', v_type),
               drain_requested_at = case when v_here then coalesce(w.drain_requested_at, v_now)
                                         else w.drain_requested_at end
         where w.id = p_worker_id;
        perform pg_notify('orchestrator_fleet', p_worker_id);
    elsif v_outcome = 'held' then
        v_outcome := public.internal_give_up(p_task_id, 'failed', coalesce(p_failure, '{}'), true, true, v_now);
        if p_failure->'retryable' = 'false' then
            update public.task_attempts a set permanent = true where a.task_id = p_task_id and a.attempt = p_attempt;
        end if;
        perform public.internal_hold_back(v_worker, v_now);
    end if;
    return jsonb_build_object('outcome', v_outcome);
end
$$;
