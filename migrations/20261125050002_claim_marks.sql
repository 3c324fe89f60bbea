-- Where a claim begins to look. The head of the claims' index is full of the entries of tasks that have been claimed, and
-- while anybody holds a snapshot (a dump, a forgotten "begin") nobody may clear them away: each claim walked over all of
-- them. So each pool has a mark, below which nothing was claimable in the snapshot that made it:
--
--   a raised mark (seen is set) says: in this snapshot, no task without a run_after could be claimed before this place;
--   a lowered one (seen is null) is written by whatever makes a task claimable, in its own transaction and always.
--
-- A claim begins at the newest raised mark, or at the lowest of the lowered ones whose transactions that mark's snapshot did
-- not see. Nobody waits for anybody, and nothing is hidden in any isolation: what can be claimed was either seen by the
-- snapshot, and is not below its mark, or was not, and has its own. Without a raised mark a claim looks everywhere. Tasks
-- that have come due are looked up by their time, since no transaction makes them claimable.
--
-- Read newest first and by transaction, so that dead rows of this table are not walked over either.

create table public.task_marks (
    no bigint generated always as identity,
    pool text not null,
    seen pg_snapshot,
    xid xid8 not null default pg_current_xact_id(),
    place int not null,  -- ~priority: ascending, so that a place is one comparison of rows
    created_at timestamptz not null,
    id uuid not null
);
comment on table public.task_marks is 'Where claims begin to look in each pool; see the migration claim_marks';
alter table public.task_marks set (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);
create index task_marks_raised on public.task_marks (pool, no desc) where seen is not null;
create index task_marks_lowered on public.task_marks (pool, xid) where seen is null;

-- Whoever is adding tasks now, without marks, ends before this goes on; whoever comes later marks.
lock table public.tasks in access exclusive mode;
drop index public.tasks_claim;
create index tasks_claim on public.tasks (pool, (~priority), created_at, id) include (run_after)
    where status = 'Queued' and not blocked;

-- The place before which nothing in the pool can be claimed, and how many lowered marks were read for it. In one statement:
-- a mark raised between two looks would take away the lowered ones that the mark before it needs. A transaction's own
-- number is not among those that its snapshot says are running, so what it adds after it raised a mark is asked for by name.
create function public.internal_mark(p_pool text, p_now timestamptz, out place int, out created_at timestamptz, out id uuid,
                                     out lowered int)
language plpgsql volatile security definer set search_path = ''
set enable_seqscan = off set enable_sort = off set plan_cache_mode = force_generic_plan as $$
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
                where t.pool = p_pool and t.status = 'Queued' and not t.blocked and t.run_after <= p_now limit c_due) c) d
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

