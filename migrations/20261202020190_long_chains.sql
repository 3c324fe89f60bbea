-- A chain or a tree of dependants fails, and is queued again, in time that grows with its tasks and not with their square.
--
-- * internal_settle settles the tasks that it is given. Of those that end as Failed or Cancelled, internal_fail_behind then
--   fails all that wait for them, at any depth, with one statement per 2000 tasks.
-- * A user's trigger may prevent that a task ends as Failed. Then the tasks behind it must not fail: the statement is undone,
--   and the cascade goes level by level.
-- * An index entry of a waiting task is in its place as soon as the task is inserted. In a list of pending entries each search
--   for dependants would read that list, up to 4 MB.

alter index public.tasks_dependants set (fastupdate = off);
alter index public.tasks_needing set (fastupdate = off);
select gin_clean_pending_list('public.tasks_dependants'), gin_clean_pending_list('public.tasks_needing');

-- Those of these tasks that failed or were cancelled, and what waits for them at any depth: after each its dependants. At most
-- so many of the latter, each after one that it waits for.
create function public.internal_waiting_behind(p_ended uuid[], p_most integer) returns uuid[]
language sql stable security definer set search_path = ''
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
    with recursive ended (ids) as (
        select array(select d.id from public.tasks d where d.id = any (p_ended) and d.status in ('Failed', 'Cancelled'))
    ), behind (id) as (
        select n.id from ended e cross join unnest(e.ids) n (id)
        union
        select w.id from behind b cross join lateral (
            select t.id from public.tasks t
             where t.blocked and t.status = 'Queued' and t.depends_on @> array[b.id]) w
    )
    select array_agg(l.id) from (select b.id from behind b limit p_most + cardinality(p_ended)) l
$$;

-- Fail what waits for these tasks, as far as nobody else holds it; those that failed. Null if a user's trigger kept one of them
-- from it: then nothing is done.
create function public.internal_fail_behind(p_ended uuid[]) returns uuid[]
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    c_most constant int := 2000;
    c_letters constant int := 4000;
    v_before text := coalesce(current_setting('orchestrator.settling', true), '');
    v_set text;
    v_all uuid[] := public.internal_waiting_behind(p_ended, c_most);
    v_places jsonb;  -- of each of v_all. A value of such an object is found without a join, whatever the planner expects
    v_locked uuid[];
    v_task record;
    v_cause int;
    v_message text;
    v_ids uuid[] := '{}';
    v_messages text[] := '{}';
    v_ends text[] := '{}';  -- by place: how the task ended, as a dependant says it; null: it did not end
    v_whys text[] := '{}';  -- why it ended
    v_roots boolean[] := '{}';  -- whether that is why the first task of all ended
begin
    select array_agg(l.id) into v_locked from (
        select t.id from public.tasks t where t.id = any (v_all) and t.status = 'Queued' and t.blocked
         order by t.id for no key update skip locked) l;
    if v_locked is null then
        return '{}';
    end if;
    select jsonb_object_agg(p.id, p.n) into v_places from unnest(v_all) with ordinality p (id, n);
    for v_task in
        select (v_places->t.id::text)::int as n, t.id, t.task_type, t.status, t.failure_code, t.error_message,
               array(select (v_places->d.id::text)::int from unnest(t.depends_on) with ordinality d (id, place)
                      where v_places ? d.id::text order by d.place) as needs
          from public.tasks t where t.id = any (p_ended || v_locked) and v_places ? t.id::text order by 1
    loop
        v_cause := null;
        if v_task.status in ('Failed', 'Cancelled') then
            v_roots[v_task.n] := v_task.failure_code is not distinct from 'DEPENDENCY_FAILED';
            v_whys[v_task.n] := case
                when v_roots[v_task.n] then regexp_replace(
                    v_task.error_message, '^.*(Dependency [0-9a-f-]{36} \([^)]*\) ended as )', '\1')
                else concat_ws(': ', v_task.failure_code, v_task.error_message) end;
            v_ends[v_task.n] := format('Dependency %s (%s) ended as %s', v_task.id, v_task.task_type, v_task.status);
            continue;
        end if;
        foreach v_cause in array v_task.needs loop
            exit when v_ends[v_cause] is not null;
            v_cause := null;
        end loop;
        continue when v_cause is null;
        v_message := left(concat_ws(': ', v_ends[v_cause], nullif(v_whys[v_cause], '')), c_letters);
        v_ids := v_ids || v_task.id;
        v_messages := v_messages || v_message;
        v_ends[v_task.n] := format('Dependency %s (%s) ended as Failed', v_task.id, v_task.task_type);
        v_whys[v_task.n] := case when v_roots[v_cause] then v_whys[v_cause] else v_message end;
        v_roots[v_task.n] := true;
    end loop;
    begin
        v_set := set_config('orchestrator.settling', pg_trigger_depth()::text, true);
        v_places := jsonb_object(v_ids::text[], v_messages);
        update public.tasks t
           set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_FAILED', error_message = v_places->>t.id::text
         where t.id = any (v_ids) and t.status = 'Queued';
        if (select count(*) from public.tasks t where t.id = any (v_ids) and t.status = 'Failed') < cardinality(v_ids) then
            raise exception using errcode = 'OR008';  -- known only here
        end if;
        v_set := set_config('orchestrator.settling', v_before, true);
    exception when sqlstate 'OR008' then
        return null;
    end;
    return v_ids;
