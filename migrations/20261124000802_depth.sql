-- How many tasks wait in each pool, and for what, without counting them: every change of the queue leaves its difference as
-- a row of task_counts, in its own transaction, and the sum of the rows is the count, in any snapshot. Rows are inserted
-- and rolled up, never updated: nobody waits for anybody.
--
-- "timed" tasks (with a run_after) become claimable by the clock alone; the due ones among them are counted when asked.

create table public.task_counts (
    pool text not null,
    kind text not null check (kind in ('plain', 'timed', 'blocked')),
    n bigint not null
);
comment on table public.task_counts is 'Differences; the sum for a pool and kind is the number of its queued tasks';
alter table public.task_counts set (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);

create index tasks_timed on public.tasks (pool, run_after) include (created_at)
    where status = 'Queued' and not blocked and run_after is not null;
create index tasks_oldest on public.tasks (pool, created_at) where status = 'Queued' and not blocked and run_after is null;

create function public.internal_tasks_counted() returns trigger
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
    end if;
    return null;
end
$$;
create trigger tasks_counted_added after insert on public.tasks
    referencing new table as added for each statement execute function public.internal_tasks_counted();
create trigger tasks_counted_changed after update on public.tasks
    referencing old table as was new table as changed for each statement
    when (current_setting('orchestrator.minded', true) is distinct from 'on')
    execute function public.internal_tasks_counted();
create trigger tasks_counted_removed after delete on public.tasks
    referencing old table as removed for each statement execute function public.internal_tasks_counted();
create trigger tasks_counted_truncated after truncate on public.tasks
    for each statement execute function public.internal_tasks_counted();

-- Makes few rows of many. Exactly what was deleted is put back as its sum, so that nothing is lost or doubled whatever
-- commits meanwhile; with p_anew the sums are counted from the tasks, which mends what was changed with triggers off.
create function public.internal_roll_up(p_anew boolean) returns void
language plpgsql security definer set search_path = '' as $$
begin
    lock table public.task_counts in share update exclusive mode;  -- one at a time; inserts go on
    if p_anew then
        with gone as (delete from public.task_counts)
        insert into public.task_counts (pool, kind, n)
        select t.pool, case when t.blocked then 'blocked' when t.run_after is not null then 'timed' else 'plain' end, count(*)
          from public.tasks t where t.status = 'Queued' group by 1, 2;
    else
        with gone as (delete from public.task_counts returning pool, kind, n)
        insert into public.task_counts (pool, kind, n)
        select g.pool, g.kind, sum(g.n) from gone g group by 1, 2 having sum(g.n) <> 0;
    end if;
end
$$;