-- Raises the mark of a pool to its first claimable task, and removes what that makes needless; with p_anew whatever the
-- marks say. One at a time, and who finds another at it leaves it to them. What it says it has seen is older than all
-- that it looks at, so that nothing falls in between.
create function public.internal_raise_mark(p_pool text, p_now timestamptz, p_anew boolean) returns void
language plpgsql volatile security definer set search_path = ''
set enable_seqscan = off set enable_sort = off set plan_cache_mode = force_generic_plan as $$
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
    select m.place, m.created_at, m.id into v_from from public.internal_mark(p_pool, p_now) m;
    if p_anew then
        v_from.place := -2147483648;
        v_from.created_at := '-infinity';
    end if;
    insert into public.task_marks (pool, seen, place, created_at, id)
    select p_pool, v_seen, coalesce(h.place, 2147483647), coalesce(h.created_at, 'infinity'),
           coalesce(h.id, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
      from (values (1)) v (one) left join (
           select ~t.priority as place, t.created_at, t.id from public.tasks t
            where t.pool = p_pool and t.status = 'Queued' and not t.blocked and t.run_after is null
              and (~t.priority, t.created_at, t.id) >= (v_from.place, v_from.created_at, v_from.id)
            order by ~t.priority, t.created_at, t.id limit 1) h on true;
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

-- As before, and whatever becomes claimable lowers the mark. The lowest place of several is not looked for exactly: lower is safe.
create or replace function public.internal_tasks_counted() returns trigger
language plpgsql security definer set search_path = '' as $$
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
    elsif tg_op = 'DELETE' then
        insert into public.task_counts (pool, kind, n)
        select a.pool, k.kind, -count(*)
          from removed a cross join lateral (
              select case when a.blocked then 'blocked' when a.run_after is not null then 'timed' else 'plain' end as kind) k
         where a.status = 'Queued' group by 1, 2;
    else
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

-- As before; with p_anew the marks are made anew too.
create or replace function public.internal_roll_up(p_anew boolean) returns void
language plpgsql security definer set search_path = '' as $$
begin
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

create or replace function public.internal_take(p_worker public.workers, p_claim_no bigint, p_batch int, p_now timestamptz)
returns jsonb language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan as $$
declare
    v_from record;
    v_rows tid[];
    v_plain int;
    v_tasks jsonb;
    v_log_first bigint := (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint;
    c_least constant int := -2147483648;
    c_raise_every constant int := 32;  -- tasks that a worker claims, between two of its tries to raise the mark
    c_lowered constant int := 64;  -- marks; more than that are not read again and again
begin
    select m.place, m.created_at, m.id, m.lowered into v_from from public.internal_mark(p_worker.pool, p_now) m;
    loop
        select array_agg(l.ctid), count(*) filter (where l.run_after is null) into v_rows, v_plain from (
            select q.ctid, q.run_after from public.tasks q
             where q.pool = p_worker.pool and q.status = 'Queued' and not q.blocked
               and (q.run_after is null or q.run_after <= p_now)
               and (~q.priority, q.created_at, q.id) >= (v_from.place, v_from.created_at, v_from.id)
             order by ~q.priority, q.created_at, q.id
             limit p_batch for update skip locked) l;
        exit when v_rows is not null;
        -- Nothing, where the counts say that there is something: others are taking it now, or a mark is wrong. No task waits
        -- for ever for that: it is looked everywhere before a worker is sent away.
        if v_from.place = c_least
           or coalesce((select sum(c.n) from public.task_counts c where c.pool = p_worker.pool and c.kind = 'plain'), 0) <= 0 then
            return null;
        end if;
        perform public.internal_raise_mark(p_worker.pool, p_now, true);
        v_from.place := c_least;
        v_from.created_at := '-infinity';
    end loop;
    perform set_config('orchestrator.minded', 'on', true);  -- counted here; nothing waits for a start, nobody is told of one
    with taken as (
        update public.tasks t
           set status = 'In Progress', worker_id = p_worker.id, attempts = t.attempts + 1, updated_at = p_now,
               lease_expires_at = p_now + p_worker.lease_s * interval '1 second',
               progress = null, progress_at = p_now, run_after = null, error_message = null, failure_code = null,
               failed_at_point = null, generation_started_at = p_now, generation_processed_at = null
         where t.ctid = any (v_rows)
        returning t.id, t.task_type, t.params, t.attempts, t.max_attempts, t.timeout_s, t.depends_on, t.priority, t.created_at
    ), noted as (
        insert into public.task_attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, log_first)
        select k.id, k.attempts, p_worker.id, p_worker.nonce, p_claim_no, p_now, v_log_first from taken k
    ), counted as (
        insert into public.task_counts (pool, kind, n)
        select p_worker.pool, c.kind, -c.n
          from (values ('plain', v_plain), ('timed', cardinality(v_rows) - v_plain)) c (kind, n) where c.n > 0
    )
    select jsonb_agg(jsonb_build_object(
               'id', k.id, 'task_type', k.task_type, 'params', k.params, 'attempt', k.attempts,
               'max_attempts', k.max_attempts, 'timeout_s', k.timeout_s,
               'output_prefix', 'outputs/' || k.id || '/' || k.attempts || '/',
               'dependencies', case when k.depends_on = '{}' then '[]' else coalesce((
                   select jsonb_agg(jsonb_build_object('id', d.id, 'task_type', d.task_type,
                                                       'output_location', d.output_location,
                                                       'result_data', d.result_data) order by n.place)
                     from unnest(k.depends_on) with ordinality n (id, place)
                     join public.tasks d on d.id = n.id), '[]') end)
               order by k.priority desc, k.created_at, k.id)
      into v_tasks from taken k;
    perform set_config('orchestrator.minded', '', true);
    if p_claim_no % c_raise_every * p_batch % c_raise_every < p_batch or v_from.lowered > c_lowered then
        perform public.internal_raise_mark(p_worker.pool, p_now, false);
    end if;
    return v_tasks;
end
$$;

-- As before, by the index as it is now.
create or replace function public.fleet_changes(p_digest text, p_now timestamptz default null) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    c_head constant int := 100;  -- tasks of a pool: where more than that can be claimed, nobody waits for another
    v_marks jsonb;
begin
    with recursive pools(pool) as (  -- from one to the next in the index, however many tasks each has
        (select t.pool from public.tasks t where t.status = 'Queued' and not t.blocked order by t.pool limit 1)
        union all
        select (select t.pool from public.tasks t where t.status = 'Queued' and not t.blocked and t.pool > p.pool
                 order by t.pool limit 1)
          from pools p where p.pool is not null
    ), heads as (
        select p.pool, h.mark
          from pools p
         cross join lateral (
             select md5(string_agg(c.id || '/' || c.attempts, ',')) as mark from (
                 select t.id, t.attempts from public.tasks t
                  where t.pool = p.pool and t.status = 'Queued' and not t.blocked
                    and coalesce(t.run_after <= v_now, true)
                  order by ~t.priority, t.created_at, t.id limit c_head) c) h
         where h.mark is not null
    ), held as (
        select t.worker_id, string_agg(t.id || '/' || t.attempts, ',' order by t.id) as tasks
          from public.tasks t where t.status = 'In Progress' and t.worker_id is not null group by t.worker_id
    ), fleet as (
        select w.id as key,
               md5(concat_ws('|', w.status, w.stage, w.drain_requested_at, w.stop_requested_at, w.agent->>'nonce',
                             w.last_heartbeat is null, h.tasks)) as mark
          from public.workers w left join held h on h.worker_id = w.id
         where w.status <> 'terminated'
        union all
        select '', md5(concat_ws('|',
            (select string_agg(concat_ws('/', l.fleet, l.term, l.holder, l.expires_at <= v_now), ',' order by l.fleet)
               from public.fleet_lease l),
            (select string_agg(concat_ws('/', s.fleet, s.name, s.set_at), ',' order by s.fleet, s.name)
               from public.fleet_settings s where s.name like 'paused%')))
    )
    select jsonb_build_object(
        'orchestrator_tasks', coalesce((select jsonb_object_agg(h.pool, h.mark) from heads h), '{}'),
        'orchestrator_fleet', (select jsonb_object_agg(f.key, f.mark) from fleet f))
      into v_marks;
    return jsonb_build_object('digest', md5(v_marks::text),
                              'marks', case when md5(v_marks::text) is distinct from p_digest then v_marks end);
end
$$;

alter table public.task_marks enable row level security;
do $$
declare
    v_function regprocedure;
    v_role name;
begin
    revoke all on public.task_marks from public;
    revoke all on sequence public.task_marks_no_seq from public;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated') loop
        execute format('revoke all on public.task_marks from %I', v_role);
        execute format('revoke all on sequence public.task_marks_no_seq from %I', v_role);
    end loop;
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        grant all on public.task_marks to service_role;
    end if;
    for v_function in
        select p.oid::regprocedure from pg_catalog.pg_proc p
         where p.pronamespace = 'public'::regnamespace and p.proname in ('internal_mark', 'internal_raise_mark')
    loop
        execute format('revoke all on function %s from public', v_function);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function %s from %I', v_function, v_role);
        end loop;
    end loop;
end
$$;
