-- Ends an attempt that did not complete: back to the queue, Failed at the last one, Cancelled where that was asked for.
-- p_failure: {code, message, point, exit_class, retryable, detail}. The caller holds the task's lock. What is lost with a
-- worker that was meant to end (workers.exit_cause is a planned one) is given back, as the agent itself gives it back
-- (worker_release): nothing failed, so no attempt is counted against max_attempts.
-- A lost attempt was likely the worker's fault, and the task is claimable again at once. From the second one on it may be the
-- task's: it waits for half a minute each time, and does not take one pod after the other without a pause.
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
    v_backoff boolean := p_backoff;
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
    if p_outcome = 'lost' and v_used > 1 then
        v_backoff := exists (select from public.task_attempts a where a.task_id = p_task_id
                                and a.attempt < v_task.attempts and a.outcome = 'lost');
    end if;
    if v_task.cancel_requested_at is not null then
        v_outcome := 'cancelled';
        v_status := 'Cancelled';
    elsif p_counted and (v_used >= v_task.max_attempts or p_failure->'retryable' = 'false') then
        v_outcome := 'failed';
        v_status := 'Failed';
    elsif v_backoff then
        -- 30 s, doubling up to an hour after each failure; +-20 % from the id, so that a crowd does not come back at once.
        v_jitter := 0.8 + 0.4 * ('x' || substr(md5(p_task_id::text || v_task.attempts), 1, 7))::bit(28)::int / 268435455.0;
        v_run_after := p_now + v_jitter * interval '1 second'
            * case when p_outcome = 'lost' then 30 else least(30 * 2 ^ least(v_used - 1, 20), 3600) end;
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

-- Gives up what a worker holds, or (null) what is abandoned since p_over_s. Tasks that somebody is just ending are waited
-- for where the worker is named, and left for the next time where it is not. Of a worker that was ended as task_stuck, what
-- has made no progress for the time that was allowed (metadata.stuck_s; all of it where an earlier orchestrator did not say)
-- failed as stuck, and not because its worker is gone.
create or replace function public.internal_rescue(p_worker_id text, p_now timestamptz, p_over_s numeric default 0,
                                                  p_fleet text default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_task record;
    v_tasks jsonb := '[]';
    v_ids uuid[];
    v_failure jsonb;
begin
    if p_worker_id is not null then
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t where t.worker_id = p_worker_id and t.status = 'In Progress'
             order by t.id for update) l;
    else
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t
             where t.status = 'In Progress'
               and public.internal_is_abandoned(t.worker_id, t.lease_expires_at, p_now - p_over_s * interval '1 second')
               and (p_fleet is null or not public.internal_is_anothers(p_fleet, t.worker_id, p_now))
             order by t.id for update skip locked) l;
    end if;
    for v_task in
        select t.id, t.worker_id, t.lease_expires_at,
               case when w.exit_cause = 'task_stuck' then
                   extract(epoch from p_now - coalesce(t.progress_at, t.generation_started_at)) end as still_s,
               coalesce((w.metadata->>'stuck_s')::numeric, 0) as stuck_s
          from public.tasks t left join public.workers w on w.id = t.worker_id
         where t.id = any (v_ids) and t.status = 'In Progress' order by t.id loop
        v_failure := case
            when v_task.still_s >= v_task.stuck_s then jsonb_build_object(
                'code', 'TASK_STUCK', 'exit_class', 'timeout',
                'message', format('No progress for %s s; worker %s was ended for that', floor(v_task.still_s),
                                  v_task.worker_id))
            when p_worker_id is not null then jsonb_build_object(
                'code', 'WORKER_LOST', 'exit_class', 'lost', 'message', format('Worker %s is gone', v_task.worker_id))
            else jsonb_build_object(
                'code', 'LEASE_EXPIRED', 'exit_class', 'lost',
                'message', format('Worker %s did not renew its lease, which ended %s', v_task.worker_id,
                                  v_task.lease_expires_at)) end;
        v_tasks := v_tasks || jsonb_build_object(
            'id', v_task.id, 'worker_id', v_task.worker_id,
            'outcome', public.internal_give_up(v_task.id, 'lost', v_failure || '{"point": "Processing"}', true, false, p_now));
    end loop;
    return v_tasks;
