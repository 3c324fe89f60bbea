-- Where a claim starts to read the index live_claim.
--
-- The head of that index fills up with entries of tasks that were claimed. While any transaction holds an old snapshot
-- (a dump, a forgotten "begin"), vacuum cannot remove them, and each claim would read all of them. So each pool has a
-- mark below which nothing was ready in the snapshot that made it:
--   * a raised mark (`seen` is set): in this snapshot no task was ready before this place;
--   * a lowered mark (`seen` is null): written by every statement that makes a task ready, in its own transaction.
-- A claim starts at the newest raised mark, or at the lowest lowered mark of a transaction that the raised mark's
-- snapshot did not see. No transaction waits for another, and no task is hidden at any isolation level: a ready task
-- was seen by the snapshot and is not below its mark, or was not seen and has its own mark. Without a raised mark a
-- claim reads the whole index.

-- Where the next claim of a pool starts, and how many lowered marks there are.
create or replace function orchestrator.claim_start(
    p_pool text, out place int, out turn bigint, out created_at timestamptz, out task_id uuid, out lowered int
)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    c_nowhere constant uuid := '00000000-0000-0000-0000-000000000000';
    v_low int;
    v_low_turn bigint;
    v_low_at timestamptz;
begin
    select r.place, r.turn, r.created_at, r.task_id, l.n, l.place, l.turn, l.created_at
      into place, turn, created_at, task_id, lowered, v_low, v_low_turn, v_low_at
      from (select m.seen, m.xid, m.place, m.turn, m.created_at, m.task_id from orchestrator.marks m
             where m.pool = p_pool and m.seen is not null order by m.no desc limit 1) r
     cross join lateral (
           select count(*) as n, min(m.place) as place, min(m.turn) as turn, min(m.created_at) as created_at
             from orchestrator.marks m
            where m.pool = p_pool and m.seen is null and m.xid >= pg_snapshot_xmin(r.seen)
              and (m.xid = r.xid or not pg_visible_in_snapshot(m.xid, r.seen))) l
     where pg_snapshot_xmax(r.seen) <= pg_snapshot_xmax(pg_current_snapshot());  -- not restored from another server
    if not found then
        place := -2147483648;
        turn := 0;
        created_at := '-infinity';
        task_id := c_nowhere;
        lowered := 0;
    elsif (v_low, v_low_turn, v_low_at) <= (place, turn, created_at) then
        place := v_low;
        turn := v_low_turn;
        created_at := v_low_at;
        task_id := c_nowhere;
    end if;
end
$$;

-- Raises the mark of a pool to its first ready task, and removes the marks that this makes useless; with p_anew it
-- ignores the existing marks. Only one caller works at a time; others return at once. The recorded snapshot is older
-- than every row that is read, so no task is missed in between.
create or replace function orchestrator.raise_mark(p_pool text, p_anew boolean) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_sort = off
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
      from orchestrator.marks m where m.pool = p_pool and m.seen is not null order by m.no desc limit 1;
    v_from := orchestrator.claim_start(p_pool);
    if p_anew then
        v_from.place := -2147483648;
        v_from.turn := 0;
        v_from.created_at := '-infinity';
    end if;
    insert into orchestrator.marks (pool, seen, place, turn, created_at, task_id)
    select p_pool, v_seen, coalesce(h.place, 2147483647), coalesce(h.turn, 9007199254740991),
           coalesce(h.created_at, 'infinity'), coalesce(h.task_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
      from (values (1)) v (one) left join (
           select q.place, q.turn, q.created_at, q.task_id from orchestrator.live q
            where q.pool = p_pool and q.state = 'ready'
              and (q.place, q.turn, q.created_at, q.task_id)
                  >= (v_from.place, v_from.turn, v_from.created_at, v_from.task_id)
            order by q.place, q.turn, q.created_at, q.task_id limit 1) h on true;
    delete from orchestrator.marks m where m.pool = p_pool and m.seen is not null and m.no = v_last.no;
    delete from orchestrator.marks m
     where m.pool = p_pool and m.seen is null and m.xid >= coalesce(v_last.xmin, '0')
       and m.xid < pg_snapshot_xmin(v_seen);
    if p_anew then
        delete from orchestrator.marks m
         where m.pool = p_pool and m.seen is null
           and (m.xid < pg_snapshot_xmin(v_seen) or m.xid >= pg_snapshot_xmax(pg_current_snapshot()));
    end if;
end
$$;
