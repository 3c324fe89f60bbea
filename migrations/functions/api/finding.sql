-- Tasks and workers by what an operator remembers of them: filters for lists, and parts of an id. They change nothing.

-- Tasks that a filter selects, newest first, and the number of all of them by status. The filter is an object of:
--   ids (list), status (list), type, pool, tenant, labels (an object, each must match), since, until (of created_at),
--   before ({created_at, id} of the last row of the page before; such a call counts nothing).
-- Without p_full, rows lack what may be large: params, results and the ids of dependencies.
create or replace function public.task_find(
    p_filter jsonb, p_limit int, p_full boolean, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off
set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_large constant text[] := array['params', 'result_data', 'output_object', 'depends_on'];
    v_filter jsonb := coalesce(p_filter, '{}');
    v_ids uuid[];
    v_status text[];
    v_type text;
    v_pool text;
    v_tenant text;
    v_labels jsonb;
    v_since timestamptz;
    v_until timestamptz;
    v_at timestamptz;
    v_id uuid;
begin
    perform public.internal_check_keys(v_filter,
        array['ids', 'status', 'type', 'pool', 'tenant', 'labels', 'since', 'until', 'before'], 'p_filter');
    v_ids := case when jsonb_typeof(v_filter -> 'ids') = 'array'
                  then array(select jsonb_array_elements_text(v_filter -> 'ids')::uuid) end;
    v_status := case when jsonb_typeof(v_filter -> 'status') = 'array'
                     then array(select jsonb_array_elements_text(v_filter -> 'status')) end;
    v_type := v_filter ->> 'type';
    v_pool := v_filter ->> 'pool';
    v_tenant := v_filter ->> 'tenant';
    v_labels := nullif(v_filter -> 'labels', 'null');
    v_since := coalesce((v_filter ->> 'since')::timestamptz, '-infinity');
    v_until := coalesce((v_filter ->> 'until')::timestamptz, 'infinity');
    v_at := coalesce((v_filter -> 'before' ->> 'created_at')::timestamptz, 'infinity');
    v_id := coalesce((v_filter -> 'before' ->> 'id')::uuid, '00000000-0000-0000-0000-000000000000');
    return jsonb_build_object(
        'now', v_now,
        'tasks', coalesce((
            select jsonb_agg(orchestrator.task_json(t.id) - case when p_full then '{}' else c_large end
                             || jsonb_build_object(
                                    'waits', public.internal_task_waits(orchestrator.current_task(t.id), v_now))
                             order by t.created_at desc, t.id)
              from (select t.id, t.created_at from public.tasks t
                      left join orchestrator.publications p on p.task_id = t.id and p.no > t.published
                      left join public.task_types d on d.task_type = t.task_type
                     where t.created_at >= v_since and t.created_at <= v_until and t.created_at <= v_at
                       and (t.created_at < v_at or t.id > v_id) and (v_ids is null or t.id = any (v_ids))
                       and (v_status is null or coalesce(p.status, t.status::text) = any (v_status))
                       and (v_type is null or t.task_type = v_type)
                       and (v_pool is null or coalesce(t.pool, d.pool, 'default') = v_pool)
                       and (v_tenant is null or t.tenant = v_tenant) and (v_labels is null or t.labels @> v_labels)
                     order by t.created_at desc, t.id
                     limit least(greatest(coalesce(p_limit, 100), 0), 10000)) t), '[]'),
        'counts', case when v_filter ? 'before' then '{}' else coalesce((
            select jsonb_object_agg(c.status, c.n)
              from (select coalesce(p.status, t.status::text) as status, count(*) as n from public.tasks t
                      left join orchestrator.publications p on p.task_id = t.id and p.no > t.published
                      left join public.task_types d on d.task_type = t.task_type
                     where t.created_at >= v_since and t.created_at <= v_until and (v_ids is null or t.id = any (v_ids))
                       and (v_type is null or t.task_type = v_type)
                       and (v_pool is null or coalesce(t.pool, d.pool, 'default') = v_pool)
                       and (v_tenant is null or t.tenant = v_tenant) and (v_labels is null or t.labels @> v_labels)
                     group by 1) c), '{}') end);
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
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object('workers', coalesce((
        select jsonb_agg(to_jsonb(f.*) order by f.exact desc, f.status <> 'terminated' desc, f.created_at desc, f.id)
          from (select w.id, w.status, w.pool, w.pod_id, w.created_at,
                       fleet_match_workers.p_text in (w.id, w.pod_id) as exact
                  from public.workers w
                 where w.fleet = fleet_match_workers.p_fleet and fleet_match_workers.p_text <> ''
                   and (left(w.id, length(fleet_match_workers.p_text)) = fleet_match_workers.p_text
                       or right(w.id, length(fleet_match_workers.p_text)) = fleet_match_workers.p_text
                        or left(w.pod_id, length(fleet_match_workers.p_text)) = fleet_match_workers.p_text)
                 order by fleet_match_workers.p_text in (w.id, w.pod_id) desc nulls last,
                     w.status <> 'terminated' desc, w.created_at desc, w.id
                 limit least(greatest(coalesce(fleet_match_workers.p_limit, 10), 0), 100)) f), '[]'))
$$;

-- Workers that a filter selects, newest first, and the number of all of them by pool and state. The filter is an object
-- of: ended (whether to include ended ones; default: only live ones), pool, status (list), gpu (a part of the type's
-- name, in any case), since (ended ones that ended later). p_limit bounds the ended ones; live ones are always all
-- there, at most 10000.
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
begin
    perform public.internal_check_keys(v_filter, array['ended', 'pool', 'status', 'gpu', 'since'], 'p_filter');
    v_ended := coalesce((v_filter ->> 'ended')::boolean, false);
    v_pool := v_filter ->> 'pool';
    v_status := case when jsonb_typeof(v_filter -> 'status') = 'array'
                     then array(select jsonb_array_elements_text(v_filter -> 'status')) end;
    v_gpu := lower(v_filter ->> 'gpu');
    v_since := coalesce((v_filter ->> 'since')::timestamptz, '-infinity');
    return (
        with chosen as (
            select w.* from public.workers w
             where w.fleet = p_fleet and (w.status <> 'terminated' or v_ended
                 and coalesce(w.terminated_at, w.state_since) >= v_since)
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
                ), '[]')));
