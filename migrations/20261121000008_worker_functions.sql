-- worker_*: for a pod, with its own token. The contract with agents is worker/protocol.py; old pods outlive deploys, so
-- names and meanings here are only ever added to.

-- The caller's row. A pod must be who it says it is (sub) and hold the one token that is current (jti).
create function public.internal_caller(p_worker_id text, p_lock boolean) returns public.workers
language plpgsql security definer set search_path = '' as $$
declare
    v_claims jsonb;
    v_worker public.workers;
begin
    if public.internal_is_pod() then
        v_claims := nullif(current_setting('request.jwt.claims', true), '')::jsonb;
        if v_claims->>'sub' is null or v_claims->>'sub' is distinct from p_worker_id then
            perform public.internal_refuse('OR006', 'the token is not of this worker');
        end if;
    end if;
    if p_lock then
        select * into v_worker from public.workers w where w.id = p_worker_id for update;
    else
        select * into v_worker from public.workers w where w.id = p_worker_id;
    end if;
    if v_worker.id is null or v_worker.status = 'terminated' then
        perform public.internal_refuse('OR005', 'no such worker, or it has terminated', '', 'stop');
    end if;
    if v_claims is not null and (v_worker.token_jti is null or v_claims->>'jti' is distinct from v_worker.token_jti) then
        perform public.internal_refuse('OR006', 'the token was revoked');
    end if;
    return v_worker;
end
$$;

create function public.internal_wanted(p_worker public.workers) returns text
language sql immutable set search_path = '' as $$
    select case when p_worker.stop_requested_at is not null then 'stop'
                when p_worker.status = 'terminating' and p_worker.stage in ('flushing', 'deleting', 'gone') then 'stop'
                when p_worker.status = 'terminating' or p_worker.drain_requested_at is not null then 'drain'
                else 'run' end
$$;

-- Takes tasks for a worker; sequential scans and sorts are off, so that a plan made while the queue was short cannot
-- stay on when it is long.
create function public.internal_take(p_worker public.workers, p_claim_no bigint, p_batch int, p_now timestamptz)
returns int language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off as $$
declare
    v_taken int;
begin
    with taken as (
        update public.tasks t
           set status = 'In Progress', worker_id = p_worker.id, attempts = t.attempts + 1,
               lease_expires_at = p_now + p_worker.lease_s * interval '1 second',
               progress = null, progress_at = p_now, run_after = null, error_message = null, failure_code = null,
               failed_at_point = null, generation_started_at = p_now, generation_processed_at = null
         where t.id = any (array(
                   select q.id from public.tasks q
                    where q.pool = p_worker.pool and q.status = 'Queued' and not q.blocked
                      and (q.run_after is null or q.run_after <= p_now)
                    order by q.priority desc, q.created_at, q.id
                    limit p_batch for update skip locked))
        returning t.id, t.attempts
    ), noted as (
        insert into public.task_attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, log_first)
        select k.id, k.attempts, p_worker.id, p_worker.nonce, p_claim_no, p_now,
               (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint
          from taken k
        returning 1
    )
    select count(*) into v_taken from noted;
    return v_taken;
end
$$;

create function public.worker_register(p_worker_id text, p_nonce text, p_agent jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, true);
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop');
    end if;
    if p_agent is null or jsonb_typeof(p_agent) <> 'object' then
        perform public.internal_refuse('OR007', 'p_agent must be a JSON object');
    end if;
    perform public.internal_check_size(p_agent, 65536, 'p_agent');
    update public.workers w
       set last_heartbeat = v_now, agent = p_agent || jsonb_build_object('nonce', p_nonce)
     where w.id = p_worker_id;
    perform pg_notify('orchestrator_fleet', p_worker_id);
    return jsonb_build_object('outcome', 'ok', 'wanted', public.internal_wanted(v_worker),
                              'heartbeat_s', v_worker.heartbeat_s, 'lease_s', v_worker.lease_s);
end
$$;

