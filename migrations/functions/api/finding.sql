-- Tasks and workers by what an operator remembers of them: filters for lists, and parts of an id. They change nothing.

-- Tasks that a filter selects, newest first, and the number of all of them by status, as internal_count_tasks has it:
-- {now, tasks, next, counts, counts_beyond}. The filter is an object of:
--   ids (list), status (list), type, pool, tenant, labels (an object, each must match), since, until (of created_at),
--   before ({created_at, id} of the last row of the page before, or `next`; such a call counts nothing).
-- A call looks at 20,000 tasks at most. If it stops there, `next` says where to continue; else it is null.
-- Without p_full, rows lack what may be large: params, results and the ids of dependencies.
create or replace function public.task_find(
    p_filter jsonb, p_limit int, p_full boolean, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_large constant text[] := array['params', 'result_data', 'output_object', 'depends_on'];
    v_filter jsonb := coalesce(p_filter, '{}');
    v_counts jsonb := '{"counts": {}, "beyond": []}';
    v_found record;
begin
    perform public.internal_check_keys(v_filter,
        array['ids', 'status', 'type', 'pool', 'tenant', 'labels', 'since', 'until', 'before'], 'p_filter');
    if not v_filter ? 'before' then
        v_counts := public.internal_count_tasks(v_filter, v_now);
    end if;
    v_found := public.internal_select_tasks(v_filter, p_limit);
    return jsonb_build_object(
        'now', v_now,
        'tasks', coalesce((
            select jsonb_agg(orchestrator.task_json(t.id) - case when p_full then '{}' else c_large end
                             || jsonb_build_object(
                                    'waits', public.internal_task_waits(orchestrator.current_task(t.id), v_now))
                             order by t.created_at desc, t.id)
              from public.tasks t where t.id = any (v_found.ids)), '[]'),
        'next', v_found.next,
        'counts', v_counts->'counts', 'counts_beyond', v_counts->'beyond');
end
$$;

-- The first so many tasks that a filter selects, as task_find() looks for them, and where to continue. Open tasks may
-- be older than many that have ended: if there are few, they are all looked at.
create or replace function public.internal_select_tasks(
    p_filter jsonb, p_limit int, out ids uuid[], out next jsonb
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    c_looked_at constant int := 20000;
    v_limit int := least(greatest(coalesce(p_limit, 100), 0), 10000);
    v_open uuid[];
begin
    if p_filter->'status' <@ '["Queued", "In Progress"]' and jsonb_typeof(p_filter->'ids') is distinct from 'array' then
        v_open := array(select q.task_id from orchestrator.live q
                         where p_filter->'status' ? 'Queued' or q.state = 'running' limit c_looked_at);
        if cardinality(v_open) < c_looked_at then
            p_filter := p_filter || jsonb_build_object('ids', v_open);
        end if;
    end if;
    ids := array(select f.id from public.internal_find_tasks(p_filter, c_looked_at, v_limit) f);
    if cardinality(ids) < v_limit then
        next := public.internal_next_task(p_filter, c_looked_at);
    end if;
end
$$;

-- Of the newest so many tasks of a filter's times and ids, the first p_limit that it selects, newest first.
create or replace function public.internal_find_tasks(p_filter jsonb, p_looked_at int, p_limit int default null)
returns table (id uuid, status text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off
set enable_seqscan = off set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
declare
    v_ids uuid[] := case when jsonb_typeof(p_filter->'ids') = 'array'
                         then array(select jsonb_array_elements_text(p_filter->'ids')::uuid) end;
    v_status text[] := case when jsonb_typeof(p_filter->'status') = 'array'
                            then array(select jsonb_array_elements_text(p_filter->'status')) end;
    v_labels jsonb := nullif(p_filter->'labels', 'null');
    v_since timestamptz := coalesce((p_filter->>'since')::timestamptz, '-infinity');
    v_at timestamptz := coalesce((p_filter->'before'->>'created_at')::timestamptz, 'infinity');
    v_until timestamptz := least(coalesce((p_filter->>'until')::timestamptz, 'infinity'), v_at);
    v_id uuid := coalesce((p_filter->'before'->>'id')::uuid, '00000000-0000-0000-0000-000000000000');
begin
    return query
    select t.id, coalesce(p.status, t.status::text)
      from (select k.* from public.tasks k
             where k.created_at >= v_since and k.created_at <= v_until and (k.created_at < v_at or k.id > v_id)
               and (v_ids is null or k.id = any (v_ids))
             order by k.created_at desc, k.id limit p_looked_at) t
      left join lateral (select o.status from orchestrator.publications o
                          where o.task_id = t.id and o.no > t.published) p on true
     where (v_status is null or coalesce(p.status, t.status::text) = any (v_status))
       and (p_filter->>'type' is null or t.task_type = p_filter->>'type')
       and (p_filter->>'pool' is null or orchestrator.pool_of(t.*) = p_filter->>'pool')
       and (p_filter->>'tenant' is null or t.tenant = p_filter->>'tenant')
       and (v_labels is null or t.labels @> v_labels)
     order by t.created_at desc, t.id limit p_limit;
end
$$;

-- {created_at, id} of the last task at which internal_find_tasks() looks; null if it looks at all.
create or replace function public.internal_next_task(p_filter jsonb, p_looked_at int) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off
set enable_seqscan = off set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
declare
    v_since timestamptz := coalesce((p_filter->>'since')::timestamptz, '-infinity');
    v_at timestamptz := coalesce((p_filter->'before'->>'created_at')::timestamptz, 'infinity');
    v_until timestamptz := least(coalesce((p_filter->>'until')::timestamptz, 'infinity'), v_at);
    v_id uuid := coalesce((p_filter->'before'->>'id')::uuid, '00000000-0000-0000-0000-000000000000');
begin
    if jsonb_typeof(p_filter->'ids') = 'array' then
        return null;
    end if;
    return (select jsonb_build_object('created_at', t.created_at, 'id', t.id)
              from (select k.created_at, k.id from public.tasks k
                     where k.created_at >= v_since and k.created_at <= v_until and (k.created_at < v_at or k.id > v_id)
                     order by k.created_at desc, k.id offset p_looked_at - 1 limit 1) t);
end
$$;

-- The tasks that a filter selects by status, whatever status it names: {counts, beyond}. It counts among the newest
-- 10,000 tasks of the filter's times; if there are more, `beyond` names every status: there may be more of each.
-- Without a filter, Queued and In Progress are exact up to 10,000 of each pool and kind.
create or replace function public.internal_count_tasks(p_filter jsonb, p_now timestamptz) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    c_most constant int := 10000;
    v_filter jsonb := p_filter - 'status';
    v_counts jsonb;
    v_queued bigint;
    v_is_beyond boolean;
    v_running bigint := (select count(*) from orchestrator.live q where q.state = 'running');
begin
    select coalesce(jsonb_object_agg(c.status, c.n), '{}') into v_counts
      from (select f.status, count(*) as n from public.internal_find_tasks(v_filter, c_most) f group by 1) c;
    if public.internal_next_task(v_filter, c_most + 1) is null then
        return jsonb_build_object('counts', v_counts, 'beyond', '[]'::jsonb);
    elsif v_filter <> '{}' then
        return jsonb_build_object('counts', v_counts,
                                  'beyond', '["Queued", "In Progress", "Complete", "Failed", "Cancelled"]'::jsonb);
    end if;
    select coalesce(sum(d.total), 0), coalesce(bool_or(c_most in (d.dependencies, d.limits, d.scheduled)
                                                       or d.ready >= c_most), false)
      into v_queued, v_is_beyond from orchestrator.demand(p_now) d;
    v_counts := v_counts - array['Queued', 'In Progress']
        || case when v_queued > 0 then jsonb_build_object('Queued', v_queued) else '{}' end
        || case when v_running > 0 then jsonb_build_object('In Progress', v_running) else '{}' end;
    return jsonb_build_object('counts', v_counts, 'beyond',
        '["Complete", "Failed", "Cancelled"]'::jsonb || case when v_is_beyond then '["Queued"]' else '[]' end::jsonb);
end
$$;

-- What a queued task waits for, NULL for any other: {kind, …}. kind: limit, dependencies (of, unmet), retry (until,
-- code, after: the attempt that failed), scheduled (until), worker.
create or replace function public.internal_task_waits(p_task public.tasks, p_now timestamptz) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_live orchestrator.live;
begin
    select * into v_live from orchestrator.live q where q.task_id = p_task.id and q.state <> 'running';
    if not found then
        return null;
    elsif v_live.state in ('waits_for_key', 'waits_for_type') then
        return public.internal_limit_waits(v_live);
    elsif v_live.state = 'waits_for_tasks' then
        return jsonb_build_object('kind', 'dependencies', 'of', cardinality(p_task.depends_on), 'unmet', (
            select count(*) from orchestrator.edges e where e.task_id = v_live.task_id and not e.is_met));
    elsif v_live.run_after > p_now and p_task.failure_code is not null then
        return jsonb_build_object('kind', 'retry', 'until', v_live.run_after, 'code', p_task.failure_code,
                                  'after', v_live.attempt - v_live.uncounted);
    elsif v_live.run_after > p_now then
        return jsonb_build_object('kind', 'scheduled', 'until', v_live.run_after);
    end if;
    return jsonb_build_object('kind', 'worker');
end
$$;

-- The tasks whose id begins with these hexadecimal digits (hyphens do not count), newest first: {tasks: [{id,
-- task_type, status, created_at}]}. The digits are a range of the primary key.
create or replace function public.task_match(p_prefix text, p_limit int, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off
set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
declare
    v_digits text := replace(lower(coalesce(p_prefix, '')), '-', '');
begin
    if v_digits !~ '^[0-9a-f]{1,32}$' then
        return jsonb_build_object('tasks', '[]'::jsonb);
    end if;
    return jsonb_build_object('tasks', coalesce((
        select jsonb_agg(to_jsonb(f.*) order by f.created_at desc, f.id)
          from (select t.id, t.task_type, t.status, t.created_at from public.tasks t
                 where t.id between rpad(v_digits, 32, '0')::uuid and rpad(v_digits, 32, 'f')::uuid
                 order by t.id limit least(greatest(coalesce(p_limit, 10), 0), 100)) f), '[]'));
end
$$;

-- The workers of a fleet whose id begins or ends with a text, or whose pod has it as its id or the beginning of its id;
-- live ones first, then the newest: {workers: [{id, status, pool, pod_id, exact}]}. exact: the whole id, or pod id.
create or replace function public.fleet_match_workers(
    p_fleet text, p_text text, p_limit int, p_now timestamptz default null
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off
set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
declare
    c_most constant int := 1000;  -- of each kind of match
    v_end constant text := chr(1114111);  -- no id has it
begin
    if coalesce(p_text, '') = '' then
        return jsonb_build_object('workers', '[]'::jsonb);
    end if;
    return jsonb_build_object('workers', coalesce((
        select jsonb_agg(to_jsonb(f.*) order by f.exact desc, f.status <> 'terminated' desc, f.created_at desc, f.id)
          from (select w.id, w.status, w.pool, w.pod_id, w.created_at, (p_text in (w.id, w.pod_id)) is true as exact
                  from public.workers w
                 where w.fleet = p_fleet and w.id in (
                       select id from public.workers x where x.id = p_text
                       union all
                       (select id from public.workers x
                         where x.id collate "C" >= p_text and x.id collate "C" < p_text || v_end limit c_most)
                       union all
                       (select id from public.workers x
                         where reverse(x.id) collate "C" >= reverse(p_text)
                           and reverse(x.id) collate "C" < reverse(p_text) || v_end limit c_most)
                       union all
                       (select id from public.workers x
                         where x.pod_id collate "C" >= p_text and x.pod_id collate "C" < p_text || v_end limit c_most))
                 order by exact desc, w.status <> 'terminated' desc, w.created_at desc, w.id
                 limit least(greatest(coalesce(p_limit, 10), 0), 100)) f), '[]'));
end
$$;

-- Workers that a filter selects, newest first, and the number of all of them by pool and state. The filter is an object
-- of: ended (whether to include ended ones; default: only live ones), pool, status (list), gpu (a part of the type's
-- name, in any case), since (ended ones that ended later). p_limit bounds the ended ones; live ones are always all
-- there, at most 10000. Of ended ones, it looks at the newest 10,000; `beyond`: whether there are more.
create or replace function public.fleet_find_workers(
    p_fleet text, p_filter jsonb, p_limit int, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off
set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_filter jsonb := coalesce(p_filter, '{}');
    v_ended boolean;
    v_pool text;
    v_status text[];
    v_gpu text;
    v_since timestamptz;
    c_live constant int := 10000;
    c_ended constant int := 10000;
begin
    perform public.internal_check_keys(v_filter, array['ended', 'pool', 'status', 'gpu', 'since'], 'p_filter');
    v_ended := coalesce((v_filter ->> 'ended')::boolean, false);
    v_pool := v_filter ->> 'pool';
    v_status := case when jsonb_typeof(v_filter -> 'status') = 'array'
                     then array(select jsonb_array_elements_text(v_filter -> 'status')) end;
    v_gpu := lower(v_filter ->> 'gpu');
    v_since := coalesce((v_filter ->> 'since')::timestamptz, '-infinity');
    return (
        with seen as (
            select * from public.workers w where w.fleet = p_fleet and w.status <> 'terminated'
            union all
            (select * from public.workers w where w.fleet = p_fleet and w.status = 'terminated' and v_ended
              order by w.created_at desc, w.id limit c_ended)
        ), chosen as materialized (
            select w.id, w.pool, w.status, w.created_at from seen w
             where (w.status <> 'terminated' or coalesce(w.terminated_at, w.state_since) >= v_since)
               and (v_pool is null or w.pool = v_pool) and (v_status is null or w.status = any (v_status))
               and (v_gpu is null or position(v_gpu in lower(coalesce(w.gpu_type, w.instance_type))) > 0)
        ), shown as (
            (select c.id from chosen c where c.status <> 'terminated' order by c.created_at desc, c.id limit c_live)
            union all
            (select c.id from chosen c where c.status = 'terminated' order by c.created_at desc, c.id
              limit least(greatest(coalesce(p_limit, 200), 0), 10000))
        )
        select jsonb_build_object(
            'now', v_now,
            'workers', coalesce((
                select jsonb_agg(public.internal_worker_report(w.*, v_now) order by w.created_at desc, w.id)
                  from public.workers w where w.id in (select s.id from shown s)), '[]'),
            'counts', coalesce((
                select jsonb_agg(to_jsonb(n.*) order by n.pool, n.status)
                  from (select c.pool, c.status, count(*) as workers from chosen c group by c.pool, c.status) n
                ), '[]'),
            'beyond', v_ended and (select count(*) from seen s where s.status = 'terminated') = c_ended));
end
$$;

-- The pools and task types that rows or the leader's declarations name: {pools: [text], types: [text]}. An operator's
-- filter that names another one is a mistake. Those of tasks are the ones that the leader has collected, and those of
-- the newest 5,000 tasks.
create or replace function public.fleet_names(p_fleet text, p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    with declared as (
        select s.value from public.fleet_settings s where s.fleet = fleet_names.p_fleet and s.name = 'release'
    ), named as (
        select coalesce(t.pool, d.pool, 'default') as pool, t.task_type
          from (select k.pool, k.task_type from public.tasks k order by k.created_at desc limit 5000) t
          left join public.task_types d on d.task_type = t.task_type
        union all select n.pool, n.task_type from orchestrator.task_names n
        union all select t.pool, t.task_type from public.task_types t where t.fleet = fleet_names.p_fleet
        union all select null, s.task ->> 'task_type' from public.schedules s
        union all select p.pool, null from public.internal_worker_pools(fleet_names.p_fleet) p (pool)
        union all select substr(s.name, 8), null from public.fleet_settings s
                   where s.fleet = fleet_names.p_fleet and s.name like 'paused:%'
        union all select substr(s.name, 9), null from public.fleet_settings s
                   where s.fleet = fleet_names.p_fleet and s.name like any (array['limited:%', 'scaling:%'])
        union all select jsonb_object_keys(d.value -> 'releases'), null from declared d
        union all select null, jsonb_array_elements_text(d.value -> 'task_types') from declared d
    )
    select jsonb_build_object(
        'pools', (select coalesce(jsonb_agg(distinct n.pool), '[]') from named n where n.pool is not null),
        'types', (select coalesce(jsonb_agg(distinct n.task_type), '[]') from named n where n.task_type is not null))
$$;

-- The pools that workers of a fleet have or had, from one to the next in the index, however many workers each has.
create or replace function public.internal_worker_pools(p_fleet text) returns setof text
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
    with recursive pools (pool) as (
        (select w.pool from public.workers w where w.fleet = internal_worker_pools.p_fleet order by w.pool limit 1)
        union all
        select (select w.pool from public.workers w
                 where w.fleet = internal_worker_pools.p_fleet and w.pool > p.pool order by w.pool limit 1)
          from pools p where p.pool is not null
    )
    select p.pool from pools p where p.pool is not null
$$;