end
$$;

-- A heartbeat winds the clock of a ready worker's row: the next one is due at next_attempt_at, and what it holds is its own
-- until deadline_at. A spawning or terminating row has the clock of its stage.
create or replace function public.worker_heartbeat(p_worker_id text, p_nonce text, p_tasks jsonb, p_health jsonb, p_logs jsonb,
                                        p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, true);
    v_held uuid[];
    v_cancel jsonb;
    v_fenced jsonb;
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop', 'cancel', '[]'::jsonb, 'fenced', '[]'::jsonb);
    end if;
    if jsonb_typeof(coalesce(p_tasks, '[]')) <> 'array' or jsonb_array_length(coalesce(p_tasks, '[]')) > 1000 then
        perform public.internal_refuse('OR007', 'p_tasks must be a list of at most 1000 {id, attempt, progress}');
    end if;
    perform public.internal_check_size(p_tasks, 1048576, 'p_tasks');
    perform public.internal_check_size(p_health, 65536, 'p_health');
    perform public.internal_check_size(p_logs, 4096, 'p_logs');
    if p_logs is not null and p_logs <> 'null' and (
           jsonb_typeof(p_logs) <> 'object'
           or exists (select from jsonb_each(p_logs) l
                       where jsonb_typeof(l.value) <> 'number' or l.value::text !~ '^[0-9]{1,15}$')) then
        perform public.internal_refuse('OR007', 'p_logs must be {stream: bytes}', left(p_logs::text, 200));
    end if;

    update public.workers w
       set last_heartbeat = v_now, health = coalesce(p_health, w.health),
           log_bytes = case when jsonb_typeof(p_logs) = 'object'
                            then w.log_bytes || jsonb_build_object(p_nonce, p_logs) else w.log_bytes end,
           agent = case when w.agent->>'nonce' = p_nonce then w.agent
                        else coalesce(w.agent, '{}') || jsonb_build_object('nonce', p_nonce) end,
           deadline_at = case when w.status in ('active', 'idle') then v_now + w.lease_s * interval '1 second'
                              else w.deadline_at end,
           next_attempt_at = case when w.status in ('active', 'idle') then v_now + w.heartbeat_s * interval '1 second'
                                  else w.next_attempt_at end
     where w.id = p_worker_id;
    if v_worker.last_heartbeat is null then
        perform pg_notify('orchestrator_fleet', p_worker_id);
    end if;

    select array_agg(l.id) into v_held from (
        select t.id from jsonb_array_elements(coalesce(p_tasks, '[]')) n
          join public.tasks t on t.id = (n->>'id')::uuid and t.attempts = (n->>'attempt')::int
         where t.worker_id = p_worker_id and t.status = 'In Progress'
         order by t.id for update of t) l;
    if v_held is not null then
        update public.tasks t
           set lease_expires_at = v_now + v_worker.lease_s * interval '1 second',
               progress = coalesce(nullif(n->'progress', 'null'), t.progress),
               progress_at = case when coalesce(nullif(n->'progress', 'null'), t.progress) is distinct from t.progress
                                  then v_now else t.progress_at end
          from jsonb_array_elements(p_tasks) n
         where t.id = any (v_held) and t.id = (n->>'id')::uuid and t.attempts = (n->>'attempt')::int;
    end if;
    select coalesce(jsonb_agg(t.id), '[]') into v_cancel
      from public.tasks t where t.id = any (v_held) and t.cancel_requested_at is not null;
    select coalesce(jsonb_agg(n->>'id'), '[]') into v_fenced
      from jsonb_array_elements(coalesce(p_tasks, '[]')) n where (n->>'id')::uuid <> all (coalesce(v_held, '{}'));
    return jsonb_build_object('outcome', 'ok', 'wanted', public.internal_wanted(v_worker), 'cancel', v_cancel,
                              'fenced', v_fenced, 'heartbeat_s', v_worker.heartbeat_s, 'lease_s', v_worker.lease_s,
                              'led', exists (select from public.fleet_lease l
                                              where l.fleet = v_worker.fleet and l.expires_at > v_now));
end
$$;