-- A claim number stands for one claim: repeated, it gets the same tasks; after a higher one it gets nothing new, so that
-- a delayed copy of an old request cannot take tasks that nobody will run.
create function public.worker_claim(p_worker_id text, p_nonce text, p_claim_no bigint, p_batch int, p_wait_s numeric,
                                    p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, true);
    v_wanted text := public.internal_wanted(v_worker);
    v_taken int := 0;
    v_status text := v_worker.status;
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop', 'tasks', '[]'::jsonb);
    end if;
    if p_claim_no is null or p_claim_no < 1 or p_batch is null or p_batch not between 1 and 100 then
        perform public.internal_refuse('OR007', 'p_claim_no counts from 1 and p_batch is from 1 to 100',
            format('got p_claim_no %s, p_batch %s', p_claim_no, p_batch));
    end if;
    if v_wanted = 'run' and v_worker.status in ('active', 'idle')
       and (p_claim_no > v_worker.claim_no
            or p_claim_no = v_worker.claim_no
               and not exists (select from public.task_attempts a where a.worker_id = p_worker_id
                                  and a.nonce = p_nonce and a.claim_no = p_claim_no)) then
        v_taken := public.internal_take(v_worker, p_claim_no, p_batch, v_now);
        if v_taken > 0 then
            v_status := 'active';
        elsif v_worker.status = 'active' and not exists (
                select from public.tasks t where t.worker_id = p_worker_id and t.status = 'In Progress') then
            v_status := 'idle';
        end if;
        if v_status <> v_worker.status or p_claim_no > v_worker.claim_no then
            perform public.internal_because('worker', null, case v_status
                when 'active' then format('claimed %s of pool %s', v_taken, v_worker.pool)
                else format('asked for work of pool %s and there was none', v_worker.pool) end);
            update public.workers w set status = v_status, claim_no = p_claim_no where w.id = p_worker_id;
        end if;
    end if;
    return jsonb_build_object('outcome', 'ok', 'wanted', v_wanted, 'pool', v_worker.pool, 'state', v_status,
                              'tasks', public.internal_claimed(p_worker_id, p_nonce, p_claim_no));
end
$$;

-- The tasks of one claim that the worker still holds, as an agent gets them.
create function public.internal_claimed(p_worker_id text, p_nonce text, p_claim_no bigint) returns jsonb
language sql stable security definer set search_path = '' as $$
    select coalesce(jsonb_agg(jsonb_build_object(
               'id', t.id, 'task_type', t.task_type, 'params', t.params, 'attempt', t.attempts,
               'max_attempts', t.max_attempts, 'timeout_s', t.timeout_s,
               'output_prefix', format('outputs/%s/%s/', t.id, t.attempts),
               'dependencies', coalesce((
                    select jsonb_agg(jsonb_build_object('id', d.id, 'task_type', d.task_type,
                                                        'output_location', d.output_location,
                                                        'result_data', d.result_data) order by n.place)
                      from unnest(t.depends_on) with ordinality n (id, place) join public.tasks d on d.id = n.id), '[]')
           ) order by t.priority desc, t.created_at, t.id), '[]')
      from public.task_attempts a
      join public.tasks t on t.id = a.task_id and t.attempts = a.attempt
     where a.worker_id = p_worker_id and a.nonce = p_nonce and a.claim_no = p_claim_no and a.ended_at is null
       and t.status = 'In Progress' and t.worker_id = p_worker_id
$$;

create function public.worker_heartbeat(p_worker_id text, p_nonce text, p_tasks jsonb, p_health jsonb, p_logs jsonb,
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
                        else coalesce(w.agent, '{}') || jsonb_build_object('nonce', p_nonce) end
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
                              'fenced', v_fenced, 'heartbeat_s', v_worker.heartbeat_s, 'lease_s', v_worker.lease_s);
end
$$;

-- Locks the task and says how it stands with the caller's attempt: "held", "already" (this attempt has been ended by one
-- of the named outcomes) or "fenced".
create function public.internal_hold(p_worker public.workers, p_nonce text, p_task_id uuid, p_attempt int,
                                     p_outcomes text[])
returns text language plpgsql security definer set search_path = '' as $$
declare
    v_held boolean;
begin
    if p_worker.nonce is distinct from p_nonce then
        return 'fenced';
    end if;
    select t.status = 'In Progress' and t.worker_id = p_worker.id and t.attempts = p_attempt into v_held
      from public.tasks t where t.id = p_task_id for update;
    if v_held then
        return 'held';
    elsif exists (select from public.task_attempts a
                   where a.task_id = p_task_id and a.attempt = p_attempt and a.worker_id = p_worker.id
                     and a.outcome = any (p_outcomes)) then
        return 'already';
    end if;
    return 'fenced';
end
$$;

