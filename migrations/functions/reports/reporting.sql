-- Reports over a whole fleet. They change nothing.

-- Queue, workers and failures of each pool. Each part below reads the snapshot of this statement (stable).
create or replace function public.fleet_report(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_day timestamptz := v_now - interval '24 hours';
    c_rows constant int := 50;  -- of each list
    c_head constant int := 1000;  -- tasks of a pool whose types are counted
begin
    return (
        with spent as (
            select date_trunc('day', c.from_at at time zone 'UTC') as day, sum(c.usd) as usd from public.costs c
             where c.fleet = p_fleet and c.from_at > v_now - interval '8 days' and c.to_at <= v_day
               and c.to_at > v_now - interval '8 days'  -- for the index
             group by 1
        )
        select jsonb_build_object(
            'now', v_now,
            'leader', public.internal_leader(p_fleet, v_now),
            'paused', public.internal_pauses(p_fleet, v_now),
            'queue', public.internal_queue_report(p_fleet, v_now),
            'expired_leases', public.internal_expired_leases(p_fleet, v_now),
            'store_away', public.internal_leader_record(p_fleet, 'store_away', v_now),
            'tick_failed', public.internal_leader_record(p_fleet, 'tick_failed', v_now),
            'waiting_types', coalesce((
                select jsonb_agg(to_jsonb(q.*) order by q.n desc, q.task_type)
                  from (select h.pool, h.task_type, count(*) as n, count(*) filter (where h.is_ready) as ready
                          from orchestrator.queue_heads(v_now, c_head) h
                         group by 1, 2 order by 3 desc limit c_rows) q), '[]'),
            'unpublished_tasks', public.internal_unpublished_tasks(v_now, c_rows),
            'schema_problems', public.fleet_schema_problems()->'problems',
            'webhooks', public.internal_webhook_troubles(v_now),
            'schedules', public.internal_schedule_troubles(v_now, c_rows),
            'clusters', public.internal_cluster_troubles(p_fleet, v_now, c_rows),
            'lost_tasks', public.internal_lost_tasks(p_fleet, v_day, v_day, c_rows),
            'failed_tasks', public.internal_failed_tasks(v_day),
            'spent', jsonb_build_object(
                'last_hour_usd', (select coalesce(round(sum(b.usd), 6), 0)
                                    from public.internal_booked(p_fleet, v_now - interval '1 hour', v_now, v_now) b),
                'last_day_usd', (select coalesce(round(sum(b.usd), 6), 0)
                                   from public.internal_booked(p_fleet, v_day, v_now, v_now) b),
                'usual_day_usd', (select round(avg(s.usd), 6) from spent s)))
            || public.internal_counts(p_fleet, v_now)
            || public.internal_failure_report(p_fleet, v_day)
            || public.internal_history(p_fleet, c_rows));
end
$$;

-- {total_workers, workers_by_status, task_counts, counts_beyond}. Queued tasks are counted to 10,000 of a pool and
-- kind, ended tasks among the newest 10,000 tasks, ended workers to 10,000. counts_beyond names the counts that are
-- more.
create or replace function public.internal_counts(p_fleet text, p_now timestamptz) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan
set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_most constant int := 10000;
    v_workers jsonb;
    v_tasks jsonb := public.internal_count_tasks('{}', p_now);
begin
    select coalesce(jsonb_object_agg(s.status, s.n), '{}') into v_workers
      from (select w.status, count(*) as n from public.workers w
             where w.fleet = p_fleet and w.status <> 'terminated' group by 1
            union all
            select 'terminated', count(*) from (
                select from public.workers w where w.fleet = p_fleet and w.status = 'terminated'
                 order by w.fleet, w.created_at desc limit c_most) t having count(*) > 0) s;
    return jsonb_build_object(
        'total_workers', (select coalesce(sum(n.value::bigint), 0) from jsonb_each_text(v_workers) n),
        'workers_by_status', v_workers, 'task_counts', v_tasks->'counts',
        'counts_beyond', v_tasks->'beyond' || case when (v_workers->>'terminated')::int >= c_most
                                                   then '["terminated"]' else '[]' end::jsonb);
end
$$;

-- The queue of each pool with its completed tasks of an hour, and when the next timed task is due.
create or replace function public.internal_queue_report(p_fleet text, p_now timestamptz) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan
set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
begin
    return (
        with turns as (
            select u.name as pool, u.completed_s / u.completed as mean_s
              from orchestrator.usage_between(p_fleet, p_now - interval '24 hours', p_now, p_now, 'queue') u
             where u.completed > 0
        ), running as (
            select q.pool, count(*) as n from orchestrator.live q where q.state = 'running' group by q.pool
        ), ended as (
            select w.pool, count(*) as n from orchestrator.attempts a join public.workers w on w.id = a.worker_id
             where w.fleet = p_fleet and a.outcome = 'complete' and a.ended_at > p_now - interval '1 hour'
             group by w.pool
        ), demand as materialized (
            select * from orchestrator.demand(p_now)
        ), pools as (
            select pool from demand union select pool from running union select pool from ended
            union select pool from turns
        ), queue as (
            select p.pool, coalesce(d.ready, 0) as claimable, coalesce(d.dependencies, 0) as dependencies,
                   coalesce(d.limits, 0) as concurrency, coalesce(d.scheduled, 0) as scheduled,
                   (select q.run_after from orchestrator.live q
                     where q.pool = p.pool and q.state = 'waits_for_time' and q.run_after > p_now
                     order by q.run_after limit 1) as next_due_at,
                   coalesce(r.n, 0) as running, coalesce(e.n, 0) as completed_1h, d.oldest as oldest_claimable_at,
                   u.mean_s as mean_task_s
              from pools p left join demand d using (pool) left join running r using (pool)
              left join ended e using (pool) left join turns u using (pool)
        )
        select coalesce(jsonb_agg(to_jsonb(q.*) order by q.pool), '[]') from queue q);
end
$$;

-- Failed bring-up stages by code, with the time when the same stage last succeeded in the same pool (`ok_at`), and
-- counts of errors.
create or replace function public.internal_failure_report(p_fleet text, p_since timestamptz) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off
as $$
#variable_conflict use_variable
declare
    c_ssh constant text[] := array['TCP_REFUSED', 'TCP_TIMEOUT', 'NOT_SSH', 'SSH_DETAILS_MISSING', 'HOST_KEY_CHANGED',
                                   'EXEC_FAILED', 'CONNECTION_LOST'];
    c_auth constant text[] := array['AUTH_FAILED', 'API_AUTH'];
    c_newest constant int := 100;  -- workers of a pool in which the last success of a stage is looked for
begin
    return (
        with attempts as (
            select a.*, w.pool from public.worker_attempts a join public.workers w on w.id = a.worker_id
             where w.fleet = p_fleet and a.ended_at > p_since and a.outcome in ('failed', 'timeout', 'lost')
        ), promoted as (  -- the newest workers of each pool: one of them succeeded last
            select w.id, w.pool from (select distinct a.pool from attempts a) p
             cross join lateral (select * from public.workers m where m.fleet = p_fleet and m.pool = p.pool
                                  order by m.created_at desc limit c_newest) w
        )
        select jsonb_build_object(
            'failed_bringups', coalesce((
                select jsonb_agg(to_jsonb(f.*) order by f.n desc, f.code)
                  from (select coalesce(a.failure_code, 'UNKNOWN') as code, a.stage, a.pool,
                               upper(a.evidence ->> 'cause') as cause, count(*) as n,
                               count(distinct a.worker_id) as workers, max(a.ended_at) as last_at,
                               (array_agg(a.evidence order by a.ended_at desc))[1] as evidence,
                               (select max(o.ended_at) from promoted p
                                  join public.worker_attempts o on o.worker_id = p.id
                                 where p.pool = a.pool and o.stage = a.stage and o.outcome = 'ok'
                                   and o.ended_at > p_since) as ok_at
                          from attempts a group by 1, 2, 3, 4) f), '[]'),
            'error_patterns', jsonb_build_object(
                'orphaned_tasks_reset', (
                    select count(*) from orchestrator.attempts a join public.workers w on w.id = a.worker_id
                     where w.fleet = p_fleet and a.outcome = 'lost' and a.ended_at > p_since),
                'ssh_errors', (select count(*) from attempts a where a.failure_code = any (c_ssh)),
                'auth_failures', (select count(*) from attempts a where a.failure_code = any (c_auth)),
                'other_errors', (select count(*) from attempts a
                                  where coalesce(a.failure_code, '') <> all (c_ssh || c_auth)))));
end
$$;

-- Tasks that failed, by type and code: of the newest 2,000 failed attempts, and as many tasks that never ran.
create or replace function public.internal_failed_tasks(p_since timestamptz) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan
set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_newest constant int := 2000;
begin
    return (
        with ends as materialized (
            (select a.task_id, a.ended_at as at from orchestrator.attempts a
              where a.outcome in ('failed', 'lost') and a.ended_at > p_since order by a.ended_at desc limit c_newest)
            union all
            (select u.task_id, u.at from orchestrator.unrun_failures u
              where u.at > p_since order by u.at desc limit c_newest)
        ), failed as (
            select t.task_type, case when p.task_id is null then t.failure_code else p.failure_code end as failure_code,
                   case when p.task_id is null then t.error_message else p.error_message end as error_message,
                   e.task_id as id, e.at as updated_at
              from (select n.task_id, max(n.at) as at from ends n group by n.task_id) e
             cross join lateral (select * from public.tasks k where k.id = e.task_id offset 0) t
              left join orchestrator.publications p on p.task_id = t.id and p.no > t.published
             where coalesce(p.status, t.status::text) = 'Failed'
        ), by_code as (
            select f.task_type, f.failure_code as code, count(*) as n, max(f.updated_at) as last_at,
                   (array_agg(f.id order by f.updated_at desc))[1] as last_task,
                   left((array_agg(f.error_message order by f.updated_at desc))[1], 500) as message,
                   count(*) filter (where f.failure_code is distinct from 'DEPENDENCY_FAILED'
                                      and f.error_message like '%No valid segment videos found%') as no_segments
              from failed f group by f.task_type, f.failure_code
        )
        select coalesce(jsonb_agg(to_jsonb(c.*) order by c.n desc, c.task_type), '[]') from by_code c);
end
$$;

-- The newest workers, decisions and changes of workers' states, p_rows of each.
create or replace function public.internal_history(p_fleet text, p_rows int) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off
as $$
#variable_conflict use_variable
begin
    return (select jsonb_build_object(
        'recent_workers', coalesce((
            select jsonb_agg(jsonb_build_object(
                       'id', w.id, 'status', w.status, 'pool', w.pool, 'gpu_type', w.gpu_type, 'pod_id', w.pod_id,
                       'created_at', w.created_at, 'promoted_at', w.promoted_at, 'terminated_at', w.terminated_at,
                       'exit_cause', w.exit_cause, 'failure_code', w.failure_code) order by w.created_at desc, w.id)
              from (select * from public.workers m where m.fleet = p_fleet
                     order by m.created_at desc, m.id limit p_rows) w), '[]'),
        'recent_cycles', coalesce((
            select jsonb_agg(to_jsonb(d.*) - 'fleet' order by d.id desc)
              from (select * from public.decisions d where d.fleet = p_fleet order by d.id desc limit p_rows) d), '[]'),
        'worker_lifecycle_events', coalesce((
            select jsonb_agg(jsonb_build_object(
                       'at', e.at, 'worker_id', e.worker_id, 'from_state', e.from_state, 'to_state', e.to_state,
                       'reason', e.reason, 'actor', e.actor) order by e.id desc)
              from (select e.* from public.worker_events e
                     where e.fleet = p_fleet and e.from_state is distinct from e.to_state
                     order by e.id desc limit p_rows) e), '[]')));
end
$$;

-- The work that a fleet completed in a window. `failed` counts tasks that failed for good, `failed_attempts` counts
-- attempts. Times are those of the newest 2,000 attempts and 5,000 tasks; the depth of the queue is the mean of its
-- minutes, or comes from these tasks.
create or replace function public.fleet_efficiency(
    p_fleet text, p_since timestamptz, p_until timestamptz, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan
set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_until timestamptz := least(coalesce(p_until, v_now), v_now);
    v_since timestamptz := orchestrator.usage_since(p_since, v_now);
    v_length_s numeric := extract(epoch from v_until - v_since);
begin
    perform public.internal_check_window(p_since, v_until);
    return (
        with done as (
            select coalesce(sum(u.completed), 0) as completed, coalesce(sum(u.failed), 0) as failed_attempts,
                   coalesce(sum(u.given_up), 0) + (select count(*) from orchestrator.unrun_failures f
                                                    where f.at > v_since and f.at <= v_until) as failed
              from orchestrator.usage_between(p_fleet, v_since, v_until, v_now, 'fleet') u
        ), paid as (
            select coalesce(round(sum(u.seconds), 3), 0) as paid_s,
                   coalesce(round(sum(u.seconds) filter (where u.name = 'busy'), 3), 0) as busy_s,
                   coalesce(round(sum(u.usd), 6), 0) as usd
              from orchestrator.usage_between(p_fleet, v_since, v_until, v_now, 'kind') u
        )
        select jsonb_build_object(
            'since', v_since, 'until', v_until,
            'completed', d.completed, 'failed', d.failed, 'failed_attempts', d.failed_attempts,
            'tasks_per_hour', round(d.completed * 3600 / v_length_s, 2),
            'queue_now', (select coalesce(sum(q.total), 0) from orchestrator.demand(v_now) q),
            'paid_s', p.paid_s, 'utilisation', round(p.busy_s / nullif(p.paid_s, 0), 4),
            'usd', p.usd, 'usd_per_task', round(p.usd / nullif(d.completed, 0), 6))
            || public.internal_times(p_fleet, v_since, v_until, v_now)
          from done d cross join paid p);
end
$$;

-- {run_p50_s, queue_mean, wait_p50_s, wait_p95_s} of a window, from its newest attempts and tasks.
create or replace function public.internal_times(
    p_fleet text, p_since timestamptz, p_until timestamptz, p_now timestamptz
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan
set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_attempts constant int := 2000;
    c_tasks constant int := 5000;
    v_first timestamptz := coalesce((
        select a.ended_at from orchestrator.attempts a where a.ended_at > p_since and a.ended_at <= p_until
         order by a.ended_at desc offset c_attempts limit 1), p_since);
begin
    return (
        with runs as (
            select percentile_cont(0.5) within group (order by u.full_s) as p50_s
              from orchestrator.used(p_fleet, v_first, p_until, p_since, p_now) u where u.outcome = 'complete'
        ), waits as (
            select extract(epoch from least(coalesce(t.generation_started_at, p_until), p_until)
                                      - greatest(t.created_at, p_since)) as seconds
              from (select k.created_at, k.generation_started_at, k.status from public.tasks k
                     where k.created_at < p_until order by k.created_at desc limit c_tasks) t
             where coalesce(t.generation_started_at > p_since, t.status = 'Queued')
        ), depth as (
            select avg(m.n) as mean
              from (select sum(h.ready + h.waiting) as n from orchestrator.pool_minutes h
                     where h.fleet = p_fleet and h.at >= p_since and h.at < p_until group by h.at) m
        )
        select jsonb_build_object(
            'run_p50_s', (select round(r.p50_s::numeric, 3) from runs r),
            'queue_mean', round(coalesce((select d.mean from depth d), sum(greatest(w.seconds, 0))
                                         / extract(epoch from p_until - p_since), 0), 2),
            'wait_p50_s', round(percentile_cont(0.5) within group (order by w.seconds)::numeric, 3),
            'wait_p95_s', round(percentile_cont(0.95) within group (order by w.seconds)::numeric, 3)) from waits w);
end
$$;
