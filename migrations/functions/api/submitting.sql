-- How tasks are submitted, and read.

-- Tries once to insert a batch. Raises ORBUSY if another submission took one of its dedupe keys in the meantime.
-- Settings that a task does not name come from the declaration of its type.
create or replace function public.internal_submit(p_tasks jsonb, p_now timestamptz) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_task jsonb;
    v_ref text;
    v_index int := 0;
    v_id uuid;
    v_ids uuid[] := '{}';
    v_new boolean[] := '{}';
    v_ignored text[] := '{}';  -- why a task has no trace, although one was given
    v_keys jsonb := '{}';  -- dedupe key or id in this batch -> the id of its task
    v_depends uuid[];
    v_rows jsonb[] := '{}';
    v_inserted int;
begin
    for v_task in select value from jsonb_array_elements(p_tasks) loop
        perform public.internal_check_task(v_task, v_index);
        v_ignored := array_append(v_ignored, 'traceparent: ' || case
            when jsonb_typeof(v_task->'traceparent') in ('string', 'null')
                then public.internal_traceparent_problem(v_task->>'traceparent')
            when v_task ? 'traceparent' then 'it is not a text' end);
        v_id := public.internal_known_task(v_task, v_ids, v_keys);
        v_new := v_new || (v_id is null);
        v_id := coalesce(v_id, (v_task->>'id')::uuid, gen_random_uuid());
        v_ids := v_ids || v_id;
        if v_task->>'dedupe_key' is not null then
            v_keys := v_keys || jsonb_build_object(v_task->>'dedupe_key', v_id);
        end if;
        if v_new[v_index + 1] then
            v_depends := '{}';
            for v_ref in select value
                           from jsonb_array_elements_text(coalesce(nullif(v_task->'depends_on', 'null'), '[]')) loop
                v_depends := v_depends || public.internal_reference(v_ref, v_ids, v_index);
            end loop;
            v_depends := array(select u.id from unnest(v_depends) with ordinality u (id, n) group by u.id
                                order by min(u.n));
            v_rows := v_rows || (jsonb_strip_nulls(
                v_task - 'params' - case when v_ignored[v_index + 1] is null then '' else 'traceparent' end)
                || jsonb_build_object(
                'id', v_id, 'depends_on', v_depends, 'params', coalesce(nullif(v_task->'params', 'null'), '{}'),
                'at', p_now + v_index * interval '1 microsecond'));  -- tasks are claimed in the order of the batch
        end if;
        v_index := v_index + 1;
    end loop;

    perform orchestrator.enter_users_path();
    insert into public.tasks (id, task_type, params, pool, priority, max_attempts, run_after, depends_on, dedupe_key,
                              timeout_s, tenant, concurrency_key, labels, webhook_url, webhook_progress, traceparent,
                              created_at, updated_at)
    select (r->>'id')::uuid, r->>'task_type', r->'params', r->>'pool',
           coalesce((r->>'priority')::int, 0), (r->>'max_attempts')::int, (r->>'run_after')::timestamptz,
           array(select jsonb_array_elements_text(r->'depends_on')::uuid), r->>'dedupe_key', (r->>'timeout_s')::numeric,
           r->>'tenant', r->>'concurrency_key', r->'labels', r->>'webhook_url', (r->>'webhook_progress')::boolean,
           r->>'traceparent',
           (r->>'at')::timestamptz, p_now
      from unnest(v_rows) r
    on conflict do nothing;
    get diagnostics v_inserted = row_count;
    perform set_config('search_path', 'pg_catalog, pg_temp', true);
    if v_inserted <> cardinality(v_rows) then
        raise exception 'a key was taken meanwhile' using errcode = 'ORBSY';
    end if;
    return jsonb_build_object('tasks', coalesce((
        select jsonb_agg(jsonb_build_object('id', i.id, 'created', i.created)
                         || jsonb_strip_nulls(jsonb_build_object('ignored', i.ignored)) order by i.n)
          from unnest(v_ids, v_new, v_ignored) with ordinality i (id, created, ignored, n)), '[]'));
