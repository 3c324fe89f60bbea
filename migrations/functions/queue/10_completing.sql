-- How an attempt completes.

create or replace function public.worker_complete(
    p_worker_id text, p_nonce text, p_task_id uuid, p_attempt int, p_output_location text, p_result_data jsonb,
    p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set plan_cache_mode = force_generic_plan set jit = off as $$
#variable_conflict use_variable
begin
    return public.worker_complete_output(
        p_worker_id, p_nonce, p_task_id, p_attempt, p_output_location, p_result_data, null, p_now);
end
$$;

-- p_output: what the bucket shows of the output, or false if the bucket was not asked yet; then the answer for a held
-- task is `look`. p_output may have the key `upload`: {started_s, ended_s}, when the agent uploaded, in seconds since
-- its claim. A pod may also call it over PostgREST, but then only this key of p_output is read. tasks.output_object is
-- {location, bytes, etag, version, sha256}, valid while its location equals the task's output_location.
create or replace function public.worker_complete_output(
    p_worker_id text, p_nonce text, p_task_id uuid, p_attempt int, p_output_location text, p_result_data jsonb,
    p_output jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set lock_timeout = '900ms' set plan_cache_mode = force_generic_plan set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_launch orchestrator.launches := orchestrator.caller(p_worker_id);
    v_state text;
    v_answer jsonb;
    v_over_postgrest boolean := coalesce(
        public.internal_is_pod() and current_setting('request.method', true) <> '', false);
    v_object jsonb := case when not v_over_postgrest then p_output end;  -- a pod must not say what the bucket shows
begin
    if v_launch.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced');
    end if;
    if p_result_data is not null then
        perform public.internal_check_size(p_result_data, 1048576, 'p_result_data');
    end if;
    v_state := orchestrator.state_of(v_launch, p_task_id, p_attempt, array['complete']);
    if p_output_location is not null then
        perform public.internal_check_size(to_jsonb(p_output_location), 4096, 'p_output_location');
        if p_output_location like 's3://%' and v_over_postgrest and v_state = 'held' then
            v_answer := public.internal_ask(p_worker_id, 'HEAD', p_output_location, '{}', v_now);
            if v_answer is null then
                return jsonb_build_object('outcome', 'pending');
            elsif v_answer->'found' = 'false' then
                return jsonb_build_object('outcome', 'unverified', 'code', 'OUTPUT_MISSING');
            end if;
            v_object := v_answer->'object';
        elsif v_object = 'false' then
            return jsonb_build_object('outcome', case v_state when 'held' then 'look' else v_state end);
        end if;
    end if;
    for v_try in 1..2 loop
        exit when v_state <> 'held' or v_try = 2 and not orchestrator.wait_for_rows(array[p_task_id]);
        if orchestrator.finish(v_launch, array[p_task_id], array[p_attempt], array[p_result_data], p_output_location,
                               nullif(v_object, 'false') - 'upload', p_output->'upload', v_now) is not null then
            return jsonb_build_object('outcome', 'ok');
        end if;
    end loop;
    v_state := orchestrator.state_of(v_launch, p_task_id, p_attempt, array['complete']);
    if v_state = 'held' then  -- a user's open transaction has changed the task
        -- PostgREST's status; for older agents it means "ask again"
        perform set_config('response.status', '202', true);
        return jsonb_build_object('outcome', 'pending', 'why', 'Another transaction is changing the task');
    end if;
    return jsonb_build_object('outcome', v_state);
end
$$;

-- The state of the caller's attempt: held, already (it ended with one of these outcomes) or fenced.
create or replace function orchestrator.state_of(
    p_launch orchestrator.launches, p_task_id uuid, p_attempt int, p_outcomes text[]
) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_task orchestrator.live;
begin
    select * into v_task from orchestrator.live q where q.task_id = p_task_id;
    if v_task.attempt = p_attempt and v_task.state = 'running' and v_task.worker_id = p_launch.worker_id
       and v_task.nonce = p_launch.nonce then
        return 'held';
    elsif (select a.worker_id = p_launch.worker_id and a.outcome = any (p_outcomes) from orchestrator.attempts a
            where a.task_id = p_task_id and a.attempt = p_attempt) then
        return 'already';
    end if;
    return 'fenced';
end
$$;

-- Completes those of these tasks, each named once, whose attempts the launch holds, and returns their ids; null for
-- none. Those that another transaction is changing are left. The location, the object and the upload are those of a
-- single task.
create or replace function orchestrator.finish(
    p_launch orchestrator.launches, p_ids uuid[], p_attempts int[], p_data jsonb[], p_location text, p_object jsonb,
    p_upload jsonb, p_now timestamptz
) returns uuid[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_ids uuid[];
    v_keys text[];
    v_types text[];
    v_needs boolean;
    v_has_webhook boolean;
    v_is_needed boolean;
    v_is_slow boolean;
    v_ends orchestrator.publications[];
begin
    with done as (
        delete from orchestrator.live q
         where q.ctid = any (array(
                   select l.ctid from orchestrator.live l
                    where l.task_id = any (p_ids) and l.attempt = p_attempts[array_position(p_ids, l.task_id)]
                      and l.state = 'running' and l.worker_id = p_launch.worker_id and l.nonce = p_launch.nonce
                      for update skip locked))
        returning q.task_id, q.attempt, q.uncounted, q.claim_no, q.claimed_at, q.log_first, q.shown, q.concurrency_key,
                  q.task_type, q.type_limited, q.has_needs, q.has_webhook, q.run_after
    ), recorded as (
        insert into orchestrator.attempts (task_id, attempt, claim_no, started_at, ended_at, worker_id, nonce, outcome,
                                           log_first, log_last, uncounted, run_after, upload_started_at,
                                           upload_ended_at)
        select d.task_id, d.attempt, d.claim_no, d.claimed_at, p_now, p_launch.worker_id, p_launch.nonce, 'complete',
               d.log_first, p_launch.log_bytes, d.uncounted, d.run_after,
               case when p_upload is not null then
                   public.internal_upload_at(p_upload, 'started_s', d.claimed_at, p_now) end,
               case when p_upload is not null then
                   public.internal_upload_at(p_upload, 'ended_s', d.claimed_at, p_now) end
          from done d
    )
    select array_agg(d.task_id), array_agg(d.concurrency_key) filter (where d.concurrency_key is not null),
           array_agg(d.task_type) filter (where d.type_limited), bool_or(d.has_needs), bool_or(d.has_webhook),
           exists (select from orchestrator.edges e where e.needs = any (p_ids)),
           exists (select from orchestrator.slow_pools s where s.pool = p_launch.pool and s.until > p_now),
           array_agg(row(d.task_id, 2 * d.attempt + 1, 'Complete',
                         case when d.shown > 0 then 'In Progress' else 'Queued' end,
                         p_now, d.claimed_at, p_launch.worker_id, d.attempt, p_data[array_position(p_ids, d.task_id)],
                         p_location, case when p_location is not null then
                             nullif(p_object, '{}') || jsonb_build_object('location', p_location) end,
                         null, null, null, null, null, 0, null)::orchestrator.publications)
      into v_ids, v_keys, v_types, v_needs, v_has_webhook, v_is_needed, v_is_slow, v_ends from done d;
    if v_ids is null then
        return null;
    end if;
    if p_launch.wanted <> 'run' then  -- it may have been its last task
        perform pg_notify('orchestrator_fleet', p_launch.worker_id);
    end if;
    if v_needs then
        perform orchestrator.drop_edges(v_ids);
    end if;
    perform orchestrator.publish(v_ends, p_launch.pool, v_is_slow);
    if v_has_webhook or exists (select from public.webhooks) then
        perform public.internal_webhooks_write(v_ids, p_now);
    end if;
    if v_is_needed then
        perform orchestrator.meet(v_ids);
    end if;
    if v_keys is not null or v_types is not null then
        perform orchestrator.refill('key', v_keys);
        perform orchestrator.refill('type', v_types);
    end if;
    return v_ids;
end
$$;

-- Ends many attempts of one worker in one commit, and returns for each what worker_complete would return. It accepts
-- only results; an output goes through worker_complete, which checks the object first.
create or replace function public.worker_complete_many(
    p_worker_id text, p_nonce text, p_results jsonb, p_now timestamptz default null
) returns json
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set lock_timeout = '900ms' set plan_cache_mode = force_generic_plan set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_launch orchestrator.launches := orchestrator.caller(p_worker_id);
    v_outcomes json := orchestrator.complete_many(v_launch, p_nonce, p_results, v_now);
begin
    return json_build_object('outcome', case when v_launch.nonce is distinct from p_nonce then 'fenced' else 'ok' end,
                             'outcomes', v_outcomes);
end
$$;

-- The calls of an agent between two short tasks, in one commit: worker_complete_many, then worker_claim without
-- waiting. Both halves can be repeated, together or alone.
create or replace function public.worker_complete_and_claim(
    p_worker_id text, p_nonce text, p_results jsonb, p_claim_no bigint, p_batch int, p_now timestamptz default null
) returns json
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off set lock_timeout = '900ms' set plan_cache_mode = force_generic_plan
set jit = off as $$
#variable_conflict use_variable
declare
    v_launch orchestrator.launches := orchestrator.caller(p_worker_id);
    v_now timestamptz := public.internal_clock(p_now);  -- after the lock, for which it may have waited
    v_outcomes json;
    v_claim json;
begin
    v_outcomes := orchestrator.complete_many(v_launch, p_nonce, p_results, v_now);
    if v_launch.nonce is distinct from p_nonce then
        return json_build_object('outcome', 'fenced', 'wanted', 'stop', 'tasks', '[]'::json, 'outcomes', v_outcomes);
    end if;
    v_claim := orchestrator.claim(v_launch, p_claim_no, p_batch, v_now, false);
    return json_build_object(
        'outcome', 'ok', 'outcomes', v_outcomes, 'wanted', v_claim->'wanted', 'pool', v_claim->'pool',
        'state', v_claim->'state', 'tasks', v_claim->'tasks', 'spent', v_claim->'spent', 'may', v_claim->'may');
end
$$;

create or replace function orchestrator.complete_many(
    p_launch orchestrator.launches, p_nonce text, p_results jsonb, p_now timestamptz
) returns json
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_ids uuid[];
    v_attempts int[];
    v_data jsonb[];
    v_is_fine boolean;
    v_held uuid[];
begin
    perform public.internal_check_size(p_results, 1048576, 'p_results');
    begin
        select array_agg((e->>'task_id')::uuid), array_agg((e->>'attempt')::int),
               array_agg(nullif(e->'result_data', 'null')),
               bool_and(jsonb_typeof(e) = 'object' and e->>'task_id' is not null and (e->>'attempt')::int is not null
                        and e - array['task_id', 'attempt', 'result_data'] = '{}')
          into v_ids, v_attempts, v_data, v_is_fine
          from jsonb_array_elements(p_results) e;
    exception when data_exception then  -- not a list, or an entry without a valid id and number
        v_is_fine := false;
    end;
    if v_is_fine is not true or cardinality(v_ids) > 100 then
        perform public.internal_refuse('OR007', 'p_results is a list of 1 to 100 {task_id, attempt, result_data}');
    end if;
    if p_launch.nonce is distinct from p_nonce then
        return array_to_json(array_fill('fenced'::text, array[cardinality(v_ids)]));
    end if;
    v_held := orchestrator.finish(p_launch, v_ids, v_attempts, v_data, null, null, null, p_now);
    if cardinality(v_held) = cardinality(v_ids) then
        return array_to_json(array_fill('ok'::text, array[cardinality(v_ids)]));
    end if;
    -- Locked by another call, or one task with other numbers too.
    if orchestrator.wait_for_rows(array(select i.id from unnest(v_ids) i (id)
                                         where (i.id = any (v_held)) is not true)) then
        select v_held || orchestrator.finish(p_launch, array_agg(h.id), array_agg(h.attempt), array_agg(h.data),
                                             null, null, null, p_now) into v_held
          from (select distinct on (n.id) n.id, n.attempt, n.data
                  from unnest(v_ids, v_attempts, v_data) n (id, attempt, data)
                 where (n.id = any (v_held)) is not true
                   and orchestrator.state_of(p_launch, n.id, n.attempt, array['complete']) = 'held') h;
    end if;
    return (select json_agg(case when u.id = any (v_held) and u.state = 'already' then 'ok'
                                 when u.state = 'held' then 'pending' else u.state end order by u.n)
              from (select n.id, n.n, orchestrator.state_of(p_launch, n.id, n.attempt, array['complete']) as state
                      from unnest(v_ids, v_attempts) with ordinality n (id, attempt, n)) u);
end
$$;
