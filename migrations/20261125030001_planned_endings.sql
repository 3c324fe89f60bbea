-- An end that was meant (workers.exit_cause is a planned one) gives the worker's tasks back: nothing failed, so no attempt
-- is counted against max_attempts, as where the agent itself gives them back (worker_release).
create or replace function public.internal_rescue(p_worker_id text, p_now timestamptz) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
    v_task record;
    v_tasks jsonb := '[]';
    v_ids uuid[];
    v_why text := case when p_worker_id is null then 'LEASE_EXPIRED' else 'WORKER_LOST' end;
    v_planned text;  -- why its worker was meant to end, if it was
begin
    if p_worker_id is not null then
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t where t.worker_id = p_worker_id and t.status = 'In Progress'
             order by t.id for update) l;
    else
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t
             where t.status = 'In Progress'
               and public.internal_is_abandoned(t.worker_id, t.lease_expires_at, p_now)
             order by t.id for update skip locked) l;
    end if;
    for v_task in select t.id, t.worker_id, t.lease_expires_at from public.tasks t
                   where t.id = any (v_ids) and t.status = 'In Progress' order by t.id loop
        select w.exit_cause into v_planned from public.workers w
         where w.id = v_task.worker_id and w.status in ('terminating', 'terminated')
           and w.exit_cause in ('idle_timeout', 'scale_down', 'manual', 'shutdown', 'max_lifetime', 'budget',
                                'superseded');
        v_tasks := v_tasks || jsonb_build_object(
            'id', v_task.id, 'worker_id', v_task.worker_id,
            'outcome', case when v_planned is not null then
                public.internal_give_up(v_task.id, 'released', jsonb_build_object(
                    'code', 'RELEASED', 'message', format('Worker %s was ended: %s', v_task.worker_id, v_planned)),
                    false, false, p_now)
            else
                public.internal_give_up(v_task.id, 'lost', jsonb_build_object(
                    'code', v_why,
                    'message', case when p_worker_id is not null then format('Worker %s is gone', v_task.worker_id)
                                    else format('Worker %s did not renew its lease, which ended %s', v_task.worker_id,
                                                v_task.lease_expires_at) end,
                    'point', 'Processing', 'exit_class', 'lost'), true, false, p_now)
            end);
    end loop;
    return v_tasks;
end
$$;

-- A pod costs money from the moment it has a machine, which may come a minute after the create call was answered.
-- p_fields holds columns, deadline_s / next_attempt_s in seconds from now, unbilled_s (so many seconds ago the pod was
-- seen without a machine), and with a new reservation the budget that it must fit into.
create or replace function public.fleet_move(
    p_fleet text, p_term bigint, p_worker_id text, p_from text[], p_to text, p_stage text, p_reason text, p_fields jsonb,
    p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_fields jsonb := coalesce(nullif(p_fields, 'null'), '{}');
    v_old public.workers;
    v_new public.workers;
begin
    perform public.internal_check_keys(v_fields, array['pod_id', 'ssh_host', 'ssh_port', 'host_key', 'nonce', 'code_sha',
        'token_jti', 'price_usd_per_hour', 'gpu_type', 'data_center', 'machine_id', 'release', 'reserved_usd',
        'reserved_usd_per_hour', 'budget', 'waiting_on', 'waiting_for', 'exit_cause', 'failure_code', 'metadata',
        'deadline_s', 'next_attempt_s', 'unbilled_s'], 'p_fields');
    if coalesce(p_reason, '') = '' then
        perform public.internal_refuse('OR007', 'a move needs a reason');
    end if;
    perform public.internal_check_term(p_fleet, p_term, 'fleet_move');
    select * into v_old from public.workers w where w.id = p_worker_id and w.fleet = p_fleet for update;
    if not found then
        perform public.internal_refuse('OR005', format('no worker %s in fleet %s', p_worker_id, p_fleet));
    elsif v_old.status <> all (p_from) then
        perform public.internal_refuse('OR002', format('%s is %s', p_worker_id, v_old.status),
            format('expected it to be %s', array_to_string(p_from, ' or ')), 'Observe again.');
    end if;
    v_new := jsonb_populate_record(
        v_old, v_fields - array['budget', 'metadata', 'deadline_s', 'next_attempt_s', 'unbilled_s']);
    v_new.status := coalesce(p_to, v_old.status);
    v_new.stage := coalesce(p_stage, case when p_to = 'terminated' then 'gone' end, v_old.stage);
    if v_new.status in ('terminating', 'terminated') and v_new.exit_cause is null then
        perform public.internal_refuse('OR007', format('%s cannot be %s without an exit_cause', p_worker_id, p_to), '',
            'put exit_cause into p_fields');
    end if;
    perform public.internal_check_budget(p_fleet, p_worker_id, v_new.reserved_usd, v_new.reserved_usd_per_hour,
                                         v_fields->'budget', v_now);
    perform public.internal_because('orchestrator', p_term, p_reason);
    update public.workers w
       set status = v_new.status, stage = v_new.stage, state_reason = p_reason, pod_id = v_new.pod_id,
           billing_since = case when v_old.pod_id is null and v_new.pod_id is not null then v_now
                                when v_old.status = 'spawning' then greatest(v_old.billing_since,
                                    v_now - (v_fields->>'unbilled_s')::numeric * interval '1 second')
                                else v_old.billing_since end,
           ssh_host = v_new.ssh_host, ssh_port = v_new.ssh_port, host_key = v_new.host_key, nonce = v_new.nonce,
           code_sha = v_new.code_sha, token_jti = v_new.token_jti, price_usd_per_hour = v_new.price_usd_per_hour,
           gpu_type = v_new.gpu_type, data_center = v_new.data_center, machine_id = v_new.machine_id,
           release = v_new.release, reserved_usd = v_new.reserved_usd,
           reserved_usd_per_hour = v_new.reserved_usd_per_hour,
           waiting_on = v_new.waiting_on, waiting_for = v_new.waiting_for, exit_cause = v_new.exit_cause,
           failure_code = v_new.failure_code,
           metadata = w.metadata || coalesce(nullif(v_fields->'metadata', 'null'), '{}'),
           deadline_at = case when v_fields->>'deadline_s' is null then w.deadline_at
                              else v_now + (v_fields->>'deadline_s')::numeric * interval '1 second' end,
           next_attempt_at = case when v_fields->>'next_attempt_s' is null then w.next_attempt_at
                                  else v_now + (v_fields->>'next_attempt_s')::numeric * interval '1 second' end
     where w.id = p_worker_id returning * into v_new;
    if v_new.status = 'terminated' and v_old.status <> 'terminated' then
        perform public.internal_rescue(p_worker_id, v_now);
        update public.worker_attempts a set ended_at = v_now, outcome = 'lost'
         where a.worker_id = p_worker_id and a.ended_at is null;
    end if;
    return jsonb_build_object('worker', public.internal_worker_json(v_new));
end
$$;

comment on column public.workers.billing_since is 'When its pod got a machine, as far as it was seen: costs count from here';
