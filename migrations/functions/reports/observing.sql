-- The database half of a tick's snapshot. Each function is one statement, so that it never mixes two moments, and none
-- writes.

-- The data that a tick reads: pools, queue, workers, offers, budgets, pauses, limits of workers, choices of a rule of
-- scaling, and the identity of the database, because decisions about pods must use rows and identity of the same
-- database. Planned once for each connection, by indexes only: a plan that was made while the queue was short must not
-- be used when it is long.
create or replace function public.fleet_observe(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_paused jsonb := public.internal_pauses(p_fleet, v_now);
    c_batch constant int := 100;  -- tasks of one claim
begin
    return (
        with running as (
            select q.worker_id, q.pool, count(*) as n,
                   count(*) filter (where case
                       when q.lease_expires_at > v_now
                       then exists (select from public.workers w where w.id = q.worker_id and w.status <> 'terminated')
                       else (select h.held_by <> 'nobody' from orchestrator.holder(q.*, v_now) h) end) as counted,
                   min(q.progress_at) as progress_at, max(q.progress_at) as moved_at,
                   (array_agg(q.task_id order by q.progress_at, q.task_id))[1] as slowest
              from orchestrator.live q where q.state = 'running' group by q.worker_id, q.pool
        ), held as (
            select r.worker_id, sum(r.n) as n, min(r.progress_at) as progress_at, max(r.moved_at) as moved_at,
                   (array_agg(r.slowest order by r.progress_at))[1] as slowest
              from running r where r.worker_id is not null group by r.worker_id
        ), queued as (
            select d.pool, d.total, d.dependencies, d.limits, d.scheduled, d.ready, d.oldest
              from orchestrator.demand(v_now) d
        ), demand as (
            select p.pool, v_paused ?| array['*', p.pool] as paused, coalesce(q.ready, 0) as ready,
                   coalesce(r.n, 0) as running, coalesce(q.dependencies, 0) as dependencies,
                   coalesce(q.limits, 0) as limits, coalesce(q.scheduled, 0) as scheduled, q.oldest
              from (select pool from queued union select pool from running) p
              left join queued q on q.pool = p.pool
              left join (select pool, sum(counted) as n from running group by pool) r on r.pool = p.pool
        )
        select jsonb_build_object(
            'now', v_now,
            'workers', coalesce((
                select jsonb_agg(to_jsonb(w.*) || jsonb_build_object('tasks_running', coalesce(h.n, 0),
                           'claim_no', (select l.claim_no from orchestrator.launches l where l.worker_id = w.id),
                           'progress_at', case when w.own_program then h.progress_at else h.moved_at end,
                           'slowest_task', h.slowest,
                           'second_opinion', case when w.held_back is not null
                                                  then public.internal_second_opinion(w.*) end,
                           'empty_since', case when w.status = 'active' and h.n is null then greatest(w.state_since, (
                               select max(a.ended_at) from (select a.ended_at from orchestrator.attempts a
                                where a.worker_id = w.id order by a.started_at desc limit c_batch) a)) end)
                       order by w.id)
                  from public.workers w left join held h on h.worker_id = w.id
                 where w.fleet = p_fleet and w.status <> 'terminated'), '[]'),
            'demand', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'pool', d.pool, 'running', d.running,
                           'claimable', case when d.paused then 0 else d.ready end,
                           'blocked', jsonb_build_object('dependencies', d.dependencies, 'concurrency', d.limits,
                                                         'scheduled', d.scheduled,
                                                         'paused', case when d.paused then d.ready else 0 end),
                           'oldest_claimable_at', d.oldest) order by d.pool) from demand d), '[]'),
            'expired_leases', public.internal_expired_leases(p_fleet, v_now),
            'offers', coalesce((
                select jsonb_agg(to_jsonb(o.*) - 'fleet' order by o.key) from public.offers o
                 where o.fleet = p_fleet), '[]'),
            'spent', (select to_jsonb(s.*) from public.internal_spent(p_fleet, null, v_now) s),
            'avoid', (select coalesce(jsonb_object_agg(h.key, h.avoid_until), '{}') from public.hosts h
                       where h.fleet = p_fleet and h.avoid_until > v_now),
            'paused', v_paused,
            'scale_limits', public.internal_scale_limits(p_fleet, v_now),
            'scaling_policies', public.internal_scaling_policies(p_fleet),
            'clusters', public.internal_cluster_needs(p_fleet),
            'database_id', (select i.id from public.database_identity i where i.is_this),
            'queued_total', (select coalesce(sum(q.total), 0) from queued q))
            || public.internal_recent_workers(p_fleet, v_now)
    );
end
$$;

