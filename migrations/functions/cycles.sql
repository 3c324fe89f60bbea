-- Queued tasks that wait for each other: none of them can ever run, so they fail.

-- Ends tasks that wait for each other: those that lead to one of these tasks, or all if null. If there are more than
-- `c_most`, the hourly pass over all tasks does it.
create or replace function public.internal_settle_cycles(p_ids uuid[]) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_most constant int := 10000;
    v_ids uuid[];
    v_lock record;
begin
    if p_ids is null then
        v_ids := array(select t.id from public.tasks t where t.blocked and t.status = 'Queued');
    elsif public.internal_dependants(p_ids) is null then
        return;  -- no task waits for them
    else
        with recursive needed (id) as (
            select unnest(p_ids)
            union
            select n.id
              from needed d cross join lateral (  -- limited: one row each, by its key, whatever the planner expects
                  select t.depends_on from public.tasks t where t.id = d.id and t.blocked and t.status = 'Queued' limit 1) t
              cross join unnest(t.depends_on) n (id)
        )
        select array_agg(l.id) into v_ids from (select d.id from needed d limit c_most + 1) l;
        if cardinality(v_ids) > c_most then
            return;
        end if;
    end if;
    v_ids := public.internal_stuck(v_ids);
    if v_ids <> '{}' then
        select * into v_lock from public.internal_lock_queued(v_ids, 1);
        if v_lock.locked <> '{}' then
            perform public.internal_settle_each(true, v_lock.locked, '{}');
        end if;
    end if;
end
$$;

-- Ends tasks that wait for each other. The caller has locked them.
create or replace function public.internal_end_cycle(p_ids uuid[]) returns void
language sql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
    update public.tasks t
       set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_CYCLE',
           error_message = public.internal_message(format(
               'It waits for task %s, and these tasks wait for each other: none can ever run', t.depends_on[1]))
     where t.id = any (internal_end_cycle.p_ids) and t.status = 'Queued' and t.blocked
$$;

-- Returns which of these waiting tasks can never run, because each task that they need is one of them. All others need
-- a task outside the set, or a task that does: they are reached from there along the dependencies, each once.
create or replace function public.internal_stuck(p_ids uuid[]) returns uuid[]
language plpgsql stable security definer set search_path = '' set enable_seqscan = off set enable_nestloop = off
set enable_mergejoin = off set enable_hashjoin = on set jit = off as $$
#variable_conflict use_variable
declare
    v_ids uuid[];
    v_reached int[];  -- places in v_ids; each is followed once
    v_is_reached boolean[];
    v_to int[];  -- places of dependants; those of v_ids[n] begin at v_first[n]
    v_first int[];
    v_place int;
    v_next int := 1;
begin
    -- Only arrays and lists of this size are joined: hashed with the table, all tasks would be read.
    with edges (id, needs) as materialized (
        select t.id, n.id
          from (select d.* from public.tasks d where d.id = any (p_ids) offset 0) t cross join unnest(t.depends_on) n (id)
         where t.blocked and t.status = 'Queued'
    ), needed (ids) as materialized (
        select array_agg(distinct e.needs) from edges e
    ), found (id, status) as materialized (
        select d.id, d.status from public.tasks d where d.id = any ((select n.ids from needed n)::uuid[])
    ), closed (id) as materialized (  -- complete ones
        select f.id from found f where f.status = 'Complete'
        union all
        select r.id from public.task_results r
         where r.id = any ((select n.ids from needed n)::uuid[]) and r.id not in (select f.id from found f)
    ), open (id, needs) as materialized (
        select e.id, e.needs from edges e left join closed c on c.id = e.needs where c.id is null
    ), placed (id, n) as materialized (
        select o.id, (row_number() over (order by o.id))::int from (select distinct o.id from open o) o
    ), follows (needs, id) as materialized (
        select n.n, p.n from open o join placed p on p.id = o.id left join placed n on n.id = o.needs
    ), counted (n, dependants) as (
        select p.n, count(f.id) from placed p left join follows f on f.needs = p.n group by p.n
    )
    select array(select p.id from placed p order by p.n),
           array(select distinct f.id from follows f where f.needs is null),
           array(select f.id from follows f where f.needs is not null order by f.needs),
           array(select 1 + sum(c.dependants) over (order by c.n) - c.dependants from counted c order by c.n)
      into v_ids, v_reached, v_to, v_first;
    v_first := v_first || cardinality(v_to) + 1;
    v_is_reached := array_fill(false, array[cardinality(v_ids)]);
    foreach v_place in array v_reached loop
        v_is_reached[v_place] := true;
    end loop;
    while v_next <= cardinality(v_reached) loop
        for v_edge in v_first[v_reached[v_next]]..v_first[v_reached[v_next] + 1] - 1 loop
            v_place := v_to[v_edge];
            if not v_is_reached[v_place] then
                v_is_reached[v_place] := true;
                v_reached := v_reached || v_place;
            end if;
        end loop;
        v_next := v_next + 1;
    end loop;
    return array(select i.id from unnest(v_ids, v_is_reached) i (id, is_reached) where not i.is_reached);
end
$$;
