-- A Complete task that a user takes back is needed again: by an UPDATE to any other status, or by a deletion and an insertion
-- with the same id. Tasks that depend on it and have not started wait for it again at once, or fail if it is now Failed or
-- Cancelled. Before, only the hourly retention noticed.
--
-- A dependant may be inserted, or come back to the queue, in a transaction that does not see the user's uncommitted change.
-- So who settles a new dependant locks its Complete dependencies in share mode, without a wait: a user who changes one later
-- waits until the dependant is committed, and sees it. A dependency that is already locked may be about to change: then the
-- dependant gets a row in tasks_unsettled, and is looked at again like one whose dependency is about to end.

-- Those that have not started of the tasks that depend on these: ready or waiting.
create function public.internal_needing(p_ids uuid[]) returns uuid[]
language sql stable security definer set search_path = ''
set enable_seqscan = off set enable_indexscan = off set jit = off as $$
    select array_agg(distinct w.id)
      from (select array_agg(e.id) as ids from unnest(p_ids) with ordinality e (id, n) group by (e.n - 1) / 1000) s
     cross join lateral (
           select t.id from public.tasks t
            where t.status = 'Queued' and t.depends_on <> '{}' and t.depends_on && s.ids) w
$$;

create or replace function public.internal_settle_new(p_ids uuid[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_waiting uuid[];
    v_ready uuid[];
    v_needed uuid[];
    v_kept int;
begin
    perform public.internal_settle(p_ids, '{}');
    v_waiting := array(select t.id from public.tasks t where t.id = any (p_ids) and t.blocked and t.status = 'Queued');
    if v_waiting <> '{}' then
        perform public.internal_settle_cycles(v_waiting);
        insert into public.tasks_unsettled (task_ids) values (v_waiting);
    end if;
    v_ready := array(select t.id from public.tasks t
                      where t.id = any (p_ids) and not t.blocked and t.status = 'Queued' and t.depends_on <> '{}');
    v_needed := array(select d.id from public.tasks d where d.id = any (array(
                          select unnest(t.depends_on) from public.tasks t where t.id = any (v_ready))));
    select count(*) into v_kept from (
        select from public.tasks d where d.id = any (v_needed) and d.status = 'Complete'
         order by d.id for share skip locked) k;
    if v_kept < cardinality(v_needed) then
        insert into public.tasks_unsettled (task_ids) values (v_ready);
    end if;
end
$$;

create or replace function public.internal_settle_again(p_no bigint, p_waits boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_ids uuid[];
    v_needed uuid[];
    v_still int;
    v_lock record;
begin
    select u.task_ids into v_ids from public.tasks_unsettled u where u.no = p_no for update skip locked;
    if not found then
        return;
    end if;
    select * into v_lock from public.internal_lock_queued(v_ids, 0);
    v_needed := array(
        select d.id from public.tasks d
         where d.status in ('Queued', 'In Progress', 'Complete')
           and d.id = any (array(select unnest(t.depends_on) from public.tasks t where t.id = any (v_lock.locked))));
    select count(*) into v_still from (
        select from public.tasks d where d.id = any (v_needed) and d.status in ('Queued', 'In Progress', 'Complete')
         order by d.id for share skip locked) s;
    if v_still < cardinality(v_needed) and p_waits and public.internal_lock_briefly(v_needed, true) then
        v_still := cardinality(v_needed);
    end if;
    perform public.internal_settle(v_lock.locked, '{}');
    if v_lock.missed = '{}' and v_still = cardinality(v_needed) then
        delete from public.tasks_unsettled u where u.no = p_no;
    end if;
end
$$;

create or replace function public.internal_tasks_added() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_waiting uuid[];
    v_ended uuid[];
    v_again uuid[];
begin
    select array_agg(a.id) filter (where a.depends_on <> '{}' and a.status = 'Queued'),
           array_agg(a.id) filter (where a.status in ('Complete', 'Failed', 'Cancelled'))
      into v_waiting, v_ended from added a;
    if v_waiting is not null then
        -- Who deletes a dependency waits until it is known who needs it. Heartbeats and completions do not wait.
        perform from public.tasks d
          where d.id = any (array(select unnest(t.depends_on) from public.tasks t where t.id = any (v_waiting)))
          order by d.id for key share;
        perform public.internal_settle_new(v_waiting);
    end if;
    if v_ended is not null then
        perform public.internal_settle(public.internal_dependants(v_ended), '{}');
    end if;
    -- Of a task with this id that was Complete when it was deleted, the result is kept.
    v_again := array(select r.id from added a join public.task_results r on r.id = a.id where a.status <> 'Complete');
    if v_again <> '{}' then
        perform public.internal_settle(public.internal_needing(v_again), '{}');
    end if;
    perform pg_notify('orchestrator_tasks', p.pool)
       from (select distinct a.pool from added a
              where a.status = 'Queued'
                and (a.depends_on = '{}'
                     or (select t.status = 'Queued' and not t.blocked from public.tasks t where t.id = a.id))) p;
    return null;
end
$$;

create or replace function public.internal_tasks_changed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_ended uuid[];
    v_taken_back uuid[];
    v_waiting uuid[];
    v_pools text[];
    v_workers text[];
    v_finished text[];
    v_left uuid[];
    v_queued bigint;
begin
    -- A full join is hashed or merged: no plan of it is quadratic, whatever number of rows it was made for.
    select array_agg(a.id) filter (where a.status in ('Complete', 'Failed', 'Cancelled') and a.status is distinct from b.status),
           array_agg(a.id) filter (where a.status = 'Queued'
                                     and (a.depends_on is distinct from b.depends_on
                                          or b.status <> 'Queued' and a.depends_on <> '{}')),
           array_agg(distinct a.pool) filter (where a.status = 'Queued' and not a.blocked
                                                and (b.status is distinct from 'Queued' or b.blocked or b.pool <> a.pool
                                                     or b.run_after > coalesce(a.run_after, '-infinity'))),
           array_agg(distinct b.worker_id) filter (where b.status = 'In Progress' and b.worker_id is not null
                                                     and (a.status in ('In Progress', 'Complete')) is not true),
           array_agg(distinct b.worker_id) filter (where b.status = 'In Progress' and a.status = 'Complete'),
           array_agg(b.id) filter (where b.status = 'In Progress'
                                     and (a.status = 'In Progress' and a.attempts = b.attempts
                                          and a.worker_id = b.worker_id) is not true),
           count(*) filter (where a.status = 'Queued' or b.status = 'Queued'),
           array_agg(b.id) filter (where b.status = 'Complete' and a.status is distinct from 'Complete')
      into v_ended, v_waiting, v_pools, v_workers, v_finished, v_left, v_queued, v_taken_back
      from changed a full join was b on b.id = a.id;
    if v_left is not null then
        perform public.internal_close_attempts(v_left, false);
    end if;
    if v_ended is not null
       and current_setting('orchestrator.settling', true) is distinct from (pg_trigger_depth() - 1)::text then
        perform public.internal_settle(public.internal_dependants(v_ended), '{}');
    end if;
    if v_taken_back is not null then
        perform public.internal_settle(public.internal_needing(v_taken_back), '{}');
    end if;
    if v_waiting is not null then
        perform public.internal_settle_new(v_waiting);
    end if;
    perform pg_notify('orchestrator_tasks', p) from unnest(v_pools) p;
    perform pg_notify('orchestrator_fleet', w) from unnest(v_workers) w;
    perform pg_notify('orchestrator_fleet', w.id) from public.workers w  -- of a running worker's results nobody need know
      where w.id = any (v_finished) and public.internal_wanted(w) <> 'run';
    if v_queued > 0 then
        insert into public.task_counts (pool, kind, n)
        select c.pool, c.kind, sum(c.n)
          from (select a.pool, case when a.blocked then 'blocked' when a.run_after is not null then 'timed'
                                    else 'plain' end as kind, 1 as n
                  from changed a where a.status = 'Queued'
                union all
                select b.pool, case when b.blocked then 'blocked' when b.run_after is not null then 'timed'
                                    else 'plain' end, -1
                  from was b where b.status = 'Queued') c
         group by 1, 2 having sum(c.n) <> 0;
        insert into public.task_marks (pool, place, created_at, id)
        select a.pool, min(~a.priority), min(a.created_at), '00000000-0000-0000-0000-000000000000'
          from changed a where a.status = 'Queued' and not a.blocked and a.run_after is null group by a.pool;
    end if;
    return null;
end
$$;

do $$
declare
    v_role name;
begin
    revoke all on function public.internal_needing(uuid[]) from public;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
        execute format('revoke all on function public.internal_needing(uuid[]) from %I', v_role);
    end loop;
end
$$;
