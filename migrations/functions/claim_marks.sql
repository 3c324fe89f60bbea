-- Where a claim starts to read the index tasks_claim_order.
--
-- The head of that index fills up with entries of tasks that were claimed. While any transaction holds an old snapshot
-- (a dump, a forgotten "begin"), vacuum cannot remove them, and each claim would read all of them. So each pool has a
-- mark below which nothing was claimable in the snapshot that made it:
--   * a raised mark (`seen` is set): in this snapshot no task without run_after was claimable before this place;
--   * a lowered mark (`seen` is null): written by every statement that makes a task claimable, in its own transaction.
-- A claim starts at the newest raised mark, or at the lowest lowered mark of a transaction that the raised mark's
-- snapshot did not see. No transaction waits for another, and no task is hidden at any isolation level: a claimable
-- task was seen by the snapshot and is not below its mark, or was not seen and has its own mark. Without a raised mark
-- a claim reads the whole index. Tasks that become due are found by their time, because no transaction makes them
-- claimable.

comment on table public.task_marks is 'Where claims begin to look in each pool; see functions/claim_marks.sql';

-- Where the next claim of a pool starts, and how many lowered marks there are. It reads only by index: a plan that was
-- made while the queue was empty took 50 ms in a queue of 100,000.
create or replace function public.internal_claim_start(
    p_pool text, p_now timestamptz, out place int, out queue_turn bigint, out created_at timestamptz, out id uuid,
    out lowered int
)
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    c_nowhere constant uuid := '00000000-0000-0000-0000-000000000000';
    c_least constant int := -2147483648;
    c_due constant int := 100;  -- tasks; if more are due, the claim reads the whole index
    v_low int;
    v_low_turn bigint;
    v_low_at timestamptz;
    v_due int;
    v_due_place int;
    v_due_turn bigint;
    v_due_at timestamptz;
begin
    select r.place, r.queue_turn, r.created_at, r.id, l.n, l.place, l.queue_turn, l.created_at, d.n, d.place, d.queue_turn,
           d.created_at
      into place, queue_turn, created_at, id, lowered, v_low, v_low_turn, v_low_at, v_due, v_due_place, v_due_turn, v_due_at
      from (select m.seen, m.xid, m.place, m.queue_turn, m.created_at, m.id from public.task_marks m
             where m.pool = p_pool and m.seen is not null order by m.no desc limit 1) r
     cross join lateral (
           select count(*) as n, min(m.place) as place, min(m.queue_turn) as queue_turn, min(m.created_at) as created_at
             from public.task_marks m
            where m.pool = p_pool and m.seen is null and m.xid >= pg_snapshot_xmin(r.seen)
              and (m.xid = r.xid or not pg_visible_in_snapshot(m.xid, r.seen))) l
     cross join lateral (
           select count(*) as n, min(c.place) as place, min(c.queue_turn) as queue_turn, min(c.created_at) as created_at from (
               select ~t.priority as place, t.queue_turn, t.created_at from public.tasks t
                where t.pool = p_pool and t.status = 'Queued' and not t.blocked and t.run_after <= p_now
                order by t.run_after limit c_due) c) d  -- ordered: so it uses its own index, not the whole queue
     where pg_snapshot_xmax(r.seen) <= pg_snapshot_xmax(pg_current_snapshot());  -- not restored from another server
    if not found or v_due = c_due then
        place := c_least;
        queue_turn := 0;
        created_at := '-infinity';
        id := c_nowhere;
        return;
    end if;
    if (v_low, v_low_turn, v_low_at) <= (place, queue_turn, created_at) then
        place := v_low;
        queue_turn := v_low_turn;
        created_at := v_low_at;
        id := c_nowhere;
    end if;
    if (v_due_place, v_due_turn, v_due_at) <= (place, queue_turn, created_at) then
        place := v_due_place;
        queue_turn := v_due_turn;
        created_at := v_due_at;
        id := c_nowhere;
    end if;
end
$$;

-- Raises the mark of a pool to its first claimable task, and removes the marks that this makes useless; with p_anew it
-- ignores the existing marks. Only one caller works at a time; others return at once. The recorded snapshot is older
-- than every row that is read, so no task is missed in between.
create or replace function public.internal_raise_mark(p_pool text, p_now timestamptz, p_anew boolean) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    v_seen pg_snapshot;
    v_last record;
    v_from record;
    c_marks constant int := 1951809;  -- a namespace of advisory locks
begin
    if current_setting('transaction_isolation') <> 'read committed'  -- its snapshot may be older than the last mark's
       or not pg_try_advisory_xact_lock(c_marks, hashtext(p_pool)) then
        return;
    end if;
    v_seen := pg_current_snapshot();
    select m.no, pg_snapshot_xmin(m.seen) as xmin into v_last
      from public.task_marks m where m.pool = p_pool and m.seen is not null order by m.no desc limit 1;
    v_from := public.internal_claim_start(p_pool, p_now);
    if p_anew then
        v_from.place := -2147483648;
        v_from.queue_turn := 0;
        v_from.created_at := '-infinity';
    end if;
    insert into public.task_marks (pool, seen, place, queue_turn, created_at, id)
    select p_pool, v_seen, coalesce(h.place, 2147483647), coalesce(h.queue_turn, 9007199254740991),
           coalesce(h.created_at, 'infinity'), coalesce(h.id, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
      from (values (1)) v (one) left join (
           select ~t.priority as place, t.queue_turn, t.created_at, t.id from public.tasks t
            where t.pool = p_pool and t.status = 'Queued' and not t.blocked and t.run_after is null
              and (~t.priority, t.queue_turn, t.created_at, t.id)
                  >= (v_from.place, v_from.queue_turn, v_from.created_at, v_from.id)
            order by ~t.priority, t.queue_turn, t.created_at, t.id limit 1) h on true;
    delete from public.task_marks m where m.pool = p_pool and m.seen is not null and m.no = v_last.no;
    delete from public.task_marks m
     where m.pool = p_pool and m.seen is null and m.xid >= coalesce(v_last.xmin, '0') and m.xid < pg_snapshot_xmin(v_seen);
    if p_anew then
        delete from public.task_marks m
         where m.pool = p_pool and m.seen is null
           and (m.xid < pg_snapshot_xmin(v_seen) or m.xid >= pg_snapshot_xmax(pg_current_snapshot()));
    end if;
end
$$;
