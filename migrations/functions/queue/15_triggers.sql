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
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_live uuid[];
    v_ended uuid[];
    v_problem text;
begin
    select min(orchestrator.row_problem(a.*)) into v_problem from added a
     where orchestrator.may_have_problem(a.*);
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
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_hashjoin = on set jit = off as $$
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
    select min(case when b.id is null or b.published <> c.published then concat_ws(E'\n',
                        'id and published of a task cannot be changed', format('task %s', coalesce(b.id, c.id)),
                        'insert another task')
                    else orchestrator.row_problem(c.*) end)
      into v_problem
      from changed c left join was b on b.id = c.id
     where b.id is null or b.published <> c.published or orchestrator.may_have_problem(c.*) and (
           b.status, b.pool, b.max_attempts, b.attempts, b.params, b.labels, b.webhook_url, b.tenant, b.concurrency_key,
           b.depends_on, b.timeout_s, b.task_type, b.result_data, b.progress, b.output_location) is distinct from (
           c.status, c.pool, c.max_attempts, c.attempts, c.params, c.labels, c.webhook_url, c.tenant, c.concurrency_key,
           c.depends_on, c.timeout_s, c.task_type, c.result_data, c.progress, c.output_location);
    perform set_config('enable_nestloop', v_before, true);
    if v_problem is not null then
        perform public.internal_refuse('OR007', split_part(v_problem, E'\n', 1), split_part(v_problem, E'\n', 2),
                                       split_part(v_problem, E'\n', 3));
    end if;
    v_ids := array(select c.id from changed c);
    -- Until the user's transaction ends, no claim takes a task that it has changed.
    perform from orchestrator.live q where q.task_id = any (v_ids) and q.state <> 'running'
      order by q.task_id for update;
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
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
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
            -- some edges are not there yet
            or (select a.ended_at is null from orchestrator.audits a where a.rel = 'adoption'))
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
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
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
