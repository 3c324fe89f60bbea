-- How a task becomes ready: it waits for its tasks, for its time, for its key, for its type, in this order.
--
-- A ready task holds its slots, so a claim checks no limit. The slots of a key are its rows that are ready, wait for
-- their type or run; those of a type are its rows that are ready or run. They are counted in rows, by index. Two rules
-- keep their number within the limit:
--   * A transaction that adds a slot takes the lock of the limit first, and then counts. If it does not get the lock at
--     once, the leader looks again within a second.
--   * A transaction that frees slots gives at most as many to the next tasks, without a lock: a transaction that counts
--     meanwhile sees the old slot or the new one.
-- A lease that has ended still holds its slot, until the task is rescued. So renewing a lease never needs a limit.
-- Slots that a user's write added beyond the limit are taken from ready tasks. No running task ends for that.

-- Advances tasks that the caller has locked or inserted, as far as their limits allow. p_passed: what they have waited
-- for ('', 'key' or 'type'). p_front: they come back from a worker, to the head of the queue.
create or replace function orchestrator.advance(p_ids uuid[], p_passed text default '', p_front boolean default false)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_now();
    v_keys text[];
    v_types text[];
    v_pools text[];
begin
    with moved as (
        update orchestrator.live q
           set (state, turn) = (
                   select n.state, case when n.state = 'ready' and (q.tenant is not null or p_front)
                                        then orchestrator.next_turn(q.pool, q.place, q.tenant, p_front)
                                        else 9007199254740991 end
                     from (select case
                               when p_passed = '' and q.has_needs and exists (
                                   select from orchestrator.edges e where e.task_id = q.task_id and not e.is_met)
                                   then 'waits_for_tasks'
                               when p_passed = '' and q.run_after > v_now then 'waits_for_time'
                               when p_passed = '' and q.concurrency_key is not null then 'waits_for_key'
                               when p_passed <> 'type' and q.type_limited then 'waits_for_type'
                               else 'ready' end::orchestrator.task_state as state offset 0) n)
         where q.task_id = any (p_ids) and q.state <> 'running'
        returning q.state, q.pool, q.place, q.turn, q.created_at, q.concurrency_key, q.task_type
    ), marked as (
        insert into orchestrator.marks (pool, place, turn, created_at, task_id)
        select m.pool, min(m.place), min(m.turn), min(m.created_at), '00000000-0000-0000-0000-000000000000'
          from moved m where m.state = 'ready' group by m.pool
    )
    select array_agg(distinct m.concurrency_key) filter (where m.state = 'waits_for_key'),
           array_agg(distinct m.task_type) filter (where m.state = 'waits_for_type'),
           array_agg(distinct m.pool) filter (where m.state = 'ready')
      into v_keys, v_types, v_pools from moved m;
    if v_pools is not null then
        perform orchestrator.announce(v_pools, p_passed <> '');
    end if;
    if v_keys is not null then
        perform orchestrator.admit('key', v_keys, null);
    end if;
    if v_types is not null then
        perform orchestrator.admit('type', v_types, null);
    end if;
end
$$;

-- Wakes claims that wait for a task of these pools. p_if_idle: only if a worker is idle or none is active. A task that
-- passes a limit mostly follows another one, which a busy worker has ended, and a notification makes the commits of all
-- wait for each other.
create or replace function orchestrator.announce(p_pools text[], p_if_idle boolean) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    perform pg_notify('orchestrator_tasks', p.pool) from unnest(p_pools) p (pool)
      where not p_if_idle or exists (select from public.workers w where w.pool = p.pool and w.status = 'idle')
         or not exists (select from public.workers w where w.pool = p.pool and w.status = 'active');
end
$$;

