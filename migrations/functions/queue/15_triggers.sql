-- What runs in users' statements on `tasks`: one trigger for each kind of statement.

-- Whether the statement that fired a trigger is a publication of ours.
create or replace function orchestrator.is_publication() returns boolean
language plpgsql stable as $$
begin
    return pg_catalog.current_setting('orchestrator.publishing', true)
           operator(pg_catalog.=) (pg_catalog.pg_trigger_depth() operator(pg_catalog.-) 1)::pg_catalog.text;
end
$$;

create or replace function orchestrator.tasks_inserted() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    v_live uuid[];
    v_ended uuid[];
    v_problem text;
begin
    select min(orchestrator.row_problem(a.*)) into v_problem from added a
     where pg_column_size(a.params) > 200 or octet_length(a.params::text) > 200  -- what is too deep or long is larger
        or a.labels is not null or a.webhook_url is not null or a.tenant is not null or a.concurrency_key is not null
        or a.depends_on <> '{}' or a.timeout_s is not null or length(a.task_type) > 200
        or pg_column_size(a.result_data) > 65536 or pg_column_size(a.progress) > 65536
        or octet_length(a.output_location) > 65536
        or a.status::text not in ('Queued', 'In Progress', 'Complete', 'Failed', 'Cancelled')
        or a.pool !~ '^[A-Za-z0-9][A-Za-z0-9_-]*$' or octet_length(a.pool) > 63 or a.max_attempts < 1 or a.attempts < 0;
    if v_problem is not null then
        perform public.internal_refuse('OR007', split_part(v_problem, E'\n', 1), split_part(v_problem, E'\n', 2),
                                       split_part(v_problem, E'\n', 3));
    end if;
    select array_agg(a.id) filter (where a.status in ('Queued', 'In Progress')),
           array_agg(a.id) filter (where a.status not in ('Queued', 'In Progress')
                                     and exists (select from orchestrator.edges e where e.needs = a.id))
      into v_live, v_ended from added a;
    if v_live is not null then
        perform orchestrator.insert_live(v_live);
    end if;
    if v_ended is not null then
        perform orchestrator.reconcile(v_ended);
    end if;
    -- If a task with this id was Complete when it was deleted, its result was kept.
    v_live := array(select r.id from added a join public.task_results r on r.id = a.id where a.status <> 'Complete');
    if v_live <> '{}' then
        perform orchestrator.unmeet(v_live, false);
    end if;
    return null;
end
$$;

create or replace function orchestrator.tasks_updated() returns trigger
language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_hashjoin = on set jit = off as $$
#variable_conflict use_variable
declare
    v_before constant text := current_setting('enable_nestloop');
    v_ids uuid[];
    v_problem text;
begin
    if orchestrator.is_publication() then
        return null;
    end if;
    -- The plan of the first statement is kept, and a nested loop would compare each row of a large one with all others.
    perform set_config('enable_nestloop', 'off', true);
    select min(orchestrator.row_problem(c.*)) into v_problem
      from changed c left join was b on b.id = c.id
     where (pg_column_size(c.params) > 200 or octet_length(c.params::text) > 200 or c.labels is not null or c.webhook_url is not null or c.tenant is not null
            or c.concurrency_key is not null or cardinality(c.depends_on) > 0 or c.timeout_s is not null
            or length(c.task_type) > 200 or pg_column_size(c.result_data) > 65536 or pg_column_size(c.progress) > 65536
            or octet_length(c.output_location) > 65536
            or c.status::text not in ('Queued', 'In Progress', 'Complete', 'Failed', 'Cancelled')
            or c.pool !~ '^[A-Za-z0-9][A-Za-z0-9_-]*$' or octet_length(c.pool) > 63 or c.max_attempts < 1 or c.attempts < 0)
       and (b.status, b.pool, b.max_attempts, b.attempts, b.params, b.labels, b.webhook_url, b.tenant, b.concurrency_key,
            b.depends_on, b.timeout_s, b.task_type, b.result_data, b.progress, b.output_location)
           is distinct from (c.status, c.pool, c.max_attempts, c.attempts, c.params, c.labels, c.webhook_url, c.tenant,
                             c.concurrency_key, c.depends_on, c.timeout_s, c.task_type, c.result_data, c.progress, c.output_location);
    perform set_config('enable_nestloop', v_before, true);
    if v_problem is not null then
        perform public.internal_refuse('OR007', split_part(v_problem, E'\n', 1), split_part(v_problem, E'\n', 2),
                                       split_part(v_problem, E'\n', 3));
    end if;
    v_ids := array(select c.id from changed c union select b.id from was b);  -- an id may have changed, too
    -- Until the user's transaction ends, no claim takes a task that it has changed.
    perform from orchestrator.live q where q.task_id = any (v_ids) and q.state <> 'running' order by q.task_id for update;
    -- A program of the user's shows that it lives.
    update orchestrator.live q set progress_at = public.internal_now()
     where q.task_id = any (v_ids) and q.state = 'running' and q.nonce is null;
    v_ids := array(select d.id from orchestrator.differences d where d.id = any (v_ids));
    if v_ids <> '{}' then
        perform orchestrator.reconcile(v_ids);
    end if;
    return null;
end
$$;

