-- How many tasks wait in each pool, without counting them.
--
-- Each change of the queue adds its difference as a row of task_counts, in its own transaction. The sum of the rows is
-- the count, in any snapshot. Rows are inserted and rolled up, never updated, so no transaction waits for another.
-- "timed" tasks (with run_after) become claimable by the clock alone; those that are due are counted when they
-- are read.

-- Counts inserted and deleted tasks, and lowers the mark for those that become claimable. For several tasks one mark is
-- written. It may be lower than their lowest place, so that place is not searched for.
create or replace function public.internal_tasks_counted() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
begin
    if tg_op = 'TRUNCATE' then
        delete from public.task_counts;
    elsif tg_op = 'INSERT' then
        insert into public.task_counts (pool, kind, n)
        select a.pool, k.kind, count(*)
          from added a cross join lateral (
              select case when a.blocked and a.queue_gate = 0 then 'blocked' when a.run_after is not null then 'timed'
                          when a.blocked then 'gated' else 'plain' end as kind) k
         where a.status = 'Queued' group by 1, 2;
        insert into public.task_marks (pool, place, queue_turn, created_at, id)
        select a.pool, min(~a.priority), min(a.queue_turn), min(a.created_at), '00000000-0000-0000-0000-000000000000'
          from added a where a.status = 'Queued' and not a.blocked and a.run_after is null group by a.pool;
    else
        insert into public.task_counts (pool, kind, n)
        select a.pool, k.kind, -count(*)
          from removed a cross join lateral (
              select case when a.blocked and a.queue_gate = 0 then 'blocked' when a.run_after is not null then 'timed'
                          when a.blocked then 'gated' else 'plain' end as kind) k
         where a.status = 'Queued' group by 1, 2;
    end if;
    return null;
end
$$;

-- Counts the queue, and makes new marks.
create or replace function public.internal_recount() returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    lock table public.task_counts in share update exclusive mode;  -- one at a time; inserts continue
    with gone as (delete from public.task_counts)
    insert into public.task_counts (pool, kind, n)
    select t.pool, case when t.blocked and t.queue_gate = 0 then 'blocked' when t.run_after is not null then 'timed'
                        when t.blocked then 'gated' else 'plain' end, count(*)
      from public.tasks t where t.status = 'Queued' group by 1, 2;
    perform public.internal_raise_mark(p.pool, public.internal_now(), true)
       from (select distinct m.pool from public.task_marks m) p;
end
$$;

-- Whether a pool has ready tasks and the counts say that it has none, or the other way round: rows were written while the
-- triggers were off, or emptied while the counts were rolled up. It goes from pool to pool, in an order that only one index
-- has.
create or replace function public.internal_is_miscounted() returns boolean
language plpgsql stable security definer set search_path = '' set enable_seqscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_variable
begin
    return (
        with recursive ready(pool) as (
            (select t.pool from public.tasks t where t.status = 'Queued' and not t.blocked and t.run_after is null
              order by t.pool, t.created_at limit 1)
            union all
            select (select t.pool from public.tasks t
                     where t.status = 'Queued' and not t.blocked and t.run_after is null and t.pool > r.pool
                     order by t.pool, t.created_at limit 1)
              from ready r where r.pool is not null
        ), counted as (
            select c.pool from public.task_counts c where c.kind = 'plain' group by c.pool having sum(c.n) > 0)
        select exists (select from ready r where r.pool is not null and r.pool not in (select c.pool from counted c))
            or exists (select from counted c where not exists (select from ready r where r.pool = c.pool)));
end
$$;

-- Sums up the rows of task_counts. With p_anew, counts the whole queue and makes new marks. The functions that it calls
-- are planned as for all their callers, although retention joins without nested loops: a connection keeps plans.
create or replace function public.internal_roll_up(p_anew boolean) returns void
language plpgsql security definer set search_path = '' set enable_nestloop = on as $$
#variable_conflict use_variable
begin
    if p_anew then
        perform public.internal_settle_all(public.internal_now());
        perform public.internal_level_turns();
        perform public.internal_let_in_all(public.internal_now());
    end if;
    if p_anew then
        perform public.internal_recount();
    else
        lock table public.task_counts in share update exclusive mode;  -- one at a time; inserts continue
        with gone as (delete from public.task_counts returning pool, kind, n)
        insert into public.task_counts (pool, kind, n)
        select g.pool, g.kind, sum(g.n) from gone g group by 1, 2 having sum(g.n) <> 0;
    end if;
end
$$;