end
$$;

-- The pools and task types that rows or the leader's declarations name: {pools: [text], types: [text]}. An operator's
-- filter that names another one is a mistake. It reads all tasks, as an unbounded filter does.
create or replace function public.fleet_names(p_fleet text, p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    with declared as (
        select s.value from public.fleet_settings s where s.fleet = fleet_names.p_fleet and s.name = 'release'
    ), named as (
        select coalesce(t.pool, d.pool, 'default') as pool, t.task_type
          from public.tasks t left join public.task_types d on d.task_type = t.task_type group by 1, 2
        union all select t.pool, t.task_type from public.task_types t where t.fleet = fleet_names.p_fleet
        union all select null, s.task ->> 'task_type' from public.schedules s
        union all select w.pool, null from public.workers w where w.fleet = fleet_names.p_fleet group by w.pool
        union all select substr(s.name, 8), null from public.fleet_settings s
                   where s.fleet = fleet_names.p_fleet and s.name like 'paused:%'
        union all select jsonb_object_keys(d.value -> 'releases'), null from declared d
        union all select null, jsonb_array_elements_text(d.value -> 'task_types') from declared d
    )
    select jsonb_build_object(
        'pools', (select coalesce(jsonb_agg(distinct n.pool), '[]') from named n where n.pool is not null),
        'types', (select coalesce(jsonb_agg(distinct n.task_type), '[]') from named n where n.task_type is not null))
$$;