create function public.worker_complete(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt int,
                                       p_output_location text, p_result_data jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_outcome text;
begin
    perform public.internal_check_size(p_result_data, 1048576, 'p_result_data');
    perform public.internal_check_size(to_jsonb(p_output_location), 4096, 'p_output_location');
    v_outcome := public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']);
    if v_outcome = 'held' then
        update public.tasks t
           set status = 'Complete', output_location = p_output_location, result_data = p_result_data,
               generation_processed_at = v_now, lease_expires_at = null, error_message = null, failure_code = null
         where t.id = p_task_id;
        update public.task_attempts a
           set ended_at = v_now, outcome = 'complete',
               log_last = (v_worker.log_bytes #>> array[v_worker.nonce, 'handler'])::bigint
         where a.task_id = p_task_id and a.attempt = p_attempt;
        v_outcome := 'ok';
    end if;
    return jsonb_build_object('outcome', v_outcome);
end
$$;

-- Ends an attempt that did not complete: back to the queue, Failed at the last one, Cancelled where that was asked for.
-- p_failure: {code, message, point, exit_class, retryable, detail}. The caller holds the task's lock.
create function public.internal_give_up(p_task_id uuid, p_outcome text, p_failure jsonb, p_counted boolean,
                                        p_backoff boolean, p_now timestamptz)
returns text language plpgsql security definer set search_path = '' as $$
declare
    v_task public.tasks;
    v_outcome text := 'requeued';
    v_status public.tasks.status%type := 'Queued';
    v_used int;
    v_jitter numeric;
    v_run_after timestamptz;
begin
    select * into v_task from public.tasks t where t.id = p_task_id;
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

create function public.worker_fail(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt int, p_failure jsonb,
                                   p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_outcome text;
begin
    perform public.internal_check_keys(coalesce(p_failure, '{}'),
        array['code', 'message', 'point', 'exit_class', 'retryable', 'detail'], 'p_failure');
    perform public.internal_check_size(p_failure, 65536, 'p_failure');
    v_outcome := public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['failed', 'cancelled']);
    if v_outcome = 'held' then
        v_outcome := public.internal_give_up(p_task_id, 'failed', coalesce(p_failure, '{}'), true, true, v_now);
    end if;
    return jsonb_build_object('outcome', v_outcome);
end
$$;

create function public.worker_release(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt int, p_reason text,
                                      p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_outcome text := public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['released', 'cancelled']);
begin
    if v_outcome = 'held' then
        perform public.internal_give_up(p_task_id, 'released',
            jsonb_build_object('code', 'RELEASED', 'message', p_reason), false, false, v_now);
        v_outcome := 'ok';
    end if;
    return jsonb_build_object('outcome', v_outcome);
end
$$;

-- Which of these keys the worker may read or write now; the gateway signs a URL for each. It writes below the
-- output_prefix of an attempt it holds, and reads the output of a dependency of a task it holds. An output is only readable
-- below that task's own prefix: otherwise a worker could name any object as its output and have it signed.
create function public.worker_grants(p_worker_id text, p_nonce text, p_items jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_item jsonb;
    v_key text;
    v_granted jsonb := '[]';
    v_refused jsonb := '[]';
begin
    perform public.internal_clock(p_now);
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'items', '[]'::jsonb, 'refused', '[]'::jsonb);
    end if;
    if p_items is null or jsonb_typeof(p_items) <> 'array' or jsonb_array_length(p_items) > 1000 then
        perform public.internal_refuse('OR007', 'p_items must be a list of at most 1000 {method, key}');
    end if;
    for v_item in select value from jsonb_array_elements(p_items) loop
        v_key := v_item->>'key';
        if v_key ~ '^outputs/[^/]+/[0-9]+/[^/]' and v_key !~ '(^|/)\.{1,2}(/|$)|//|[[:cntrl:]]' and length(v_key) <= 900
           and exists (
               select from public.tasks t
                where t.worker_id = p_worker_id and t.status = 'In Progress'
                  and case v_item->>'method'
                          when 'PUT' then starts_with(v_key, format('outputs/%s/%s/', t.id, t.attempts))
                          when 'GET' then exists (
                              select from public.tasks d
                               where d.id = any (t.depends_on) and starts_with(v_key, format('outputs/%s/', d.id))
                                 and right(d.output_location, length(v_key) + 1) = '/' || v_key)
                          else false
                      end) then
            v_granted := v_granted || jsonb_build_object('method', v_item->>'method', 'key', v_key);
        else
            v_refused := v_refused || jsonb_build_array(v_key);
        end if;
    end loop;
    return jsonb_build_object('outcome', 'ok', 'items', v_granted, 'refused', v_refused);
end
$$;