end
$$;

create or replace function public.internal_settle(p_ids uuid[], p_gone uuid[]) returns void
language plpgsql security definer set search_path = '' as $$
declare
    v_ids uuid[] := p_ids;
    v_gone uuid[] := p_gone;
    v_lock record;
    v_waits int := 3;
    v_ended uuid[];
    v_behind uuid[] := '{}';  -- null: level by level
begin
    while cardinality(v_ids) > 0 loop
        select * into v_lock from public.internal_lock_queued(v_ids, v_waits);
        v_waits := v_lock.p_waits;
        if v_lock.missed <> '{}' then
            insert into public.tasks_unsettled (task_ids) values (v_lock.missed);
        end if;
        exit when v_lock.locked is null;
        v_ended := public.internal_settle_locked(v_lock.locked, v_gone);
        v_gone := '{}';
        if v_ended <> '{}' and v_behind is not null then
            v_behind := public.internal_fail_behind(v_ended);
        end if;
        v_ids := public.internal_dependants(v_ended || v_behind);
    end loop;
end
$$;

-- Of tasks that wait, those that can never run: each task that they need is one of them. All others need something else, or
-- one that does: they are reached from there along the dependencies, each once.
create or replace function public.internal_stuck(p_ids uuid[]) returns uuid[]
language plpgsql stable security definer set search_path = ''
set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set enable_hashjoin = on set jit = off as $$
declare
    v_ids uuid[];
    v_reached int[];  -- places in v_ids; each is followed in its turn
    v_is_reached boolean[];
    v_to int[];  -- places of dependants; from v_first[n] on those of v_ids[n]
    v_first int[];
    v_place int;
    v_next int := 1;
begin
    with edges (id, needs) as materialized (
        select t.id, n.id from public.tasks t cross join unnest(t.depends_on) n (id)
         where t.id = any (p_ids) and t.blocked and t.status = 'Queued'
    ), open (id, needs) as materialized (  -- without those that are complete
        select e.id, e.needs from edges e
          left join public.tasks d on d.id = e.needs
          left join public.task_results r on r.id = e.needs
         where d.status is distinct from 'Complete' and (d.id is not null or r.id is null)
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

-- This task and what failed only because it did, at any depth.
create function public.internal_failed_behind(p_id uuid) returns uuid[]
language sql stable security definer set search_path = ''
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
    with recursive behind (id) as (
        select p_id
        union
        select f.id from behind b cross join lateral (
            select t.id from public.tasks t
             where t.depends_on @> array[b.id] and t.depends_on <> '{}' and t.status = 'Failed'
               and t.failure_code = 'DEPENDENCY_FAILED') f
    )
    select array_agg(b.id) from behind b
$$;

create or replace function public.internal_settle_cycles(p_ids uuid[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    c_most constant int := 10000;
    v_ids uuid[];
    v_lock record;
begin
    if p_ids is null then
        v_ids := array(select t.id from public.tasks t where t.blocked and t.status = 'Queued');
    elsif public.internal_dependants(p_ids) is null then
        return;  -- nobody waits for them
    else
        with recursive needed (id) as (
            select unnest(p_ids)
            union
            select n.id
              from needed d cross join lateral (  -- limited: one row by its key each, whatever the planner expects
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
        update public.tasks t
           set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_CYCLE',
               error_message = format('It waits for task %s, and these tasks wait for each other: none can ever run',
                                      t.depends_on[1])
         where t.id = any (v_lock.locked) and t.status = 'Queued' and t.blocked;
    end if;
end
$$;

create or replace function public.task_retry(p_id uuid, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_task public.tasks;
    v_ids uuid[];
begin
    select * into v_task from public.tasks t where t.id = p_id for no key update;
    if not found then
        return jsonb_build_object('outcome', 'not_found');
    elsif v_task.status not in ('Failed', 'Cancelled') then
        return jsonb_build_object('outcome', 'not_ended', 'status', v_task.status);
    end if;
    select array_agg(l.id) into v_ids from (
        select t.id from public.tasks t where t.id = any (public.internal_failed_behind(p_id)) order by t.id for no key update) l;
    update public.tasks t
       set status = 'Queued', uncounted = t.attempts, run_after = null, worker_id = null, lease_expires_at = null,
           cancel_requested_at = null, error_message = null, failure_code = null, failed_at_point = null,
           progress = null, progress_at = null, blocked = t.depends_on <> '{}'
     where t.id = any (v_ids);
    return jsonb_build_object('outcome', 'requeued', 'tasks', to_jsonb(v_ids));
exception when unique_violation then
    perform public.internal_refuse('OR007', 'a task with the same dedupe_key is already queued or running',
        format('dedupe_key %L', v_task.dedupe_key), 'wait for that one, or cancel it');
    return null;
end
$$;

do $$
declare
    v_function regprocedure;
    v_role name;
begin
    for v_function in
        select p.oid::regprocedure from pg_catalog.pg_proc p
         where p.pronamespace = 'public'::regnamespace
           and p.proname in ('internal_waiting_behind', 'internal_fail_behind', 'internal_failed_behind')
    loop
        execute format('revoke all on function %s from public', v_function);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function %s from %I', v_function, v_role);
        end loop;
    end loop;
end
$$;
