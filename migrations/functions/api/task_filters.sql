-- Which tasks fit a filter: for lists, and for actions on a filter. A filter is {status: a status or a list of them,
-- task_type, tenant, pool, labels: [{key: value}], since}; what is missing or null selects all.

-- Whether a caller with the scope {pools, tenant} sees a task.
create or replace function public.internal_in_scope(p_scope jsonb, p_pool text, p_tenant text) returns boolean
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select (internal_in_scope.p_scope->>'tenant' is null
        or coalesce(internal_in_scope.p_scope->>'tenant' = internal_in_scope.p_tenant, false))
       and (jsonb_typeof(internal_in_scope.p_scope->'pools') is distinct from 'array'
           or coalesce(internal_in_scope.p_scope->'pools' ? internal_in_scope.p_pool, false))
$$;

-- The one place that decides whether a task fits a filter, and whether a caller with this scope sees it.
create or replace function public.internal_fits(
    p_scope jsonb, p_filter jsonb, p_status text, p_task_type text, p_pool text, p_tenant text, p_labels jsonb
) returns boolean
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    return coalesce(p_filter->>'status' is null or p_filter->'status' ? p_status, false)
       and coalesce(p_filter->>'task_type' is null or p_task_type = p_filter->>'task_type', false)
       and coalesce(p_filter->>'pool' is null or p_pool = p_filter->>'pool', false)
       and coalesce(p_filter->>'tenant' is null or p_tenant = p_filter->>'tenant', false)
       and public.internal_in_scope(p_scope, p_pool, p_tenant)
       and not exists (select from jsonb_array_elements(coalesce(nullif(p_filter->'labels', 'null'), '[]')) l (pair)
                        where (p_labels @> l.pair) is not true);
end
$$;

-- The next tasks after a place, newest first, at most so many, whether or not they fit the filter. Open tasks may be
-- older than millions that have ended: if the filter selects open tasks alone and there are few, only those are read.
create or replace function orchestrator.tasks_after(p_filter jsonb, p_at timestamptz, p_id uuid, p_most int)
returns table (id uuid, created_at timestamptz, status text, task_type text, pool text, tenant text, labels jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_sort = on set jit = off set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
declare
    c_few constant int := 20000;
    v_at timestamptz := coalesce(p_at, 'infinity');
    v_id uuid := coalesce(p_id, '00000000-0000-0000-0000-000000000000');
    v_since timestamptz := coalesce((p_filter->>'since')::timestamptz, '-infinity');
    v_ids uuid[];
    v_times timestamptz[];
begin
    if (case jsonb_typeof(p_filter->'status') when 'string' then jsonb_build_array(p_filter->'status')
                                              else p_filter->'status' end) <@ '["Queued", "In Progress"]'
       and not exists (select from orchestrator.live q offset c_few) then
        select array_agg(o.task_id), array_agg(o.created_at) into v_ids, v_times
          from (select q.task_id, q.created_at from orchestrator.live q
                 where q.created_at >= v_since and q.created_at <= v_at and (q.created_at < v_at or q.task_id > v_id)
                 order by q.created_at desc, q.task_id limit p_most) o;
    else
        select array_agg(o.id), array_agg(o.created_at) into v_ids, v_times
          from (select k.id, k.created_at from public.tasks k
                 where k.created_at >= v_since and k.created_at <= v_at and (k.created_at < v_at or k.id > v_id)
                 order by k.created_at desc, k.id limit p_most) o;
    end if;
    return query
    select t.id, a.at, case when coalesce(p.status, t.status::text) = 'Queued' and r.runs then 'In Progress'
                            else coalesce(p.status, t.status::text) end,
           t.task_type::text, coalesce(t.pool, d.pool, 'default')::text, t.tenant::text, t.labels
      from unnest(v_ids, v_times) with ordinality a (id, at, n)
     cross join lateral (select * from public.tasks k where k.id = a.id offset 0) t  -- by its key, each
      left join lateral (select o.status from orchestrator.publications o
                          where o.task_id = a.id and o.no > t.published offset 0) p on true
      left join lateral (select true as runs from orchestrator.live q
                          where q.task_id = a.id and q.state = 'running' and q.nonce is not null
                            and 2 * q.attempt > t.published offset 0) r on true
      left join public.task_types d on d.task_type = t.task_type
     order by a.n;
end
$$;
