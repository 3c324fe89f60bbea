-- What grows with the age of a fleet, or of one worker, and was read whole.
--
-- A worker that is kept (MIN_ACTIVE_GPUS) and gets a task now and then writes two events for each: after some weeks its end,
-- which reads its row with all of them, ran into the statement's time, and then into what one jsonb can be. Its beginning
-- and its newest rows are what anybody looks at; its steps between active and idle go after a week, though it lives.
--
-- Each such step books an interval too: two million a day where a million tasks come one by one, and each look at the fleet
-- adds up today's. Of an hour that is over, what a worker cost in each kind of state is one row. What is known of the logs of
-- workers that ended 90 days ago goes, as their other rows do.
create or replace function public.fleet_worker(p_fleet text, p_worker_id text, p_now timestamptz default null) returns jsonb
language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers;
    c_first constant int := 200;  -- its bring-up …
    c_last constant int := 800;  -- … and what it came to
begin
    select * into v_worker from public.workers w where w.id = p_worker_id and w.fleet = p_fleet;
    if not found then
        return jsonb_build_object('now', v_now, 'worker', null, 'events', '[]'::jsonb, 'attempts', '[]'::jsonb,
                                  'tasks', '[]'::jsonb);
    end if;
    return jsonb_build_object(
        'now', v_now,
        'worker', public.internal_worker_report(v_worker, v_now),
        'events', coalesce((
            select jsonb_agg(to_jsonb(e) order by e.id) from (
                (select * from public.worker_events b where b.worker_id = p_worker_id order by b.id limit c_first)
                union
                (select * from public.worker_events b where b.worker_id = p_worker_id order by b.id desc limit c_last)) e),
            '[]'),
        'attempts', coalesce((
            select jsonb_agg(to_jsonb(a) order by a.id) from (
                (select * from public.worker_attempts b where b.worker_id = p_worker_id order by b.id limit c_first)
                union
                (select * from public.worker_attempts b where b.worker_id = p_worker_id order by b.id desc limit c_last)) a),
            '[]'),
        'tasks', coalesce((select jsonb_agg(to_jsonb(a) order by a.started_at, a.task_id)
                             from (select * from public.task_attempts a where a.worker_id = p_worker_id
                                    order by a.started_at desc limit 1000) a), '[]'));
end
$$;

create index worker_events_age on public.worker_events using brin (at);

create or replace function public.fleet_retention(p_fleet text, p_term bigint, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_bite constant int := 100000;  -- rows per table and call, which is once an hour
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
         where w.fleet = p_fleet
           and o.at < v_now - interval '7 days'  -- by its index: the rest is not looked at
           and (w.terminated_at < v_now - interval '90 days'
                or o.from_state in ('active', 'idle') and o.to_state in ('active', 'idle')) limit c_bite);
    get diagnostics v_events = row_count;
    delete from public.worker_attempts a where a.id in (
        select o.id from public.worker_attempts o join public.workers w on w.id = o.worker_id
         where w.fleet = p_fleet and w.terminated_at < v_now - interval '90 days' limit c_bite);
    get diagnostics v_attempts = row_count;
    delete from public.log_objects l where l.ctid = any (array(
        select o.ctid from public.log_objects o join public.workers w on w.id = o.worker_id
         where w.fleet = p_fleet and w.terminated_at < v_now - interval '90 days' limit c_bite));
    with hours as (
        select c.worker_id, c.fleet, c.kind, date_trunc('hour', c.from_at, 'UTC') as began, array_agg(c.id) as ids,
               sum(c.to_at - c.from_at) as took, sum(c.usd) as usd
          from public.costs c
         where c.fleet = p_fleet and c.to_at > v_now - interval '3 hours' and c.to_at < date_trunc('hour', v_now, 'UTC')
           and date_trunc('hour', c.to_at, 'UTC') = date_trunc('hour', c.from_at, 'UTC')
         group by 1, 2, 3, 4 having count(*) > 1
    ), gone as (
        delete from public.costs c using hours h where c.id = any (h.ids)
    )
    insert into public.costs (worker_id, fleet, kind, from_at, to_at, usd)
    select h.worker_id, h.fleet, h.kind, h.began, h.began + h.took, h.usd from hours h;
    perform public.internal_roll_up(true);
    return jsonb_build_object('decisions', v_decisions, 'worker_events', v_events, 'worker_attempts', v_attempts);
end
$$;

-- The newest intent of each pool, found in the index: each look at the fleet went through every worker that it has ever had.
-- And since when a worker that is active holds nothing: one that never asks again is never idle by its own doing. An agent
-- runs one task after the other: as long as one of those that it claimed together moves, the others are not stuck.
create or replace function public.fleet_snapshot(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql volatile security definer set search_path = ''
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_paused jsonb := public.internal_pauses(p_fleet, v_now);
    v_avoid jsonb := '{}';
    c_climbs constant int := 100;  -- of each pool: what the breaker looks back on
    c_batch constant int := 100;  -- tasks of one claim
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
        with recursive spawned(pool) as (  -- from one to the next in the index, however many workers each has had
            (select w.pool from public.workers w where w.fleet = p_fleet order by w.pool limit 1)
            union all
            select (select w.pool from public.workers w where w.fleet = p_fleet and w.pool > s.pool order by w.pool limit 1)
              from spawned s where s.pool is not null
        ), running as (
            select t.worker_id, t.pool, count(*) as n, min(coalesce(t.progress_at, t.generation_started_at)) as progress_at,
                   max(coalesce(t.progress_at, t.generation_started_at)) as moved_at,
                   (array_agg(t.id order by coalesce(t.progress_at, t.generation_started_at), t.id))[1] as slowest
              from public.tasks t where t.status = 'In Progress' group by t.worker_id, t.pool
        ), held as (
            select r.worker_id, sum(r.n) as n, min(r.progress_at) as progress_at, max(r.moved_at) as moved_at,
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
                           'progress_at', case when w.own_program then h.progress_at else h.moved_at end,
                           'slowest_task', h.slowest,
                           'empty_since', case when w.status = 'active' and h.n is null then greatest(w.state_since, (
                               select max(a.ended_at) from (select a.ended_at from public.task_attempts a
                                where a.worker_id = w.id order by a.started_at desc limit c_batch) a)) end) order by w.id)
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
                   and public.internal_is_abandoned(t.worker_id, t.lease_expires_at, v_now)
                   and not public.internal_is_anothers(p_fleet, t.worker_id, v_now)),
            'offers', coalesce((
                select jsonb_agg(to_jsonb(o) - 'fleet' order by o.key) from public.offers o
                 where o.fleet = p_fleet), '[]'),
            'last_spawn_at', coalesce((
                select jsonb_object_agg(s.pool, n.created_at) from spawned s
                 cross join lateral (
                       select w.created_at from public.workers w
                        where w.fleet = p_fleet and w.pool = s.pool and w.stage is not null
                        order by w.created_at desc limit 1) n), '{}'),
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