-- The number of running tasks whose lease has expired and that this fleet must rescue.
create or replace function public.internal_expired_leases(p_fleet text, p_now timestamptz) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_variable
begin
    return (select count(*) from orchestrator.live q
             where q.state = 'running' and (q.lease_expires_at is null or q.lease_expires_at <= p_now)
               and orchestrator.is_lost(q.*, p_now, 0)
               and not public.internal_is_of_other_fleet(p_fleet, q.worker_id, p_now));
end
$$;

-- What happened to workers and releases recently: the last spawn of each pool, ended bring-ups and pod prices of a day,
-- and machine faults of an hour.
create or replace function public.internal_recent_workers(p_fleet text, p_now timestamptz) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_now constant timestamptz := p_now;
    c_bringups constant int := 100;  -- of each pool: how many the breaker looks at
    c_batch constant int := 100;  -- tasks of one claim
begin
    return (
        with recursive spawned(pool) as (  -- goes from pool to pool in the index, however many workers each has had
            (select w.pool from public.workers w where w.fleet = p_fleet order by w.pool limit 1)
            union all
            select (select w.pool from public.workers w where w.fleet = p_fleet and w.pool > s.pool
                     order by w.pool limit 1)
              from spawned s where s.pool is not null
        ), bringups as (
            select w.id, w.pool, w.created_at, w.bringup_ended_at, w.promoted_at is not null as promoted,
                   w.exit_cause, w.failure_code,
                   w.release, w.ending_since,
                   w.metadata->>'offer' as offer, w.price_usd_per_hour / nullif(w.gpu_count, 0) as usd_per_gpu_hour,
                   coalesce(w.exit_cause = 'budget', false) as ended_for_budget,
                   case when w.promoted_at is null then w.bringup_ended_at else w.ending_since end as ended_at,
                   row_number() over (partition by w.pool order by w.bringup_ended_at desc, w.id) as place
              from public.workers w where w.fleet = p_fleet and w.bringup_ended_at > v_now - interval '1 day'
        )
        select jsonb_build_object(
            'last_spawn_at', coalesce((
                select jsonb_object_agg(s.pool, n.created_at) from spawned s
                 cross join lateral (
                       select w.created_at from public.workers w
                        where w.fleet = p_fleet and w.pool = s.pool and w.stage is not null
                        order by w.created_at desc limit 1) n), '{}'),
            'ended', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'worker_id', c.id, 'pool', c.pool, 'at', c.bringup_ended_at, 'promoted', c.promoted,
                           'exit_cause', c.exit_cause, 'failure_code', c.failure_code, 'release', c.release,
                           'boot_s', case when c.promoted
                                          then extract(epoch from c.bringup_ended_at - c.created_at) end,
                           'ending_since', case when c.promoted then c.ending_since end,
                           'offer', c.offer,
                           'worked', c.promoted and exists (  -- bounded, for handlers that fail a thousand tasks
                               select from (select a.outcome from orchestrator.attempts a where a.worker_id = c.id
                                             order by a.started_at limit c_batch) a where a.outcome = 'complete'))
                       order by c.bringup_ended_at, c.id)
                  from bringups c where c.place <= c_bringups), '[]'),
            'pod_prices', coalesce((  -- of the newest pod of each offer; how many in a row have ended for the budget
                select jsonb_agg(to_jsonb(p.*) order by p.offer) from (
                    select c.offer, (array_agg(c.usd_per_gpu_hour
                                               order by c.created_at desc, c.usd_per_gpu_hour desc))[1]
                               as usd_per_gpu_hour,
                           max(c.created_at) as created_at,
                           (array_agg(c.ended_at order by c.created_at desc, c.usd_per_gpu_hour desc))[1] as ended_at,
                           count(*) filter (where c.ended_for_budget
                                              and c.created_at > coalesce(c.kept_at, '-infinity')) as ended_for_budget
                      from (select b.*, max(b.created_at) filter (where not b.ended_for_budget)
                                       over (partition by b.offer) as kept_at
                              from bringups b where b.offer is not null and b.usd_per_gpu_hour is not null) c
                     group by c.offer) p), '[]'),
            'promoted_releases', coalesce((
                select jsonb_agg(r.release order by r.release) from public.releases r
                 where r.fleet = p_fleet and r.promoted_at > v_now - interval '30 days'), '[]'),
            'faults', coalesce((
                select jsonb_agg(to_jsonb(f.*)) from (
                    select w.id as worker_id, w.failure_code, w.ending_since as at from public.workers w
                     where w.fleet = p_fleet and w.exit_cause in ('gpu_fault', 'host_fault')
                       and w.ending_since > v_now - interval '1 hour'
                     order by w.ending_since desc limit c_bringups) f), '[]')));
end
$$;

-- The name that an orchestrator of an earlier version calls.
create or replace function public.fleet_snapshot(p_fleet text, p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select public.fleet_observe(fleet_snapshot.p_fleet, fleet_snapshot.p_now)
$$;