create or replace function orchestrator.tasks_deleted() returns trigger
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_ids uuid[];
begin
    insert into public.task_results (id, task_type, output_location, result_data, output_object, deleted_at)
    select r.id, r.task_type, coalesce(p.output_location, r.output_location), coalesce(p.result_data, r.result_data),
           coalesce(p.output_object, r.output_object), public.internal_now()
      from removed r
      left join lateral (select * from orchestrator.publications l where l.task_id = r.id offset 0) p on true
     where coalesce(p.status, r.status::text) = 'Complete'
       and ((select true from orchestrator.edges e where e.needs = r.id limit 1)  -- by its key, each
            or (select a.ended_at is null from orchestrator.audits a where a.rel = 'adoption'))  -- some edges are not there yet
    on conflict (id) do update
       set output_location = excluded.output_location, result_data = excluded.result_data,
           output_object = excluded.output_object, deleted_at = excluded.deleted_at;
    v_ids := array(select r.id from removed r
                    where (select true from orchestrator.live q where q.task_id = r.id)
                       or (select true from orchestrator.publications p where p.task_id = r.id)
                       or (select true from orchestrator.edges e where e.task_id = r.id limit 1));
    if v_ids <> '{}' then
        perform orchestrator.reconcile(v_ids);
    end if;
    return null;
end
$$;

create or replace function orchestrator.tasks_truncated() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
begin
    perform orchestrator.end_by_hand(q.*, 'lost', null) from orchestrator.live q where q.state = 'running';
    delete from orchestrator.live;
    delete from orchestrator.edges;
    delete from orchestrator.publications;
    delete from public.task_results;
    return null;
end
$$;

-- What is wrong with a task that no agent could read, or that would end every list of tasks: what, why and how to fix it, a
-- line each; null for nothing.
create or replace function orchestrator.row_problem(p_task public.tasks) returns text
language plpgsql immutable security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    c_params_bytes constant int := 1048576;
    c_values constant int := 500000;  -- as many as a claim carries
    c_result_bytes constant int := 16777216;
    v_bytes int := octet_length(p_task.params::text);
begin
    return case
        when p_task.status::text not in ('Queued', 'In Progress', 'Complete', 'Failed', 'Cancelled') then concat_ws(E'\n',
            'status is not valid', format('got %L', left(p_task.status::text, 100)),
            'Queued, In Progress, Complete, Failed or Cancelled')
        when p_task.pool !~ '^[A-Za-z0-9][A-Za-z0-9_-]*$' or octet_length(p_task.pool) > 63 then concat_ws(E'\n',
            'pool is not valid', format('got %s', left(to_json(p_task.pool)::text, 100)),
            'letters, digits, _ and -, at most 63, or NULL for the pool of its type')
        when p_task.max_attempts < 1 or p_task.attempts < 0 then concat_ws(E'\n', 'max_attempts or attempts is not valid',
            format('got %s and %s', p_task.max_attempts, p_task.attempts), 'at least 1 and 0')
        when p_task.timeout_s not between 0.001 and 2592000 then concat_ws(E'\n', 'timeout_s is not valid',
            format('got %s', p_task.timeout_s), 'seconds, at most 2592000, or NULL for none')
        when array_position(p_task.depends_on, null) is not null then concat_ws(E'\n', 'depends_on contains NULL', '',
            'ids of tasks, or {} for none')
        when v_bytes > c_params_bytes then concat_ws(E'\n', 'params is too large',
            format('%s bytes, the limit is %s', v_bytes, c_params_bytes), 'upload it and pass its location')
        when v_bytes > c_values and public.internal_json_values(p_task.params::text) > c_values then concat_ws(E'\n',
            'params has too many values', format('the limit is %s values and keys', c_values),
            'upload it and pass its location')
        when public.internal_is_unreadable(p_task.params) then concat_ws(E'\n', 'params cannot be read by a worker',
            'it is nested deeper than 64 levels, or has a number of more than 4000 digits', 'make it flatter')
        when cardinality(p_task.depends_on) > 10000 or length(p_task.task_type) > 200 then concat_ws(E'\n',
            'depends_on or task_type is too long', 'the limits are 10000 ids and 200 letters', '')
        when length(p_task.tenant) not between 1 and 200 then concat_ws(E'\n', 'tenant is not valid',
            format('it has %s characters', length(p_task.tenant)), 'text of 1 to 200 characters, or NULL for none')
        when length(p_task.concurrency_key) not between 1 and 200 or p_task.concurrency_key ~ '[[:cntrl:]]' then concat_ws(E'\n',
            'concurrency_key is not valid', format('it has %s characters', length(p_task.concurrency_key)),
            'text of 1 to 200 characters without control characters, or NULL for none')
        when p_task.labels is not null and public.internal_labels_problem(p_task.labels) is not null then concat_ws(E'\n',
            'labels are not valid', public.internal_labels_problem(p_task.labels), public.internal_labels_rule())
        when p_task.webhook_url is not null and public.internal_webhook_host(p_task.webhook_url) is null then concat_ws(E'\n',
            'webhook_url is not valid', '', public.internal_webhook_rule())
        when octet_length(p_task.result_data::text) > c_result_bytes or octet_length(p_task.progress::text) > c_result_bytes
            then concat_ws(E'\n', 'result_data or progress is too large',
                           format('the limit is %s MiB', c_result_bytes / 1048576), 'upload it and store its location')
        when octet_length(p_task.output_location) > 65536 then concat_ws(E'\n', 'output_location is too large',
            format('%s bytes, the limit is 65536', octet_length(p_task.output_location)), 'store an address')
    end;
end
$$;
