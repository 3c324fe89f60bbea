-- Each claim looked through a queue of 100,000, where it was planned while the queue was empty: 50 ms instead of one.
create or replace function public.internal_mark(p_pool text, p_now timestamptz, out place int, out created_at timestamptz, out id uuid,
                                     out lowered int)
language plpgsql volatile security definer set search_path = '' as $$
declare
    c_nowhere constant uuid := '00000000-0000-0000-0000-000000000000';
    c_least constant int := -2147483648;
    c_due constant int := 100;  -- more of them than that, and the claim looks everywhere
    v_low int;
    v_low_at timestamptz;
    v_due int;
    v_due_place int;
    v_due_at timestamptz;
begin
    select r.place, r.created_at, r.id, l.n, l.place, l.created_at, d.n, d.place, d.created_at
      into place, created_at, id, lowered, v_low, v_low_at, v_due, v_due_place, v_due_at
      from (select m.seen, m.xid, m.place, m.created_at, m.id from public.task_marks m
             where m.pool = p_pool and m.seen is not null order by m.no desc limit 1) r
     cross join lateral (
           select count(*) as n, min(m.place) as place, min(m.created_at) as created_at from public.task_marks m
            where m.pool = p_pool and m.seen is null and m.xid >= pg_snapshot_xmin(r.seen)
              and (m.xid = r.xid or not pg_visible_in_snapshot(m.xid, r.seen))) l
     cross join lateral (
           select count(*) as n, min(c.place) as place, min(c.created_at) as created_at from (
               select ~t.priority as place, t.created_at from public.tasks t
                where t.pool = p_pool and t.status = 'Queued' and not t.blocked and t.run_after <= p_now
                order by t.run_after limit c_due) c) d  -- ordered: by its own index, and not through the whole queue
     where pg_snapshot_xmax(r.seen) <= pg_snapshot_xmax(pg_current_snapshot());  -- not restored from another server
    if not found or v_due = c_due then
        place := c_least;
        created_at := '-infinity';
        id := c_nowhere;
        return;
    end if;
    if (v_low, v_low_at) <= (place, created_at) then
        place := v_low;
        created_at := v_low_at;
        id := c_nowhere;
    end if;
    if (v_due_place, v_due_at) <= (place, created_at) then
        place := v_due_place;
        created_at := v_due_at;
        id := c_nowhere;
    end if;
end
$$;

-- What agents and each tick call does not read whole tables either, where they were small when a connection planned it: in a
-- queue that had just grown to 100,000 a completion took 50 ms instead of two, a submission 130, until the next analysis.
alter function public.worker_heartbeat set enable_seqscan = off;
alter function public.worker_complete set enable_seqscan = off;
alter function public.worker_fail set enable_seqscan = off;
alter function public.worker_release set enable_seqscan = off;
alter function public.fleet_heartbeats set enable_seqscan = off;
alter function public.fleet_rescue set enable_seqscan = off;
alter function public.fleet_rescue_overdue set enable_seqscan = off;
alter function public.fleet_task_explain set enable_seqscan = off;
alter function public.task_submit set enable_seqscan = off;
alter function public.task_cancel set enable_seqscan = off;
alter function public.task_retry set enable_seqscan = off;

-- Who waits for one of these is found by their GIN index alone, which is read by bitmap, and the way into it takes the square
-- of how many are asked for at once: a hundred thousand that ended in one statement go in slices.
create or replace function public.internal_settle_dependants(p_ids uuid[]) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_indexscan = off as $$
declare
    c_slice constant int := 1000;
    v_ended uuid[] := p_ids;
    v_dependants uuid[];
begin
    while v_ended is not null loop
        select array_agg(l.id) into v_dependants from (
            select t.id from public.tasks t
             where t.blocked and t.status = 'Queued' and t.id = any (array(
                       select w.id
                         from (select array_agg(e.id) as ids
                                 from unnest(v_ended) with ordinality e (id, n) group by (e.n - 1) / c_slice) s
                        cross join lateral (
                              select w.id from public.tasks w
                               where w.blocked and w.status = 'Queued' and w.depends_on && s.ids) w))
             order by t.id for update) l;
        exit when v_dependants is null;
        perform set_config('orchestrator.settling', 'on', true);
        perform public.internal_settle(v_dependants);
        perform set_config('orchestrator.settling', '', true);
        select array_agg(t.id) into v_ended from public.tasks t where t.id = any (v_dependants) and t.status = 'Failed';
    end loop;
end
$$;

create or replace function public.internal_settle_new(p_ids uuid[]) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off as $$
begin
    perform from public.tasks d
      where d.id = any (array(select unnest(t.depends_on) from public.tasks t where t.id = any (p_ids)))
      order by d.id for share;
    perform public.internal_settle(p_ids);
end
$$;

create or replace function public.internal_tasks_added() returns trigger
language plpgsql security definer set search_path = '' set enable_seqscan = off as $$
declare
    v_waiting uuid[];
    v_ended uuid[];
begin
    select array_agg(a.id) filter (where a.depends_on <> '{}' and a.status = 'Queued'),
           array_agg(a.id) filter (where a.status in ('Complete', 'Failed', 'Cancelled'))
      into v_waiting, v_ended from added a;
    if v_waiting is not null then
        perform public.internal_settle_new(v_waiting);
    end if;
    if v_ended is not null then
        perform public.internal_settle_dependants(v_ended);
    end if;
    perform pg_notify('orchestrator_tasks', p.pool)
       from (select distinct a.pool from added a
              where a.status = 'Queued'
                and (a.depends_on = '{}'
                     or (select t.status = 'Queued' and not t.blocked from public.tasks t where t.id = a.id))) p;
    return null;
end
$$;
