-- Ends an attempt that did not complete: back to the queue, Failed at the last one, Cancelled where that was asked for.
-- p_failure: {code, message, point, exit_class, retryable, detail}. The caller holds the task's lock. What is lost with a
-- worker that was meant to end (workers.exit_cause is a planned one) is given back, as the agent itself gives it back
-- (worker_release): nothing failed, so no attempt is counted against max_attempts.
create or replace function public.internal_give_up(p_task_id uuid, p_outcome text, p_failure jsonb, p_counted boolean,
                                        p_backoff boolean, p_now timestamptz)
returns text language plpgsql security definer set search_path = '' as $$
declare
    v_task public.tasks;
    v_outcome text := 'requeued';
    v_status public.tasks.status%type := 'Queued';
    v_used int;
    v_jitter numeric;
    v_run_after timestamptz;
    v_planned text;  -- why its worker is being ended, if that was meant
begin
    select * into v_task from public.tasks t where t.id = p_task_id;
    if p_outcome = 'lost' then
        select w.exit_cause into v_planned from public.workers w
         where w.id = v_task.worker_id and w.status in ('terminating', 'terminated')
           and w.exit_cause in ('idle_timeout', 'scale_down', 'manual', 'shutdown', 'max_lifetime', 'budget',
                                'superseded');
    end if;
    if v_planned is not null then
        p_outcome := 'released';
        p_counted := false;
        p_failure := jsonb_build_object(
            'code', 'RELEASED', 'message', format('Worker %s was ended: %s', v_task.worker_id, v_planned));
    end if;
    v_used := v_task.attempts - v_task.uncounted;
    if v_task.cancel_requested_at is not null then
        v_outcome := 'cancelled';
        v_status := 'Cancelled';
    elsif p_counted and (v_used >= v_task.max_attempts or p_failure->'retryable' = 'false') then
        v_outcome := 'failed';
        v_status := 'Failed';
    elsif p_backoff then  -- 30 s, doubling up to an hour; +-20 % from the id, so that a crowd does not come back at once
        v_jitter := 0.8 + 0.4 * ('x' || substr(md5(p_task_id::text || v_task.attempts), 1, 7))::bit(28)::int / 268435455.0;
        v_run_after := p_now + least(30 * 2 ^ least(v_used - 1, 20), 3600) * v_jitter * interval '1 second';
    end if;
    update public.tasks t
       set status = v_status, run_after = v_run_after, lease_expires_at = null,
           uncounted = t.uncounted + case when p_counted then 0 else 1 end,
           worker_id = case when v_outcome = 'requeued' then null else t.worker_id end,
           generation_processed_at = case when v_outcome = 'requeued' then null else p_now end,
           error_message = left(p_failure->>'message', 4000), failure_code = left(p_failure->>'code', 100),
           failed_at_point = case when p_failure->>'point' in ('Claiming', 'Processing', 'Completion')
                                  then p_failure->>'point' end
     where t.id = p_task_id;
    update public.task_attempts a
       set ended_at = p_now,
           outcome = case when v_outcome = 'cancelled' then 'cancelled' else p_outcome end,
           failure_code = left(p_failure->>'code', 100), exit_class = left(p_failure->>'exit_class', 100),
           failed_at_point = left(p_failure->>'point', 100), message = left(p_failure->>'message', 4000),
           detail = p_failure->'detail',
           log_last = (select (w.log_bytes #>> array[a.nonce, 'handler'])::bigint
                         from public.workers w where w.id = a.worker_id)
     where a.task_id = p_task_id and a.attempt = v_task.attempts and a.ended_at is null;
    return v_outcome;
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
