-- How many tasks wait in each pool, without counting them.
--
-- Each change of the queue adds its difference as a row of task_counts, in its own transaction. The sum of the rows is
-- the count, in any snapshot. Rows are inserted and rolled up, never updated, so no transaction waits for another.
-- "timed" tasks (with run_after) become claimable by the clock alone; those that are due are counted when somebody
-- asks.

-- Counts inserted and deleted tasks, and lowers the mark for those that become claimable. A mark that is lower than the
-- lowest place of several tasks is safe, so that place is not searched for.
create or replace function public.internal_tasks_counted() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
begin
    if tg_op = 'TRUNCATE' then
        delete from public.task_counts;
    elsif tg_op = 'INSERT' then
        insert into public.task_counts (pool, kind, n)
        select a.pool, k.kind, count(*)
          from added a cross join lateral (
              select case when a.blocked then 'blocked' when a.run_after is not null then 'timed' else 'plain' end as kind) k
         where a.status = 'Queued' group by 1, 2;
        insert into public.task_marks (pool, place, created_at, id)
        select a.pool, min(~a.priority), min(a.created_at), '00000000-0000-0000-0000-000000000000'
          from added a where a.status = 'Queued' and not a.blocked and a.run_after is null group by a.pool;
    else
        insert into public.task_counts (pool, kind, n)
        select a.pool, k.kind, -count(*)
          from removed a cross join lateral (
              select case when a.blocked then 'blocked' when a.run_after is not null then 'timed' else 'plain' end as kind) k
         where a.status = 'Queued' group by 1, 2;
    end if;
    return null;
end
$$;

-- Sums up the rows of task_counts. With p_anew, counts the queue again and makes the marks again.
create or replace function public.internal_roll_up(p_anew boolean) returns void
language plpgsql security definer set search_path = '' as $$
begin
    if p_anew then
        perform public.internal_settle_all(public.internal_now());
    end if;
    lock table public.task_counts in share update exclusive mode;  -- one at a time; inserts go on
    if p_anew then
        with gone as (delete from public.task_counts)
        insert into public.task_counts (pool, kind, n)
        select t.pool, case when t.blocked then 'blocked' when t.run_after is not null then 'timed' else 'plain' end, count(*)
          from public.tasks t where t.status = 'Queued' group by 1, 2;
        perform public.internal_raise_mark(p.pool, public.internal_now(), true)
           from (select distinct m.pool from public.task_marks m) p;
    else
        with gone as (delete from public.task_counts returning pool, kind, n)
        insert into public.task_counts (pool, kind, n)
        select g.pool, g.kind, sum(g.n) from gone g group by 1, 2 having sum(g.n) <> 0;
    end if;
end
$$;
