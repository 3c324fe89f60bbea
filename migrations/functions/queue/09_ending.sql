-- How an attempt that did not complete ends, and what follows for other tasks when a task ends.

-- The tasks have ended with this status: messages about them are written, and tasks that need them advance or fail.
create or replace function orchestrator.ended(p_ids uuid[], p_status text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    perform public.internal_webhooks_write(p_ids, public.internal_now());
    if p_status = 'Complete' then
        perform orchestrator.meet(p_ids);
    else
        perform orchestrator.fail_dependants(p_ids, 'DEPENDENCY_FAILED');
    end if;
end
$$;

-- Ends the attempt of a running task that the caller has locked: the task is queued again, Failed after its last
-- attempt, or Cancelled on request. p_failure: {code, message, point, exit_class, retryable, detail}. Returns requeued,
-- failed or cancelled. p_counted: against max_attempts; p_pause_s: before the task is ready again; p_backoff: such a
-- pause by the number of failures.
create or replace function orchestrator.give_up(
    p_task orchestrator.live, p_outcome text, p_failure jsonb, p_counted boolean, p_backoff boolean, p_now timestamptz,
    p_pause_s numeric default null
) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_used int := p_task.attempt - p_task.uncounted;
    v_outcome text := case
        when p_task.cancel_requested_at is not null then 'cancelled'
        when p_counted and (v_used >= p_task.max_attempts or p_failure->'retryable' = 'false') then 'failed'
        else 'requeued' end;
    v_end orchestrator.publications;
begin
    insert into orchestrator.attempts (
        task_id, attempt, claim_no, started_at, ended_at, worker_id, nonce, outcome, failure_code, exit_class,
        failed_at_point, message, detail, log_first, log_last, uncounted, permanent, run_after)
    values (
        p_task.task_id, p_task.attempt, coalesce(p_task.claim_no, 0), coalesce(p_task.claimed_at, p_now), p_now,
        coalesce(p_task.worker_id, ''), coalesce(p_task.nonce, ''),
        case when v_outcome = 'cancelled' then 'cancelled' else p_outcome end, orchestrator.code_of(p_failure),
        left(p_failure->>'exit_class', 100), left(p_failure->>'point', 100), left(p_failure->>'message', 4000),
        p_failure->'detail', p_task.log_first,
        (select (w.log_bytes #>> array[p_task.nonce, 'handler'])::bigint from public.workers w
          where w.id = p_task.worker_id),
        p_task.uncounted + (not p_counted)::int, case when p_failure->'retryable' = 'false' then true end,
        p_task.run_after)
    on conflict do nothing;
    v_end.task_id := p_task.task_id;
    v_end.no := 2 * p_task.attempt + 1;
    v_end.status := case v_outcome when 'requeued' then 'Queued' else initcap(v_outcome) end;
    v_end.shown := case when p_task.shown > 0 then 'In Progress' else 'Queued' end;
    v_end.at := p_now;
    v_end.started_at := p_task.claimed_at;
    v_end.worker_id := p_task.worker_id;
    v_end.attempts := p_task.attempt;
    v_end.error_message := public.internal_message(p_failure->>'message');
    v_end.failure_code := orchestrator.code_of(p_failure);
    v_end.failed_at_point := case when p_failure->>'point' in ('Claiming', 'Processing', 'Completion')
                                  then p_failure->>'point' end;
    v_end.times := 0;
    if v_outcome = 'requeued' then
        v_end.run_after := p_now + interval '1 second' * coalesce(
            p_pause_s, case when p_backoff then orchestrator.backoff_s(p_task, p_outcome, v_used) end);
        perform orchestrator.requeue(p_task, v_end.run_after, not p_counted);
    else
        perform orchestrator.leave(array[p_task.task_id]);
    end if;
    perform pg_notify('orchestrator_fleet', l.worker_id)
       from orchestrator.launches l where l.worker_id = p_task.worker_id and l.wanted <> 'run';
    perform orchestrator.publish(array[v_end], p_task.pool, exists (
        select from orchestrator.slow_pools s where s.pool = p_task.pool and s.until > p_now));
    if v_outcome <> 'requeued' then
        perform orchestrator.ended(array[p_task.task_id], v_end.status);
    end if;
    return v_outcome;
end
$$;

-- A failure code is shown on terminals and compared with known codes. A pod may send any text, such as an escape
-- sequence. An agent that is refused would report the same failure forever.
create or replace function orchestrator.code_of(p_failure jsonb) returns text
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select case when code_of.p_failure->>'code' ~ '^[A-Z0-9_]{1,64}$' then code_of.p_failure->>'code'
                when code_of.p_failure->>'code' is not null then 'INVALID_CODE' end
$$;

-- Seconds before the next attempt: 30, doubling up to an hour after each failure; +-20 % from the id, so that many
-- tasks do not return at once. A lost attempt waits 30 s.
create or replace function orchestrator.backoff_s(p_task orchestrator.live, p_outcome text, p_used int) returns numeric
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select (0.8 + 0.4 * ('x' || substr(md5(backoff_s.p_task.task_id::text || backoff_s.p_task.attempt), 1, 7))
                            ::bit(28)::int / 268435455.0)
           * case when backoff_s.p_outcome = 'lost' then 30
                  else least(30 * 2 ^ least(backoff_s.p_used - 1, 20), 3600) end::numeric
$$;

-- Puts a running task, which the caller has locked, back into the queue: to its head, or to wait for p_run_after.
create or replace function orchestrator.requeue(
    p_task orchestrator.live, p_run_after timestamptz, p_is_uncounted boolean
)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    update orchestrator.live q  -- what was changed while it ran counts from now on
       set pool = s.pool, task_type = s.task_type, type_limited = s.type_limited, concurrency_key = s.concurrency_key,
           max_attempts = s.max_attempts, timeout_s = s.timeout_s,
           state = 'waits_for_tasks', uncounted = q.uncounted + p_is_uncounted::int, run_after = p_run_after,
           worker_id = null, nonce = null, claim_no = null, claimed_at = null, progress_at = null,
           lease_expires_at = null, log_first = null
      from orchestrator.specified s where q.task_id = p_task.task_id and s.task_id = q.task_id;
    insert into orchestrator.rechecks (kind, name) select 'needs', p_task.task_id::text where p_task.has_needs;
    perform orchestrator.advance(array[p_task.task_id], '', p_run_after is null);
    perform orchestrator.refill('key', case when p_task.concurrency_key is not null
                                            then array[p_task.concurrency_key] end);
    perform orchestrator.refill('type', case when p_task.type_limited then array[p_task.task_type] end);
end
$$;

-- Waits a moment for rows that another call has locked: a claim also locks, until it commits, a row that it wanted and
-- that another claim has taken. A user's open transaction is not waited for.
create or replace function orchestrator.wait_for_rows(p_ids uuid[]) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '50ms'
set enable_seqscan = off as $$
#variable_conflict use_variable
begin
    perform from orchestrator.live q where q.task_id = any (p_ids) order by q.task_id for update;
    return true;
exception when lock_not_available or deadlock_detected then
    return false;
end
$$;