create or replace function public.fleet_retention(p_fleet text, p_term bigint, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_bite constant int := 10000;  -- rows per table and call
    v_decisions int;
    v_events int;
    v_attempts int;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_retention');
    delete from public.decisions d where d.id in (
        select o.id from public.decisions o
         where o.fleet = p_fleet and o.at < v_now - interval '30 days'
           and exists (select from public.decisions n where n.fleet = o.fleet and n.pool = o.pool and n.id > o.id)
         limit c_bite);
    get diagnostics v_decisions = row_count;
    delete from public.worker_events e where e.id in (
        select o.id from public.worker_events o join public.workers w on w.id = o.worker_id
         where w.fleet = p_fleet and w.terminated_at < v_now - interval '90 days' limit c_bite);
    get diagnostics v_events = row_count;
    delete from public.worker_attempts a where a.id in (
        select o.id from public.worker_attempts o join public.workers w on w.id = o.worker_id
         where w.fleet = p_fleet and w.terminated_at < v_now - interval '90 days' limit c_bite);
    get diagnostics v_attempts = row_count;
    perform public.internal_roll_up(true);
    return jsonb_build_object('decisions', v_decisions, 'worker_events', v_events, 'worker_attempts', v_attempts);
end
$$;

-- As before, but the queue is not counted.
create or replace function public.fleet_snapshot(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_paused jsonb := public.internal_pauses(p_fleet, v_now);
    v_avoid jsonb := '{}';
    c_climbs constant int := 100;  -- of each pool: what the breaker looks back on
    c_differences constant int := 1000;  -- more rows than that are rolled up first
begin
    if (select count(*) from (select from public.task_counts limit c_differences + 1) c) > c_differences then
        perform public.internal_roll_up(false);
    end if;
    if to_regclass('public.hosts') is not null then  -- it comes with a later migration
        select coalesce(jsonb_object_agg(h.key, h.avoid_until), '{}') into v_avoid
          from public.hosts h where h.fleet = p_fleet and h.avoid_until > v_now;
    end if;
    return (
        with running as (
            select t.worker_id, t.pool, count(*) as n, min(coalesce(t.progress_at, t.generation_started_at)) as progress_at,
                   (array_agg(t.id order by coalesce(t.progress_at, t.generation_started_at), t.id))[1] as slowest
              from public.tasks t where t.status = 'In Progress' group by t.worker_id, t.pool
        ), held as (
            select r.worker_id, sum(r.n) as n, min(r.progress_at) as progress_at,
                   (array_agg(r.slowest order by r.progress_at))[1] as slowest
              from running r where r.worker_id is not null group by r.worker_id
        ), counts as (
            select c.pool, c.kind, sum(c.n) as n from public.task_counts c group by c.pool, c.kind
        ), due as (  -- what has come due since it was put off
            select c.pool, count(t.run_after) as n, min(t.created_at) as oldest
              from counts c
              left join public.tasks t on t.pool = c.pool and t.status = 'Queued' and not t.blocked
                                      and t.run_after is not null and t.run_after <= v_now
             where c.kind = 'timed' and c.n > 0 group by c.pool
        ), queued as (
            select c.pool, c.total, c.dependencies, c.timed - coalesce(d.n, 0) as scheduled,
                   c.plain + coalesce(d.n, 0) as ready,
                   least(d.oldest, case when c.plain > 0 then (
                       select min(t.created_at) from public.tasks t
                        where t.pool = c.pool and t.status = 'Queued' and not t.blocked and t.run_after is null) end) as oldest
              from (select pool, sum(n) as total, coalesce(sum(n) filter (where kind = 'blocked'), 0) as dependencies,
                           coalesce(sum(n) filter (where kind = 'timed'), 0) as timed,
                           coalesce(sum(n) filter (where kind = 'plain'), 0) as plain
                      from counts group by pool having sum(n) <> 0) c
              left join due d on d.pool = c.pool
        ), demand as (
            select p.pool, v_paused ?| array['*', p.pool] as paused, coalesce(q.ready, 0) as ready,
                   coalesce(r.n, 0) as running, coalesce(q.dependencies, 0) as dependencies,
                   coalesce(q.scheduled, 0) as scheduled, q.oldest
              from (select pool from queued union select pool from running) p
              left join queued q on q.pool = p.pool
              left join (select pool, sum(n) as n from running group by pool) r on r.pool = p.pool
        ), climbs as (
            select w.id, w.pool, w.climb_ended_at, w.promoted_at is not null as promoted, w.exit_cause, w.failure_code,
                   w.release, row_number() over (partition by w.pool order by w.climb_ended_at desc, w.id) as place
              from public.workers w where w.fleet = p_fleet and w.climb_ended_at > v_now - interval '1 day'
        )
        select jsonb_build_object(
            'now', v_now,
            'workers', coalesce((
                select jsonb_agg(to_jsonb(w) || jsonb_build_object('tasks_running', coalesce(h.n, 0),
                           'progress_at', h.progress_at, 'slowest_task', h.slowest) order by w.id)
                  from public.workers w left join held h on h.worker_id = w.id
                 where w.fleet = p_fleet and w.status <> 'terminated'), '[]'),
            'demand', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'pool', d.pool, 'claimable', case when d.paused then 0 else d.ready end, 'running', d.running,
                           'blocked', jsonb_build_object('dependencies', d.dependencies, 'scheduled', d.scheduled,
                                                         'paused', case when d.paused then d.ready else 0 end),
                           'oldest_claimable_at', d.oldest) order by d.pool) from demand d), '[]'),
            'expired_leases', (
                select count(*) from public.tasks t
                 where t.status = 'In Progress'
                   and public.internal_is_abandoned(t.worker_id, t.lease_expires_at, v_now)),
            'offers', coalesce((
                select jsonb_agg(to_jsonb(o) - 'fleet' order by o.key) from public.offers o
                 where o.fleet = p_fleet), '[]'),
            'last_spawn_at', coalesce((
                select jsonb_object_agg(s.pool, s.at) from (
                    select w.pool, max(w.created_at) as at from public.workers w
                     where w.fleet = p_fleet and w.stage is not null group by w.pool) s), '{}'),
            'ended', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'worker_id', c.id, 'pool', c.pool, 'at', c.climb_ended_at, 'promoted', c.promoted,
                           'exit_cause', case when not c.promoted then c.exit_cause end,
                           'failure_code', case when not c.promoted then c.failure_code end, 'release', c.release)
                       order by c.climb_ended_at, c.id)
                  from climbs c where c.place <= c_climbs), '[]'),
            'proven', coalesce((
                select jsonb_agg(r.release order by r.release) from public.releases r
                 where r.fleet = p_fleet and r.promoted_at > v_now - interval '30 days'), '[]'),
            'spent', (select to_jsonb(s) from public.internal_spent(p_fleet, null, v_now) s),
            'avoid', v_avoid,
            'paused', v_paused,
            'queued_total', (select coalesce(sum(q.total), 0) from queued q))
    );
end
$$;

-- Takes tasks for a worker, and answers with them; sequential scans and sorts are off, so that a plan made while the queue
-- was short cannot stay on when it is long; and it is made once, since making it takes longer than claiming a task.
create or replace function public.internal_take(p_worker public.workers, p_claim_no bigint, p_batch int, p_now timestamptz)
returns jsonb language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan as $$
declare
    v_rows tid[];
    v_plain int;
    v_tasks jsonb;
    v_log_first bigint := (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint;
begin
    select array_agg(l.ctid), count(*) filter (where l.run_after is null) into v_rows, v_plain from (
        select q.ctid, q.run_after from public.tasks q
         where q.pool = p_worker.pool and q.status = 'Queued' and not q.blocked
           and (q.run_after is null or q.run_after <= p_now)
         order by q.priority desc, q.created_at, q.id
         limit p_batch for update skip locked) l;
    if v_rows is null then
        return null;
    end if;
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
    return v_tasks;
end
$$;


select public.internal_roll_up(true);

alter table public.task_counts enable row level security;
do $$
declare
    v_function regprocedure;
    v_role name;
begin
    revoke all on public.task_counts from public;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated') loop
        execute format('revoke all on public.task_counts from %I', v_role);
    end loop;
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        grant all on public.task_counts to service_role;
    end if;
    for v_function in
        select p.oid::regprocedure from pg_catalog.pg_proc p
         where p.pronamespace = 'public'::regnamespace and p.proname in ('internal_tasks_counted', 'internal_roll_up')
    loop
        execute format('revoke all on function %s from public', v_function);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function %s from %I', v_function, v_role);
        end loop;
    end loop;
end
$$;