-- Admits the next tasks of these limits: as many as a limit allows or, if slots were freed, at most p_freed of each.
create or replace function orchestrator.admit(p_scope text, p_names text[], p_freed int[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_sort = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    c_most constant int := 10000;  -- tasks of one limit and call
    v_names text[] := case when p_freed is null then orchestrator.lock_limits(p_scope, p_names) else p_names end;
    v_rooms int[];
    v_ids uuid[];
    v_found text[];
begin
    v_rooms := array(
        select least(n.room, n.freed, c_most)
          from unnest(v_names, orchestrator.free_slots(p_scope, v_names), p_freed[:cardinality(v_names)])
               with ordinality n (name, room, freed, place) order by n.place);
    if p_freed is null and exists (select from unnest(v_rooms) r (room) where r.room < 0) then
        perform orchestrator.take_slots_away(p_scope, n.name, -n.room) from unnest(v_names, v_rooms) n (name, room)
          where n.room < 0;
    end if;
    if p_scope = 'key' then
        select array_agg(g.task_id), array_agg(n.name) into v_ids, v_found
          from unnest(v_names, v_rooms) n (name, room) cross join lateral (
            select q.task_id from orchestrator.live q
             where q.concurrency_key = n.name and q.state = 'waits_for_key'
             order by q.concurrency_key, q.place, q.turn, q.created_at, q.task_id
             limit greatest(n.room, 0) for update skip locked) g;
    else
        select array_agg(g.task_id), array_agg(n.name) into v_ids, v_found
          from unnest(v_names, v_rooms) n (name, room) cross join lateral (
            select q.task_id from orchestrator.live q
             where q.task_type = n.name and q.state = 'waits_for_type'
             order by q.task_type, q.place, q.turn, q.created_at, q.task_id
             limit greatest(n.room, 0) for update skip locked) g;
    end if;
    -- Tasks still wait: for a lock, beyond c_most, or because slots that others free now were counted.
    insert into orchestrator.rechecks (kind, name)
    select p_scope, w.name
      from unnest(orchestrator.waited_for(p_scope, array(
               select n.name from unnest(v_names, v_rooms, p_freed[:cardinality(v_names)]) n (name, room, freed)
                where (n.room < n.freed or n.room = c_most or (n.name, n.room) not in (
                           select f.name, count(*)::int from unnest(v_found) f (name) group by 1))
                  and (n.room > 0 or n.freed > 0)), coalesce(v_ids, '{}'))) w (name);
    if v_ids is not null then
        perform orchestrator.advance(v_ids, p_scope);
    end if;
end
$$;

-- How many more tasks each of these limits admits; null for any number. A key without a limit of its own has the limit
-- 1. The rows are counted in an order that only one index has: a plan that was made while the queue was short must not
-- read another one.
create or replace function orchestrator.free_slots(p_scope text, p_names text[]) returns int[]
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_sort = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
begin
    if p_scope = 'key' then
        return array(
            select coalesce((select l.most from public.concurrency_limits l
                              where l.scope = 'key' and l.name = n.name), 1)
                 - (select count(*) from (
                       select from orchestrator.live q
                        where q.concurrency_key = n.name and q.state in ('ready', 'waits_for_type', 'running')
                        order by q.concurrency_key offset 0) c)
              from unnest(p_names) with ordinality n (name, place) order by n.place);
    end if;
    return array(
        select (select l.most from public.concurrency_limits l where l.scope = 'type' and l.name = n.name)
             - (select count(*) from (
                   select from orchestrator.live q
                    where q.task_type = n.name and q.type_limited and q.state in ('ready', 'running')
                    order by q.task_type offset 0) c)
          from unnest(p_names) with ordinality n (name, place) order by n.place);
end
$$;

-- Which of these limits a task other than p_but waits for.
create or replace function orchestrator.waited_for(p_scope text, p_names text[], p_but uuid[]) returns text[]
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_sort = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
begin
    if p_scope = 'key' then
        return array(select n.name from unnest(p_names) n (name)
                      where (select true from orchestrator.live q
                              where q.concurrency_key = n.name and q.state = 'waits_for_key'
                                and q.task_id <> all (p_but)
                              order by q.concurrency_key, q.place limit 1));
    end if;
    return array(select n.name from unnest(p_names) n (name)
                  where (select true from orchestrator.live q
                          where q.task_type = n.name and q.state = 'waits_for_type' and q.task_id <> all (p_but)
                          order by q.task_type, q.place limit 1));
end
$$;

-- Locks limits until the transaction ends, without waiting, and returns those that are locked; the leader looks at the
-- others. A transaction with an old snapshot cannot count. A lock is one of 4096, for which the server's table of locks
-- has room: two limits may share one.
create or replace function orchestrator.lock_limits(p_scope text, p_names text[]) returns text[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    c_limits constant int := 1951811;  -- a namespace of advisory locks
    v_locked text[] := '{}';
begin
    if current_setting('transaction_isolation') = 'read committed' then
        v_locked := array(select n.name from unnest(p_names) n (name)
                           where pg_try_advisory_xact_lock(c_limits, hashtext(p_scope || ':' || n.name) & 4095));
    end if;
    if cardinality(v_locked) < cardinality(p_names) then
        insert into orchestrator.rechecks (kind, name)
        select p_scope, n.name from unnest(p_names) n (name) where (n.name in (select unnest(v_locked))) is not true;
    end if;
    return v_locked;
end
$$;

-- Makes the tasks of a type follow whether it has a limit, at most so many; the leader continues.
create or replace function orchestrator.limit_type(p_type text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    c_most constant int := 10000;
    v_is_limited boolean := exists (select from public.concurrency_limits l where l.scope = 'type' and l.name = p_type);
    v_freed uuid[];
begin
    with changed as (
        update orchestrator.live q set type_limited = v_is_limited
         where q.ctid = any (array(select l.ctid from orchestrator.live l
                                    where l.task_type = p_type and l.type_limited <> v_is_limited
                                    limit c_most for update skip locked))
        returning q.task_id, q.state
    )
    select array_agg(c.task_id) filter (where c.state = 'waits_for_type') into v_freed from changed c;
    if v_freed is not null then
        perform orchestrator.advance(v_freed, 'key');
    end if;
    insert into orchestrator.rechecks (kind, name)
    select 'limit', p_type
     where exists (select from orchestrator.live q where q.task_type = p_type and q.type_limited <> v_is_limited);
end
$$;

-- Makes as many ready tasks wait again as exceed the limit, the last ones first.
create or replace function orchestrator.take_slots_away(p_scope text, p_name text, p_over int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
begin
    if p_scope = 'key' then
        with back as (
            update orchestrator.live q set state = 'waits_for_key'
             where q.task_id = any (array(
                       select l.task_id from orchestrator.live l
                        where l.concurrency_key = p_name and l.state in ('ready', 'waits_for_type')
                        order by l.place desc, l.turn desc, l.created_at desc, l.task_id desc limit p_over
                          for update skip locked))
            returning q.task_type, q.type_limited
        )
        insert into orchestrator.rechecks (kind, name)  -- they may have left a slot of their type
        select distinct 'type', b.task_type from back b where b.type_limited;
    else
        update orchestrator.live q set state = 'waits_for_type'
         where q.task_id = any (array(
                   select l.task_id from orchestrator.live l
                    where l.task_type = p_name and l.type_limited and l.state = 'ready'
                    order by l.place desc, l.turn desc, l.created_at desc, l.task_id desc limit p_over
                      for update skip locked));
    end if;
end
$$;

-- Advances the tasks of a pool whose time has come, at most so many.
create or replace function orchestrator.advance_due(p_pool text, p_most int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_sort = off
set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_now();
    v_ids uuid[] := array(
        select q.task_id from orchestrator.live q
         where q.pool = p_pool and q.state = 'waits_for_time' and q.run_after <= v_now
         order by q.pool, q.run_after limit p_most for update skip locked);
begin
    if v_ids <> '{}' then
        perform orchestrator.advance(v_ids);
    end if;
end
$$;

-- Gives freed slots of limits to the next tasks. A name is given as often as a slot was freed; null for none. A task
-- that begins to wait now, in a transaction that is not seen here, is found by the audit.
create or replace function orchestrator.refill(p_scope text, p_names text[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_waited text[];
    v_names text[];
    v_freed int[];
begin
    if p_names is null then
        return;
    end if;
    v_waited := orchestrator.waited_for(p_scope, array(select distinct n.name from unnest(p_names) n (name)), '{}');
    if v_waited <> '{}' then
        select array_agg(f.name), array_agg(f.n) into v_names, v_freed
          from (select n.name, count(*)::int as n from unnest(p_names) n (name) group by 1) f
         where (f.name in (select unnest(v_waited))) is true;
        perform orchestrator.admit(p_scope, v_names, v_freed);
    end if;
end
$$;

-- Deletes the edges of tasks that leave the queue. An edge that another transaction is changing is left to the leader.
create or replace function orchestrator.drop_edges(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
begin
    delete from orchestrator.edges e
     where e.ctid = any (array(select f.ctid from orchestrator.edges f
                                where f.task_id = any (p_ids) for update skip locked));
    insert into orchestrator.rechecks (kind, name)
    select distinct 'edges', e.task_id::text from orchestrator.edges e where e.task_id = any (p_ids);
end
$$;

-- Removes locked tasks from the queue: they have ended, or are gone. Their slots go to the next tasks.
create or replace function orchestrator.leave(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_gone orchestrator.live[];
begin
    with gone as (
        delete from orchestrator.live q where q.task_id = any (p_ids) returning q as task
    )
    select array_agg(g.task) into v_gone from gone g;
    perform orchestrator.drop_edges(p_ids);
    perform orchestrator.refill_after(v_gone);
end
$$;

-- Gives the slots of removed tasks to the next ones.
create or replace function orchestrator.refill_after(p_gone orchestrator.live[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_keys text[];
    v_types text[];
begin
    select array_agg(g.concurrency_key) filter (where g.concurrency_key is not null
                                                  and g.state in ('ready', 'waits_for_type', 'running')),
           array_agg(g.task_type) filter (where g.type_limited and g.state in ('ready', 'running'))
      into v_keys, v_types from unnest(p_gone) g;
    perform orchestrator.refill('key', v_keys);
    perform orchestrator.refill('type', v_types);
end
$$;

-- Makes locked tasks that do not run wait again, from the first condition on. Their slots go to the next tasks.
create or replace function orchestrator.wait_again(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_keys text[];
    v_types text[];
begin
    select array_agg(q.concurrency_key) filter (where q.concurrency_key is not null
                                                  and q.state in ('ready', 'waits_for_type')),
           array_agg(q.task_type) filter (where q.type_limited and q.state = 'ready')
      into v_keys, v_types from orchestrator.live q where q.task_id = any (p_ids);
    perform orchestrator.advance(p_ids);
    perform orchestrator.refill('key', v_keys);
    perform orchestrator.refill('type', v_types);
end
$$;
