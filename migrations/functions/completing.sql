-- How an attempt ends: completed, failed or released by its worker, or given up.

create or replace function public.worker_complete(
    p_worker_id text, p_nonce text, p_task_id uuid, p_attempt int, p_output_location text, p_result_data jsonb,
    p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off
set plan_cache_mode = force_generic_plan set jit = off as $$
#variable_conflict use_variable
begin
    return public.worker_complete_output(
        p_worker_id, p_nonce, p_task_id, p_attempt, p_output_location, p_result_data, null, p_now);
end
$$;

-- p_output: what the bucket shows of the output, or false if the bucket was not asked yet; then the answer for a
-- held task is `look`. p_output may have the key `upload`: {started_s, ended_s}, when the agent uploaded, in seconds since
-- its claim. A pod may also call it over PostgREST, but then only this key of p_output is read. tasks.output_object is
-- {location, bytes, etag, version, sha256}, valid while its location equals the task's output_location.
create or replace function public.worker_complete_output(
    p_worker_id text, p_nonce text, p_task_id uuid, p_attempt int, p_output_location text, p_result_data jsonb,
    p_output jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off
set plan_cache_mode = force_generic_plan set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_answer jsonb;
    v_over_postgrest boolean := public.internal_is_pod() and public.internal_is_over_postgrest();
    v_object jsonb := case when not v_over_postgrest then p_output end;  -- a pod must not say what the bucket shows
    v_upload jsonb := p_output->'upload';
begin
    if p_result_data is not null then
        perform public.internal_check_size(p_result_data, 1048576, 'p_result_data');
    end if;
    if p_output_location is not null then
        perform public.internal_check_size(to_jsonb(p_output_location), 4096, 'p_output_location');
        if p_output_location like 's3://%' and v_over_postgrest
           and public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']) = 'held' then
            v_answer := public.internal_ask(p_worker_id, 'HEAD', p_output_location, '{}', v_now);
            if v_answer is null then
                return jsonb_build_object('outcome', 'pending');
            elsif v_answer->'found' = 'false' then
                return jsonb_build_object('outcome', 'unverified', 'code', 'OUTPUT_MISSING');
            end if;
            v_object := v_answer->'object';
        elsif v_object = 'false' then
            v_answer := to_jsonb(public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']));
            return jsonb_build_object('outcome', case v_answer #>> '{}' when 'held' then 'look' else v_answer #>> '{}' end);
        end if;
    end if;
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced');
    end if;
    if v_upload is not null then
        v_object := coalesce(v_object, '{}') || jsonb_build_object('upload', v_upload);
    end if;
    return public.internal_complete(v_worker, p_task_id, p_attempt, p_output_location, v_object, p_result_data, v_now);
end
$$;

-- Completes a held task of this launch. If a trigger or a constraint of a user refuses that, the answer is `pending`:
-- the worker keeps the result, renews the lease and asks again. After half an hour of refusals it gets the error, and
-- the task fails.
create or replace function public.internal_complete(
    p_worker public.workers, p_task_id uuid, p_attempt int, p_output_location text, p_object jsonb, p_result_data jsonb,
    p_now timestamptz
) returns jsonb
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_refusal public.task_refusals;
    v_answer text;
    v_message text;
    c_patience constant interval := '30 minutes';
begin
    select * into v_refusal from public.task_refusals r where r.task_id = p_task_id and r.what = 'complete';
    if v_refusal.retry_at > p_now then
        v_message := v_refusal.reason;
    else
        begin
            if public.internal_finish(p_worker, array[p_task_id], array[p_attempt], array[p_result_data], p_output_location,
                                      p_object, p_now) is not null then
                perform public.internal_fire_deferred();
                delete from public.task_refusals r where r.task_id = v_refusal.task_id;
                return jsonb_build_object('outcome', 'ok');
            end if;
            v_message := 'A trigger of the database suppressed its completion';
        exception when others or assert_failure then  -- a user's trigger or constraint may raise anything
            if public.internal_is_transient(sqlstate) then
                raise;
            end if;
            v_message := format('The database refused to complete it: %s (%s)', sqlerrm, sqlstate);
        end;
    end if;
    v_answer := public.internal_hold(p_worker, p_worker.nonce, p_task_id, p_attempt, array['complete']);
    if v_answer <> 'held' then
        return jsonb_build_object('outcome', v_answer);
    elsif v_refusal.since <= p_now - c_patience then
        perform public.internal_refuse('OR007', v_message, format('refused since %s', v_refusal.since),
            'Change the trigger or constraint on tasks, then retry the task.');
    elsif v_refusal.retry_at is null or v_refusal.retry_at <= p_now then
        perform public.internal_refused(array[p_task_id], 'complete', v_message);
    end if;
    perform set_config('response.status', '202', true);  -- PostgREST's status; for older agents it means "ask again"
    return jsonb_build_object('outcome', 'pending', 'why', v_message);
end
$$;

-- Completes those of these tasks, each named once, whose attempts the worker holds, and returns their ids; null for none. A
-- trigger may have suppressed the change of others, or put the old row in the place of the new one. p_output_location and
-- p_object are those of a single task. The key `upload` of p_object belongs to the attempt, the rest to the task's
-- output_object.
create or replace function public.internal_finish(
    p_worker public.workers, p_ids uuid[], p_attempts int[], p_data jsonb[], p_output_location text, p_object jsonb,
    p_now timestamptz
) returns uuid[]
language plpgsql security definer set search_path = '' set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    v_log_last bigint := (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint;
    v_held uuid[];
begin
    with done as (
        -- There is no join: no plan of one is good for an empty queue, for one task and for a hundred. The CASE keeps the
        -- planner from the index of running tasks.
        update public.tasks t
           set status = 'Complete', output_location = p_output_location, result_data = p_data[array_position(p_ids, t.id)],
               output_object = nullif(p_object - 'upload', '{}') || jsonb_build_object('location', p_output_location),
               generation_processed_at = p_now, lease_expires_at = null, error_message = null, failure_code = null,
               progress = null, updated_at = p_now
         where t.id = any (p_ids) and t.attempts = p_attempts[array_position(p_ids, t.id)]
           and case when t.status = 'In Progress' then t.worker_id end = p_worker.id
        returning t.id, t.status
    ), ended as (
        update public.task_attempts a
           set ended_at = p_now, outcome = 'complete', log_last = v_log_last,
               upload_started_at = case when p_object ? 'upload' then
                   public.internal_upload_at(p_object->'upload', 'started_s', a.started_at, p_now) end,
               upload_ended_at = case when p_object ? 'upload' then
                   public.internal_upload_at(p_object->'upload', 'ended_s', a.started_at, p_now) end
         where a.task_id = any (array(select d.id from done d where d.status <> 'In Progress'))
           and a.attempt = p_attempts[array_position(p_ids, a.task_id)]
    )
    select array_agg(d.id) into v_held from done d where d.status <> 'In Progress';
    return v_held;
end
$$;

-- One end of an upload, from what an agent says: {started_s, ended_s}, in seconds since p_from. NULL if that is no time
-- between p_from and p_now: an agent may say anything. Its clock may be a little faster than the database's.
create or replace function public.internal_upload_at(
    p_upload jsonb, p_end text, p_from timestamptz, p_now timestamptz
) returns timestamptz
language plpgsql immutable security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_started_s numeric;
    v_ended_s numeric;
    c_fast_s constant numeric := 5;
begin
    if jsonb_typeof(p_upload->'started_s') = 'number' and jsonb_typeof(p_upload->'ended_s') = 'number' then
        v_started_s := (p_upload->>'started_s')::numeric;
        v_ended_s := (p_upload->>'ended_s')::numeric;
    end if;
    if 0 <= v_started_s and v_started_s <= v_ended_s and v_ended_s <= extract(epoch from p_now - p_from) + c_fast_s then
        return least(p_now, p_from + case p_end when 'started_s' then v_started_s else v_ended_s end * interval '1 second');
    end if;
    return null;
end
$$;

-- Ends many attempts of one worker in one commit, and returns for each what worker_complete would return. It accepts
-- only results; an output goes through worker_complete, which checks the object first. The worker's row is locked before
-- its tasks, as in a heartbeat. The call waits for 3 s for a row that a user's transaction has locked, because the
-- heartbeat waits for it; the agent repeats it.
create or replace function public.worker_complete_many(
    p_worker_id text, p_nonce text, p_results jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off set lock_timeout = '3s'
set plan_cache_mode = force_generic_plan set jit = off as $$
#variable_conflict use_variable
begin
    return public.internal_complete_many(public.internal_caller(p_worker_id, true), p_nonce, p_results,
        public.internal_clock(p_now));
end
$$;

-- The calls of an agent between two short tasks, in one commit: worker_complete_many, then worker_claim without
-- waiting. Both halves can be repeated, together or alone. It waits for locked rows as worker_complete_many does. The claim
-- waits for a tenth of a second only: the triggers of the completions may hold rows that others wait for.
create or replace function public.worker_complete_and_claim(
    p_worker_id text, p_nonce text, p_results jsonb, p_claim_no bigint, p_batch int, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off set lock_timeout = '3s'
set plan_cache_mode = force_generic_plan set jit = off as $$
#variable_conflict use_variable
declare
    v_worker public.workers := public.internal_caller(p_worker_id, true);
    v_now timestamptz := public.internal_clock(p_now);  -- after the lock, for which it may have waited
    v_ended jsonb := public.internal_complete_many(v_worker, p_nonce, p_results, v_now);
    v_set text := set_config('orchestrator.has_completed', 'true', true);
begin
    return v_ended || public.internal_claim(v_worker, p_nonce, p_claim_no, p_batch, 0, v_now);
end
$$;

create or replace function public.internal_complete_many(
    p_worker public.workers, p_nonce text, p_results jsonb, p_now timestamptz
) returns jsonb
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_ids uuid[];
    v_attempts int[];
    v_data jsonb[];
    v_fine boolean;
    v_held uuid[];
begin
    perform public.internal_check_size(p_results, 1048576, 'p_results');
    begin
        select array_agg((e->>'task_id')::uuid), array_agg((e->>'attempt')::int), array_agg(nullif(e->'result_data', 'null')),
               bool_and(jsonb_typeof(e) = 'object' and e->>'task_id' is not null and (e->>'attempt')::int is not null
                        and e - array['task_id', 'attempt', 'result_data'] = '{}')
          into v_ids, v_attempts, v_data, v_fine
          from jsonb_array_elements(p_results) e;
    exception when data_exception then  -- not a list, or an entry without a valid id and number
        v_fine := false;
    end;
    if v_fine is not true or cardinality(v_ids) > 100 then
        perform public.internal_refuse('OR007', 'p_results is a list of 1 to 100 {task_id, attempt, result_data}');
    end if;
    if p_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced',
            'outcomes', (select jsonb_agg('fenced'::text) from jsonb_array_elements(p_results)));
    end if;
    if cardinality(v_ids) > 1 and cardinality(v_ids) > (select count(distinct n.id) from unnest(v_ids) n (id)) then
        select array_agg(u.id), array_agg(u.attempt), array_agg(u.result_data) into v_ids, v_attempts, v_data from (
            select distinct on (n.id) n.id, n.attempt, n.result_data
              from unnest(v_ids, v_attempts, v_data) with ordinality n (id, attempt, result_data, place)
             where n.attempt = (select t.attempts from public.tasks t where t.id = n.id)
             order by n.id, n.place) u;
    end if;
    v_held := public.internal_finish(p_worker, v_ids, v_attempts, v_data, null, null, p_now);
    if cardinality(v_held) = jsonb_array_length(p_results) then
        return jsonb_build_object('outcome', 'ok', 'outcomes', array_fill('ok'::text, array[cardinality(v_held)]));
    end if;
    -- From here on, each row is found by its key: a join, or another index, could read all tasks or attempts.
    if exists (select from unnest(v_ids, v_attempts) u (id, attempt)
                where (select t.attempts = u.attempt and t.status = 'In Progress' and t.worker_id = p_worker.id
                         from public.tasks t where t.id = u.id)) then  -- then one by one
        perform public.internal_refuse('OR007', 'a trigger of the database suppressed a completion');
    end if;
    return jsonb_build_object('outcome', 'ok', 'outcomes', (
        select jsonb_agg(case
                   when e.id = any (v_held) and (select t.attempts from public.tasks t where t.id = e.id) = e.attempt then 'ok'
                   when (select a.worker_id = p_worker.id and a.outcome = 'complete' from public.task_attempts a
                          where a.task_id = e.id and a.attempt = e.attempt) then 'already'
                   else 'fenced' end order by e.n)
          from (select (j.r->>'task_id')::uuid as id, (j.r->>'attempt')::int as attempt, j.n
                  from jsonb_array_elements(p_results) with ordinality j (r, n)) e));
end
$$;

-- It waits for 3 s for a row that a user's transaction has locked, because the worker's heartbeat waits for this call; the
-- agent repeats it.
create or replace function public.worker_fail(
    p_worker_id text, p_nonce text, p_task_id uuid, p_attempt int, p_failure jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off set lock_timeout = '3s' as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_unable boolean := coalesce(p_failure->>'code' = 'NO_HANDLER', false);
    v_worker public.workers := public.internal_caller(p_worker_id, true);  -- its row is locked before its task's
    v_type text;
    v_release text;
    v_outcome text;
    v_here boolean;
    c_wait_s constant int := 60;  -- doubles up to ten times; ends when the first of that release is promoted
begin
    perform public.internal_check_keys(coalesce(p_failure, '{}'),
        array['code', 'message', 'point', 'exit_class', 'retryable', 'detail'], 'p_failure');
    perform public.internal_check_size(p_failure, 65536, 'p_failure');
    v_outcome := public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt,
        array['failed', 'cancelled'] || case when v_unable then array['released'] end);
    if v_outcome = 'held' and v_unable then
        select t.task_type, public.internal_replacing_release(v_worker, t.task_type, v_now) into v_type, v_release
          from public.tasks t where t.id = p_task_id;
    end if;
    if v_outcome = 'held' and v_release is not null then
        v_outcome := public.internal_give_up(p_task_id, 'released', p_failure || jsonb_build_object(
            'code', 'EARLIER_RELEASE',
            'message', format('Worker %s is of an earlier release, %s, which has no handler for %s; %s has one',
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

-- Gives a task back; the attempt does not count. The task can be claimed again at once. If workers that go on return it
-- in circles, it waits from the third time on: 30 s, which double up to an hour.
create or replace function public.worker_release(
    p_worker_id text, p_nonce text, p_task_id uuid, p_attempt int, p_reason text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_outcome text := public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['released', 'cancelled']);
    v_times int;
    v_pause_s int;
    c_free constant int := 2;  -- times in a row after which a task can be claimed at once
begin
    if v_outcome = 'held' then
        v_times := 1 + public.internal_returns(p_task_id, p_attempt);
        if v_times > c_free and public.internal_wanted(v_worker) = 'run' then
            v_pause_s := least(30 * 2 ^ least(v_times - c_free - 1, 10), 3600);
            p_reason := format('returned %s times in a row: %s', v_times, p_reason);
        end if;
        perform public.internal_give_up(p_task_id, 'released',
            jsonb_build_object('code', 'RELEASED', 'message', p_reason), false, false, v_now, v_pause_s);
        v_outcome := 'ok';
    end if;
    return jsonb_build_object('outcome', v_outcome);
end
$$;

-- How many times in a row a task was returned before this attempt by workers that then took other tasks, or this one
-- again. A worker that ends returns each task once, and is not counted. The row starts again after a claim with a task
-- that was run: of a large claim, an agent returns the tasks that did not begin soon enough.
create or replace function public.internal_returns(p_task_id uuid, p_attempt int) returns int
language sql stable security definer set search_path = '' as $$
    select count(*)::int
      from (select l.*, bool_and(not exists (
                       select from public.task_attempts o
                        where o.worker_id = l.worker_id and o.nonce = l.nonce and o.claim_no = l.claim_no
                          and o.outcome is distinct from 'released')) over (order by l.attempt desc) as in_vain
              from (select a.attempt, a.worker_id, a.nonce, a.claim_no, a.failure_code from public.task_attempts a
                     where a.task_id = internal_returns.p_task_id and a.attempt < internal_returns.p_attempt
                     order by a.attempt desc limit 20) l) r
     where r.in_vain and r.failure_code = 'RELEASED'
       and exists (select from public.task_attempts n
                    where n.worker_id = r.worker_id and n.nonce = r.nonce and n.claim_no > r.claim_no)
$$;

-- Locks the task and returns the state of the caller's attempt: "held", "already" (it ended with one of the named
-- outcomes) or "fenced".
create or replace function public.internal_hold(
    p_worker public.workers, p_nonce text, p_task_id uuid, p_attempt int, p_outcomes text[]
) returns text
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_held boolean;
begin
    if p_worker.nonce is distinct from p_nonce then
        return 'fenced';
    end if;
    select t.status = 'In Progress' and t.worker_id = p_worker.id and t.attempts = p_attempt into v_held
      from public.tasks t where t.id = p_task_id for no key update;
    if v_held then
        return 'held';
    elsif (select a.worker_id = p_worker.id and a.outcome = any (p_outcomes) from public.task_attempts a
            where a.task_id = p_task_id and a.attempt = p_attempt) then
        return 'already';
    end if;
    return 'fenced';
end
$$;

-- Ends an attempt that did not complete: the task is queued again, Failed after its last attempt, or Cancelled on
-- request. p_failure: {code, message, point, exit_class, retryable, detail}. The caller holds the task's lock.
-- An attempt does not count if it is lost with a worker whose end was planned (workers.exit_cause). Nor does it count
-- if the machine failed, or if no agent reached a gateway, up to three times each for a task: a task that makes machines
-- fail, or breaks their network, must not run without end. After the first lost attempt the task is claimable at once,
-- because the worker is the likely cause. From the second one on it waits for half a minute each time, because the task
-- may be the cause.
create or replace function public.internal_give_up(
    p_task_id uuid, p_outcome text, p_failure jsonb, p_counted boolean, p_backoff boolean, p_now timestamptz,
    p_pause_s int default null
) returns text
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_task public.tasks;
    v_outcome text := 'requeued';
    v_status public.tasks.status%type := 'Queued';
    v_used int;
    v_jitter numeric;
    v_run_after timestamptz;
    v_planned text;  -- why its worker ends, if the task is not to blame: the end was planned, or there was an outage
    v_fault text;
    v_backoff boolean := p_backoff;
    v_is_held boolean;
    c_faults constant int := 3;  -- attempts of a task that faults of one kind may end without counting
begin
    select * into v_task from public.tasks t where t.id = p_task_id;
    if p_outcome = 'lost' then
        select case when w.failure_code = 'GATEWAY_UNREACHED' then w.failure_code else w.exit_cause end into v_planned
          from public.workers w
         where w.id = v_task.worker_id and w.status in ('terminating', 'terminated')
           and (w.failure_code = 'GATEWAY_UNREACHED'
                or w.exit_cause in ('idle_timeout', 'scale_down', 'manual', 'shutdown', 'budget', 'superseded',
                                    'worker_sick', 'stale_code', 'gpu_fault', 'host_fault'));
    end if;
    if v_planned in ('gpu_fault', 'host_fault', 'GATEWAY_UNREACHED') then
        v_fault := case v_planned when 'GATEWAY_UNREACHED' then v_planned else 'MACHINE_FAULT' end;
        p_failure := jsonb_build_object('code', v_fault, 'exit_class', 'lost', 'point', 'Processing',
            'message', case v_planned when 'GATEWAY_UNREACHED' then
                format('Worker %s was ended: its agent reached no gateway', v_task.worker_id) else
                format('The machine of worker %s failed: %s', v_task.worker_id, v_planned) end);
        p_counted := c_faults <= (select count(*) from public.task_attempts a
                                   where a.task_id = p_task_id and a.failure_code = v_fault);
        p_outcome := case when p_counted then 'lost' else 'released' end;
    elsif v_planned is not null then
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
    elsif p_pause_s is not null then
        v_run_after := p_now + p_pause_s * interval '1 second';
    elsif v_backoff then
        -- 30 s, doubling up to an hour after each failure; +-20 % from the id, so that many tasks do not return at once
        v_jitter := 0.8 + 0.4 * ('x' || substr(md5(p_task_id::text || v_task.attempts), 1, 7))::bit(28)::int / 268435455.0;
        v_run_after := p_now + v_jitter * interval '1 second'
            * case when p_outcome = 'lost' then 30 else least(30 * 2 ^ least(v_used - 1, 20), 3600) end;
    end if;
    delete from public.task_refusals r where r.task_id = p_task_id and r.what = 'complete';
    -- First the attempt: the task's own triggers close attempts that are still open.
    update public.task_attempts a
       set ended_at = p_now,
           outcome = case when v_outcome = 'cancelled' then 'cancelled' else p_outcome end,
           failure_code = left(p_failure->>'code', 100), exit_class = left(p_failure->>'exit_class', 100),
           failed_at_point = left(p_failure->>'point', 100), message = left(p_failure->>'message', 4000),
           detail = p_failure->'detail',
           log_last = (select (w.log_bytes #>> array[a.nonce, 'handler'])::bigint
                         from public.workers w where w.id = a.worker_id)
     where a.task_id = p_task_id and a.attempt = v_task.attempts and a.ended_at is null;
    update public.tasks t
       set status = v_status, run_after = v_run_after, lease_expires_at = null,
           uncounted = t.uncounted + case when p_counted then 0 else 1 end,
           worker_id = case when v_outcome = 'requeued' then null else t.worker_id end,
           generation_processed_at = case when v_outcome = 'requeued' then null else p_now end,
           error_message = public.internal_message(p_failure->>'message'), failure_code = left(p_failure->>'code', 100),
           failed_at_point = case when p_failure->>'point' in ('Claiming', 'Processing', 'Completion')
                                  then p_failure->>'point' end
     where t.id = p_task_id returning t.status = 'In Progress' into v_is_held;
    if v_is_held is not false then
        raise exception 'a trigger of the database suppressed the end of attempt % at task %', v_task.attempts, p_task_id;
    end if;
    return v_outcome;
end
$$;

-- Closes attempts that no longer hold their task: its number or its worker has changed, or it has no worker.
create or replace function public.internal_close_attempts(p_ids uuid[], p_gone boolean) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
begin
    if not exists (select from public.task_attempts a  -- not by its index, which has many pages without a summary
                    where a.task_id = any (p_ids) and coalesce(a.ended_at, 'infinity') = 'infinity') then
        return;
    end if;
    update public.task_attempts a
       set ended_at = greatest(public.internal_now(), a.started_at),
           outcome = case t.status when 'Complete' then 'complete' when 'Failed' then 'failed'
                                   when 'Cancelled' then 'cancelled' else 'lost' end,
           message = case when p_gone or t.id is null then 'The task was deleted'
                          else format('The task was changed by hand: %s', t.status) end
      from unnest(p_ids) n (id)
      left join (select d.* from public.tasks d where d.id = any (p_ids) offset 0) t on t.id = n.id
     where a.task_id = n.id and a.task_id = any (p_ids)
       and coalesce(a.ended_at, 'infinity') = 'infinity'
       and (t.status = 'In Progress' and t.attempts = a.attempt and t.worker_id = a.worker_id) is not true;
end
$$;