end
$$;

-- The task that an entry of a batch names, if it is there or in the batch (its ids and keys so far) already.
create or replace function public.internal_known_task(p_task jsonb, p_ids uuid[], p_keys jsonb) returns uuid
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_given constant uuid := (p_task->>'id')::uuid;
    v_id uuid := (p_keys->>(p_task->>'dedupe_key'))::uuid;
begin
    if v_id is null and p_task->>'dedupe_key' is not null then
        select q.task_id into v_id from orchestrator.live q where q.dedupe_key = p_task->>'dedupe_key';
    end if;
    if v_id is null and v_given is not null then
        select t.id into v_id from public.tasks t where t.id = v_given;
    end if;
    return coalesce(v_id, case when v_given = any (p_ids) then v_given end);
end
$$;

create or replace function public.internal_check_task(p_task jsonb, p_index int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_what text := format('task %s', p_index);
    v_key text;
    v_value jsonb;
    v_fine boolean;
begin
    perform public.internal_check_keys(p_task, array['id', 'task_type', 'params', 'pool', 'priority', 'max_attempts',
        'run_after', 'depends_on', 'dedupe_key', 'timeout_s', 'tenant', 'concurrency_key', 'labels', 'webhook_url',
        'webhook_progress', 'traceparent'], v_what);
    if coalesce(p_task->>'task_type', '') = '' then
        perform public.internal_refuse('OR007', v_what || ' has no task_type', '', 'say what kind of work it is');
    end if;
    for v_key, v_value in select key, value from jsonb_each(p_task) loop
        if v_value = 'null' then
            continue;
        end if;
        begin  -- a value that cannot be parsed is refused like one out of bounds
            v_fine := case v_key
                when 'id' then jsonb_typeof(v_value) = 'string' and (v_value #>> '{}')::uuid is not null
                when 'task_type' then jsonb_typeof(v_value) = 'string' and length(v_value #>> '{}') <= 200
                when 'params' then jsonb_typeof(v_value) = 'object' and octet_length(v_value::text) <= 1048576
                              and not public.internal_is_unreadable(v_value)
                              and (octet_length(v_value::text) <= 500000
                                   or public.internal_json_values(v_value::text) <= 500000)
                when 'pool' then jsonb_typeof(v_value) = 'string'
                                 and v_value #>> '{}' ~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$'
                when 'priority' then jsonb_typeof(v_value) = 'number' and (v_value #>> '{}')::int is not null
                when 'max_attempts' then jsonb_typeof(v_value) = 'number' and (v_value #>> '{}')::int between 1 and 100
                when 'run_after' then jsonb_typeof(v_value) = 'string'
                                      and (v_value #>> '{}')::timestamptz between '1900-01-01Z' and '9000-01-01Z'
                when 'depends_on' then jsonb_typeof(v_value) = 'array' and jsonb_array_length(v_value) <= 10000
                when 'dedupe_key' then jsonb_typeof(v_value) = 'string' and length(v_value #>> '{}') between 1 and 500
                when 'timeout_s' then jsonb_typeof(v_value) = 'number'
                                      and (v_value #>> '{}')::numeric between 0.001 and 2592000
                when 'tenant' then jsonb_typeof(v_value) = 'string' and length(v_value #>> '{}') between 1 and 200
                when 'concurrency_key' then jsonb_typeof(v_value) = 'string'
                                            and length(v_value #>> '{}') between 1 and 200
                                            and v_value #>> '{}' !~ '[[:cntrl:]]'
                when 'labels' then public.internal_labels_problem(v_value) is null
                when 'webhook_url' then jsonb_typeof(v_value) = 'string'
                                        and public.internal_webhook_host(v_value #>> '{}') is not null
                when 'webhook_progress' then jsonb_typeof(v_value) = 'boolean'
                when 'traceparent' then true  -- a bad one is ignored
            end;
        exception when data_exception then
            v_fine := false;
        end;
        if not v_fine then
            perform public.internal_refuse('OR007', format('%s: %s is not valid', v_what, v_key),
                case v_key when 'labels' then coalesce(public.internal_labels_problem(v_value), '')
                           when 'webhook_url' then ''  -- its path may be a secret
                           else 'got ' || left(v_value::text, 200) end,
                public.internal_task_rule(v_key));
        end if;
    end loop;
end
$$;

-- The values that a setting of a submitted task may have, in words.
create or replace function public.internal_task_rule(p_key text) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    return case p_key
        when 'id' then 'a uuid'
        when 'task_type' then 'text of at most 200 characters'
        when 'params' then 'a JSON object of at most 1 MiB, 500000 values and 64 levels, '
                           || 'without a number of more than 4000 digits'
        when 'pool' then 'letters, digits, _ and -, at most 63'
        when 'priority' then 'a whole number; higher goes first'
        when 'max_attempts' then 'a whole number from 1 to 100'
        when 'run_after' then 'a time in ISO 8601, with its offset, in the years 1900 to 8999'
        when 'depends_on' then 'a list of at most 10000 task ids, or "#0" for the first task of the batch'
        when 'dedupe_key' then 'text of at most 500 characters'
        when 'tenant' then 'text of 1 to 200 characters'
        when 'concurrency_key' then 'text of 1 to 200 characters, without control characters'
        when 'labels' then public.internal_labels_rule()
        when 'webhook_url' then public.internal_webhook_rule()
        when 'webhook_progress' then 'true or false'
        else 'seconds, at most 2592000'
    end;
end
$$;

-- Resolves one entry of depends_on: a task's id, or "#n" for an earlier entry of the same batch.
create or replace function public.internal_reference(p_reference text, p_ids uuid[], p_index int) returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_id uuid;
begin
    if p_reference ~ '^#[0-9]{1,9}$' then
        if substr(p_reference, 2)::int < p_index then
            return p_ids[substr(p_reference, 2)::int + 1];
        end if;
    elsif p_reference ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
        v_id := p_reference::uuid;
        if v_id = any (p_ids[1:p_index]) or exists (select from public.tasks t where t.id = v_id) then
            return v_id;
        end if;
    end if;
    perform public.internal_refuse('OR007', format('task %s depends on %L, which does not exist',
            p_index, left(p_reference, 100)),
        'a dependency is an existing task, or an entry before it in the batch',
        'submit it first, or name it "#0", "#1", … by its place in the batch');
    return null;
end
$$;

create or replace function public.task_get(p_id uuid, p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object(
        'task', orchestrator.task_json(task_get.p_id),
        'attempts', coalesce((select jsonb_agg(to_jsonb(a.*) order by a.attempt)
                                from public.task_attempts a where a.task_id = task_get.p_id), '[]'))
$$;

-- The newest tasks of a status and a type, as far as they are among the newest 20,000, and the number of all by status,
-- as internal_count_tasks has it.
create or replace function public.task_list(
    p_status text, p_task_type text, p_limit int, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_filter jsonb := jsonb_strip_nulls(jsonb_build_object(
        'type', p_task_type, 'status', case when p_status is not null then jsonb_build_array(p_status) end));
    v_ids uuid[] := (select s.ids from public.internal_select_tasks(v_filter, p_limit) s);
    v_counts jsonb := public.internal_count_tasks(v_filter, public.internal_clock(p_now));
begin
    return jsonb_build_object(
        'tasks', coalesce((select jsonb_agg(orchestrator.task_json(t.id) order by t.created_at desc, t.id)
                             from public.tasks t where t.id = any (v_ids)), '[]'),
        'counts', v_counts->'counts', 'counts_beyond', v_counts->'beyond');
end
$$;
