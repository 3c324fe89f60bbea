-- What waits in the queue.

-- The queue of each pool: how many tasks wait for what, exactly up to 10,000 of a kind. Tasks whose time has come are
-- ready.
create or replace function orchestrator.demand(p_now timestamptz)
returns table (pool text, total bigint, ready bigint, dependencies bigint, limits bigint, scheduled bigint,
               oldest timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
declare
    c_most constant int := 10000;
begin
    return query
    with recursive pools (pool) as (  -- from one to the next in each index, however many tasks each has
        select orchestrator.next_pool('')
        union all
        select orchestrator.next_pool(p.pool) from pools p where p.pool is not null
    )
    select p.pool, r.n + d.n + k.n + t.n + s.n, r.n + t.n, d.n, k.n, s.n, least(o.oldest, t.oldest)
      from pools p
     cross join lateral (select count(*) as n from (
               select from orchestrator.live q where q.pool = p.pool and q.state = 'ready'
                order by q.pool, q.created_at limit c_most) q) r  -- in about the order of the table's pages
     cross join lateral (select (select q.created_at from orchestrator.live q
                                  where q.pool = p.pool and q.state = 'ready'
                                  order by q.pool, q.created_at limit 1) as oldest) o
     cross join lateral (select count(*) as n from (
               select from orchestrator.live q where q.pool = p.pool and q.state = 'waits_for_tasks' limit c_most) q) d
     cross join lateral (select count(*) as n from (
               select from orchestrator.live q
                where q.pool = p.pool and q.state in ('waits_for_key', 'waits_for_type') limit c_most) q) k
     cross join lateral (select count(*) as n, min(q.created_at) as oldest from (
               select q.created_at from orchestrator.live q
                where q.pool = p.pool and q.state = 'waits_for_time' and q.run_after <= p_now
                order by q.pool, q.run_after limit c_most) q) t
     cross join lateral (select count(*) as n from (
               select from orchestrator.live q
                where q.pool = p.pool and q.state = 'waits_for_time' and q.run_after > p_now
                order by q.pool, q.run_after limit c_most) q) s
     where p.pool is not null;
end
$$;

-- The first pool after this one that has queued tasks.
create or replace function orchestrator.next_pool(p_pool text) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_sort = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_variable
begin
    return least(
        (select q.pool from orchestrator.live q where q.state = 'ready' and q.pool > p_pool order by q.pool limit 1),
        (select q.pool from orchestrator.live q where q.state = 'waits_for_time' and q.pool > p_pool
          order by q.pool limit 1),
        (select q.pool from orchestrator.live q
          where q.state in ('waits_for_tasks', 'waits_for_key', 'waits_for_type') and q.pool > p_pool
          order by q.pool limit 1));
end
$$;

-- The first so many tasks of each pool that are ready or due, or wait for another attempt after NO_HANDLER.
drop function if exists orchestrator.queue_heads(timestamptz, int);  -- it had no is_ready
create or replace function orchestrator.queue_heads(p_now timestamptz, p_most int)
returns table (pool text, task_type text, is_ready boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_variable
begin
    return query
    with recursive pools (pool) as (  -- from one to the next in the index, however many tasks each has
        select orchestrator.next_pool('')
        union all
        select orchestrator.next_pool(p.pool) from pools p where p.pool is not null
    )
    select p.pool, h.task_type, h.is_ready
      from pools p
     cross join lateral (
         (select q.task_type, true as is_ready from orchestrator.live q where q.pool = p.pool and q.state = 'ready'
           order by q.place, q.turn, q.created_at, q.task_id limit p_most)
         union all
         (select q.task_type, q.run_after <= p_now
            from (select l.task_id, l.task_type, l.run_after from orchestrator.live l
                   where l.pool = p.pool and l.state = 'waits_for_time'
                   order by l.pool, l.run_after limit p_most) q
           cross join lateral (select k.failure_code from public.tasks k where k.id = q.task_id offset 0) t
           where q.run_after <= p_now or t.failure_code = 'NO_HANDLER')) h
     where p.pool is not null;
end
$$;
