-- What a claim and a completion cost, again. Three things are told or done less often:
--   * the end of a task notifies nobody, unless its worker is wanted gone. Commits that notify go one by one through the whole
--     server; any other worker claims again at once, and then is idle, which is told, or has the next task;
--   * a completion changes its rows in one statement, and asks who holds the task only where that changed nothing;
--   * the mark is raised as often as pays for a claim of that size.
-- An assignment of a function's value is computed in place; PERFORM runs a statement.

create or replace function public.internal_clock(p_now timestamptz) returns timestamptz
language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := clock_timestamp();
    v_set text;
begin
    if p_now is not null and not public.internal_is_pod() then
        v_now := p_now;
    end if;
    v_set := set_config('orchestrator.now', v_now::text, true);
    return v_now;
end
$$;

create or replace function public.worker_complete(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt int,
    p_output_location text, p_result_data jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = ''
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_log_last bigint := (v_worker.log_bytes #>> array[v_worker.nonce, 'handler'])::bigint;
    v_held uuid;
    v_answer jsonb;
    v_set text;
begin
    if p_result_data is not null then
        perform public.internal_check_size(p_result_data, 1048576, 'p_result_data');
    end if;
    if p_output_location is not null then
        perform public.internal_check_size(to_jsonb(p_output_location), 4096, 'p_output_location');
        if p_output_location like 's3://%' and public.internal_is_pod() and public.internal_is_over_postgrest()
           and public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']) = 'held' then
            v_answer := public.internal_ask(p_worker_id, 'HEAD', p_output_location, v_now);
            if v_answer is null then
                return jsonb_build_object('outcome', 'pending');
            elsif v_answer->'found' = 'false' then
                return jsonb_build_object('outcome', 'unverified', 'code', 'OUTPUT_MISSING');
            end if;
        end if;
    end if;
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced');
    end if;
    v_set := set_config('orchestrator.minded', 'on', true);  -- who waits and who listens are seen to below
    with done as (
        update public.tasks t
           set status = 'Complete', output_location = p_output_location, result_data = p_result_data,
               generation_processed_at = v_now, lease_expires_at = null, error_message = null, failure_code = null,
               updated_at = v_now
         where t.id = p_task_id and t.attempts = p_attempt
           and case when t.status = 'In Progress' then t.worker_id end = p_worker_id
        returning t.id, t.attempts
    ), ended as (
        update public.task_attempts a set ended_at = v_now, outcome = 'complete', log_last = v_log_last
          from done d where a.task_id = d.id and a.attempt = d.attempts
    )
    select d.id into v_held from done d;
    v_set := set_config('orchestrator.minded', '', true);
    if v_held is null then
        return jsonb_build_object('outcome', public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']));
    end if;
    perform public.internal_settle_dependants(array[p_task_id]);
    if public.internal_wanted(v_worker) <> 'run' then
        perform pg_notify('orchestrator_fleet', p_worker_id);
    end if;
    return jsonb_build_object('outcome', 'ok');
end
$$;

create or replace function public.worker_complete_many(p_worker_id text, p_nonce text, p_results jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = ''
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_log_last bigint := (v_worker.log_bytes #>> array[v_worker.nonce, 'handler'])::bigint;
    v_ids uuid[];
    v_attempts int[];
    v_data jsonb[];
    v_fine boolean;
    v_held uuid[];
    v_set text;
begin
    perform public.internal_check_size(p_results, 1048576, 'p_results');
    begin
        select array_agg((e->>'task_id')::uuid), array_agg((e->>'attempt')::int), array_agg(nullif(e->'result_data', 'null')),
               bool_and(jsonb_typeof(e) = 'object' and e->>'task_id' is not null and (e->>'attempt')::int is not null
                        and e - array['task_id', 'attempt', 'result_data'] = '{}')
          into v_ids, v_attempts, v_data, v_fine
          from jsonb_array_elements(p_results) e;
    exception when data_exception then  -- no list, or something in it is no id or number
        v_fine := false;
    end;
    if v_fine is not true or cardinality(v_ids) > 100 then
        perform public.internal_refuse('OR007', 'p_results is a list of 1 to 100 {task_id, attempt, result_data}');
    end if;
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'outcomes', (select jsonb_agg('fenced'::text) from jsonb_array_elements(p_results)));
    end if;
    v_set := set_config('orchestrator.minded', 'on', true);  -- who waits and who listens are seen to below
    with done as (
        -- In the order in which a heartbeat locks them. The case keeps the index of what runs out of it, which is full of
        -- what has just ended.
        update public.tasks t
           set status = 'Complete', output_location = null, result_data = r.result_data,
               generation_processed_at = v_now, lease_expires_at = null, error_message = null, failure_code = null,
               updated_at = v_now
          from (select * from unnest(v_ids, v_attempts, v_data) u (id, attempt, result_data) order by 1) r
         where t.id = r.id and t.attempts = r.attempt
           and case when t.status = 'In Progress' then t.worker_id end = p_worker_id
        returning t.id, t.attempts
    ), ended as (
        update public.task_attempts a set ended_at = v_now, outcome = 'complete', log_last = v_log_last
          from done d where a.task_id = d.id and a.attempt = d.attempts
    )
    select array_agg(d.id) into v_held from done d;
    v_set := set_config('orchestrator.minded', '', true);
    if v_held is not null then
        perform public.internal_settle_dependants(v_held);
        if public.internal_wanted(v_worker) <> 'run' then
            perform pg_notify('orchestrator_fleet', p_worker_id);
        end if;
    end if;
    if cardinality(v_held) = cardinality(v_ids) then
        return jsonb_build_object('outcome', 'ok', 'outcomes', array_fill('ok'::text, array[cardinality(v_ids)]));
    end if;
    return jsonb_build_object('outcome', 'ok', 'outcomes', (
        select jsonb_agg(case
                   when (r->>'task_id')::uuid = any (v_held) and t.attempts = (r->>'attempt')::int then 'ok'
                   when exists (select from public.task_attempts a
                                 where a.task_id = (r->>'task_id')::uuid and a.attempt = (r->>'attempt')::int
                                   and a.worker_id = p_worker_id and a.outcome = 'complete') then 'already'
                   else 'fenced' end order by n)
          from jsonb_array_elements(p_results) with ordinality e (r, n)
          left join public.tasks t on t.id = (r->>'task_id')::uuid));
end
$$;

create or replace function public.internal_take(p_worker public.workers, p_claim_no bigint, p_batch int, p_now timestamptz)
returns jsonb language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan as $$
declare
    v_from record;
    v_rows tid[];
    v_plain int;
    v_heavy boolean;
    v_first tid;
    v_tasks jsonb;
    v_set text;
    v_log_first bigint := (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint;
    c_least constant int := -2147483648;
    -- Single claims between two tries to raise the mark; of n at once, by the root of n fewer: a try costs what reading past
    -- the tasks of that many claims does.
    c_raise_every constant int := 32;
    c_lowered constant int := 64;  -- marks; more than that are not read again and again
    c_light constant int := 2000;  -- bytes of params, as stored: a hundred times that is a small answer
    c_bytes constant int := 33554432;  -- of an answer: what an agent reads, and what is made well within a call's deadline
begin
    select m.place, m.created_at, m.id, m.lowered into v_from from public.internal_mark(p_worker.pool, p_now) m;
    loop
        select array_agg(l.ctid), count(*) filter (where l.run_after is null), bool_or(l.heavy)
          into v_rows, v_plain, v_heavy from (
            select q.ctid, q.run_after, q.depends_on <> '{}' or pg_column_size(q.params) > c_light as heavy
              from public.tasks q
             where q.pool = p_worker.pool and q.status = 'Queued' and not q.blocked
               and (q.run_after is null or q.run_after <= p_now)
               and (~q.priority, q.created_at, q.id) >= (v_from.place, v_from.created_at, v_from.id)
             order by ~q.priority, q.created_at, q.id
             limit p_batch for update skip locked) l;
        exit when not v_heavy;
        if v_heavy then
            v_first := v_rows[1];
            select array_agg(f.ctid), count(*) filter (where f.run_after is null) into v_rows, v_plain from (
                select t.ctid, t.run_after, sum(octet_length(t.params::text)
                           + coalesce((select sum(octet_length(d.result_data::text))
                                         from public.tasks d where d.id = any (t.depends_on)), 0))
                           over (order by ~t.priority, t.created_at, t.id) as upto
                  from public.tasks t where t.ctid = any (v_rows)) f where f.upto <= c_bytes;
            exit when v_rows is not null;
            -- No claim can carry it, and every worker's next one would begin with it again.
            update public.tasks t
               set status = 'Failed', run_after = null, generation_processed_at = p_now, failed_at_point = 'Claiming',
                   failure_code = 'INPUTS_TOO_LARGE',
                   error_message = format('Its params and the results of the %s tasks that it depends on are more than %s MiB',
                                          cardinality(t.depends_on), c_bytes / 1048576)
             where t.ctid = v_first;
            continue;
        end if;
        -- Nothing, where the counts say that there is something: others are taking it now, or a mark is wrong. No task waits
        -- for ever for that: it is looked everywhere before a worker is sent away.
        if v_from.place = c_least
           or coalesce((select sum(c.n) from public.task_counts c where c.pool = p_worker.pool and c.kind = 'plain'), 0) <= 0 then
            return null;
        end if;
        perform public.internal_raise_mark(p_worker.pool, p_now, true);
        v_from.place := c_least;
        v_from.created_at := '-infinity';
    end loop;
    v_set := set_config('orchestrator.minded', 'on', true);  -- counted here; nothing waits for a start, nobody is told of one
    with taken as (
        update public.tasks t
           set status = 'In Progress', worker_id = p_worker.id, attempts = t.attempts + 1, updated_at = p_now,
               lease_expires_at = p_now + p_worker.lease_s * interval '1 second',
               progress = null, progress_at = p_now, run_after = null, error_message = null, failure_code = null,
               failed_at_point = null, generation_started_at = p_now, generation_processed_at = null
         where t.ctid = any (v_rows)
        returning t.id, t.task_type, t.params, t.attempts, t.max_attempts, t.timeout_s, t.depends_on, t.priority, t.created_at
    ), noted as (
        insert into public.task_attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, log_first)
        select k.id, k.attempts, p_worker.id, p_worker.nonce, p_claim_no, p_now, v_log_first from taken k
    ), counted as (
        insert into public.task_counts (pool, kind, n)
        select p_worker.pool, c.kind, -c.n
          from (values ('plain', v_plain), ('timed', cardinality(v_rows) - v_plain)) c (kind, n) where c.n > 0
    )
    select jsonb_agg(jsonb_build_object(
               'id', k.id, 'task_type', k.task_type, 'params', k.params, 'attempt', k.attempts,
               'max_attempts', k.max_attempts, 'timeout_s', k.timeout_s,
               'output_prefix', 'outputs/' || k.id || '/' || k.attempts || '/',
               'dependencies', case when k.depends_on = '{}' then '[]' else coalesce((
                   select jsonb_agg(jsonb_build_object('id', d.id, 'task_type', d.task_type,
                                                       'output_location', d.output_location,
                                                       'result_data', d.result_data) order by n.place)
                     from unnest(k.depends_on) with ordinality n (id, place)
                     join public.tasks d on d.id = n.id), '[]') end)
               order by k.priority desc, k.created_at, k.id)
      into v_tasks from taken k;
    v_set := set_config('orchestrator.minded', '', true);
    if p_claim_no % ceil(c_raise_every / sqrt(p_batch))::int = 0 or v_from.lowered > c_lowered then
        perform public.internal_raise_mark(p_worker.pool, p_now, false);
    end if;
    return v_tasks;
end
$$;
