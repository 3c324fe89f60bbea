-- Ends many attempts of one worker in one commit: for tasks that are shorter than a commit. Of each it says what
-- worker_complete would have said. Results alone: an output is a file somewhere, and goes through worker_complete, where
-- somebody looks for it first.
create function public.worker_complete_many(p_worker_id text, p_nonce text, p_results jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = ''
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_log_last bigint := (v_worker.log_bytes #>> array[v_worker.nonce, 'handler'])::bigint;
    v_held uuid[];
    v_first timestamptz;
    c_moment constant interval := '20 milliseconds';  -- as in worker_complete
begin
    perform public.internal_check_size(p_results, 1048576, 'p_results');
    if jsonb_typeof(p_results) is distinct from 'array' or jsonb_array_length(p_results) not between 1 and 100
       or exists (select from jsonb_array_elements(p_results) r
                   where case when jsonb_typeof(r) <> 'object' then true else
                             coalesce(r->>'task_id', '') !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                             or coalesce(r->>'attempt', '') !~ '^[0-9]{1,9}$'
                             or r - array['task_id', 'attempt', 'result_data'] <> '{}' end) then
        perform public.internal_refuse('OR007', 'p_results is a list of 1 to 100 {task_id, attempt, result_data}');
    end if;
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'outcomes', (select jsonb_agg('fenced'::text) from jsonb_array_elements(p_results)));
    end if;
    perform set_config('orchestrator.minded', 'on', true);  -- who waits and who listens are seen to below
    with done as (
        -- In the order in which a heartbeat locks them. The case keeps the index of what runs out of it, which is full of
        -- what has just ended.
        update public.tasks t
           set status = 'Complete', output_location = null, result_data = r.result_data,
               generation_processed_at = v_now, lease_expires_at = null, error_message = null, failure_code = null,
               updated_at = v_now
          from (select (e->>'task_id')::uuid as id, (e->>'attempt')::int as attempt,
                       nullif(e->'result_data', 'null') as result_data
                  from jsonb_array_elements(p_results) e order by 1) r
         where t.id = r.id and t.attempts = r.attempt
           and case when t.status = 'In Progress' then t.worker_id end = p_worker_id
        returning t.id, t.attempts
    ), ended as (
        update public.task_attempts a set ended_at = v_now, outcome = 'complete', log_last = v_log_last
          from done d where a.task_id = d.id and a.attempt = d.attempts
        returning a.task_id, a.started_at
    )
    select array_agg(e.task_id), min(e.started_at) into v_held, v_first from ended e;
    perform set_config('orchestrator.minded', '', true);
    if v_held is not null then
        perform public.internal_settle_dependants(v_held);
        if v_first < v_now - c_moment or public.internal_wanted(v_worker) <> 'run' then
            perform pg_notify('orchestrator_fleet', p_worker_id);
        end if;
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

do $$
declare
    v_role name;
    c_function constant text := 'public.worker_complete_many(text, text, jsonb, timestamptz)';
begin
    execute format('revoke all on function %s from public', c_function);
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
        execute format('revoke all on function %s from %I', c_function, v_role);
    end loop;
    execute format('grant execute on function %s to gpu_worker', c_function);
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        execute format('grant execute on function %s to service_role', c_function);
    end if;
end
$$;
