-- Reports over a whole fleet. They change nothing.

-- Queue, workers and failures of each pool. Each part below reads the snapshot of this statement (stable).
create or replace function public.fleet_report(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_day timestamptz := v_now - interval '24 hours';
    c_rows constant int := 50;  -- of each list
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
            'total_workers', (select count(*) from public.workers w where w.fleet = p_fleet),
            'workers_by_status', coalesce((
                select jsonb_object_agg(s.status, s.n)
                  from (select w.status, count(*) as n from public.workers w where w.fleet = p_fleet
                         group by w.status) s), '{}'),
            'task_counts', coalesce((
                select jsonb_object_agg(s.status, s.n)
                  from (select coalesce(p.status, t.status::text) as status, count(*) as n from public.tasks t
                          left join orchestrator.publications p on p.task_id = t.id and p.no > t.published
                         group by 1) s), '{}'),
            'queue', public.internal_queue_report(p_fleet, v_now),
            'expired_leases', public.internal_expired_leases(p_fleet, v_now),
            'store_away', public.internal_leader_record(p_fleet, 'store_away', v_now),
            'tick_failed', public.internal_leader_record(p_fleet, 'tick_failed', v_now),
            'waiting_types', coalesce((
                select jsonb_agg(to_jsonb(q.*) order by q.n desc, q.task_type)
                  from (select l.pool, l.task_type, count(*) as n
                          from orchestrator.live l
                         where l.state = 'ready' or l.state = 'waits_for_time' and (
                                   l.run_after <= v_now
                                   or (select t.failure_code from public.tasks t where t.id = l.task_id) = 'NO_HANDLER')
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
            || public.internal_failure_report(p_fleet, v_day)
            || public.internal_history(p_fleet, c_rows));
end
$$;

-- The queue of each pool with its completed tasks of an hour, and when the next timed task is due.
create or replace function public.internal_queue_report(p_fleet text, p_now timestamptz) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off
as $$
#variable_conflict use_variable
declare
    v_now constant timestamptz := p_now;
    v_day constant timestamptz := p_now - interval '24 hours';
begin
    return (
        with turns as (
            select w.pool, avg(extract(epoch from a.to_at - a.from_at) / a.of) as mean_s
              from public.internal_attempt_times(v_day, v_now) a join public.workers w on w.id = a.worker_id
             where w.fleet = p_fleet and coalesce(w.terminated_at > v_day, true)
               and a.outcome = 'complete' and a.to_at > v_day
             group by w.pool
        ), open as (
            select q.pool, count(*) filter (where x.is_claimable) as claimable,
                   count(*) filter (where q.state = 'waits_for_tasks') as dependencies,
                   count(*) filter (where q.state in ('waits_for_key', 'waits_for_type')) as concurrency,
                   count(*) filter (where x.is_scheduled) as scheduled,
                   min(q.run_after) filter (where x.is_scheduled) as next_due_at,
                   count(*) filter (where q.state = 'running') as running,
                   min(q.created_at) filter (where x.is_claimable) as oldest_claimable_at
              from orchestrator.live q
             cross join lateral (
                   select q.state = 'ready' or q.state = 'waits_for_time' and q.run_after <= v_now as is_claimable,
                          q.state = 'waits_for_time' and q.run_after > v_now as is_scheduled) x
             group by q.pool
        ), ended as (
            select coalesce(t.pool, d.pool, 'default') as pool,
                   count(*) filter (where t.status = 'Complete'
                                      and t.generation_processed_at > v_now - interval '1 hour') as completed_1h
              from public.tasks t left join public.task_types d on d.task_type = t.task_type group by 1
        ), queue as (
            select pool, coalesce(o.claimable, 0) as claimable, coalesce(o.dependencies, 0) as dependencies,
                   coalesce(o.concurrency, 0) as concurrency, coalesce(o.scheduled, 0) as scheduled, o.next_due_at,
                   coalesce(o.running, 0) as running, coalesce(e.completed_1h, 0) as completed_1h,
                   o.oldest_claimable_at, u.mean_s as mean_task_s
              from open o full join ended e using (pool) left join turns u using (pool)
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
begin
    return (
        with attempts as (
            select a.*, w.pool from public.worker_attempts a join public.workers w on w.id = a.worker_id
             where w.fleet = p_fleet and a.ended_at > p_since and a.outcome in ('failed', 'timeout', 'lost')
        )
        select jsonb_build_object(
            'failed_bringups', coalesce((
                select jsonb_agg(to_jsonb(f.*) order by f.n desc, f.code)
                  from (select coalesce(a.failure_code, 'UNKNOWN') as code, a.stage, a.pool,
                               upper(a.evidence ->> 'cause') as cause, count(*) as n,
                               count(distinct a.worker_id) as workers, max(a.ended_at) as last_at,
                               (array_agg(a.evidence order by a.ended_at desc))[1] as evidence,
                               (select max(o.ended_at)
                                  from public.worker_attempts o join public.workers w on w.id = o.worker_id
                                 where w.fleet = p_fleet and w.pool = a.pool and o.stage = a.stage and o.outcome = 'ok'
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

-- Tasks that failed, by type and code.
create or replace function public.internal_failed_tasks(p_since timestamptz) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off
as $$
#variable_conflict use_variable
begin
    return (
        with failed as (
            select t.task_type, t.failure_code, t.error_message, t.id, t.updated_at from public.tasks t
             where t.status = 'Failed' and t.updated_at > p_since
            union all
            select t.task_type, p.failure_code, p.error_message, t.id, p.at
              from orchestrator.publications p join public.tasks t on t.id = p.task_id and p.no > t.published
             where p.status = 'Failed' and p.at > p_since
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
-- attempts.
create or replace function public.fleet_efficiency(
    p_fleet text, p_since timestamptz, p_until timestamptz, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_until timestamptz := least(coalesce(p_until, v_now), v_now);
    v_length_s numeric := extract(epoch from v_until - p_since);
    v_paid_s numeric;
    v_busy_s numeric;
    v_usd numeric;
begin
    perform public.internal_check_window(p_since, v_until);
    select coalesce(round(sum(b.seconds), 3), 0), coalesce(round(sum(b.seconds) filter (where b.kind = 'busy'), 3), 0),
           coalesce(round(sum(b.usd), 6), 0)
      into v_paid_s, v_busy_s, v_usd from public.internal_booked(p_fleet, p_since, v_until, v_now) b;
    return (
        with ended as (
            select a.outcome, extract(epoch from a.to_at - a.from_at) / a.of as seconds
              from public.internal_attempt_times(p_since, v_now) a join public.workers w on w.id = a.worker_id
             where w.fleet = p_fleet and coalesce(w.terminated_at > p_since - interval '1 day', true)
               and a.outcome is not null and a.to_at > p_since and a.to_at <= v_until
        ), counted as (
            select count(*) filter (where e.outcome = 'complete') as completed,
                   count(*) filter (where e.outcome in ('failed', 'lost')) as failed_attempts,
                   percentile_cont(0.5) within group (order by e.seconds)
                       filter (where e.outcome = 'complete') as run_p50_s
              from ended e
        ), given_up as (  -- tasks, not attempts; a task that failed because of a dependency has no worker
            select count(*) as failed
              from public.tasks t left join public.workers w on w.id = t.worker_id
             where t.status = 'Failed' and coalesce(t.generation_processed_at, t.updated_at) > p_since
               and coalesce(t.generation_processed_at, t.updated_at) <= v_until
               and coalesce(w.fleet, p_fleet) = p_fleet
        ), waits as (
            select extract(epoch from least(coalesce(t.generation_started_at, v_until), v_until)
                                      - greatest(t.created_at, p_since)) as seconds
              from public.tasks t
             where t.created_at < v_until and coalesce(t.generation_started_at > p_since, t.status = 'Queued')
        ), queue as (
            select coalesce(sum(greatest(w.seconds, 0)), 0) / v_length_s as mean_depth,
                   percentile_cont(0.5) within group (order by w.seconds) as wait_p50_s,
                   percentile_cont(0.95) within group (order by w.seconds) as wait_p95_s
              from waits w
        )
        select jsonb_build_object(
            'since', p_since, 'until', v_until,
            'completed', c.completed, 'failed', g.failed, 'failed_attempts', c.failed_attempts,
            'tasks_per_hour', round(c.completed * 3600 / v_length_s, 2),
            'run_p50_s', round(c.run_p50_s::numeric, 3),
            'queue_mean', round(q.mean_depth, 2),
            'queue_now', (select count(*) from orchestrator.live q where q.state <> 'running'),
            'wait_p50_s', round(q.wait_p50_s::numeric, 3), 'wait_p95_s', round(q.wait_p95_s::numeric, 3),
            'paid_s', v_paid_s,
            'utilisation', round(v_busy_s / nullif(v_paid_s, 0), 4),
            'usd', v_usd,
            'usd_per_task', round(v_usd / nullif(c.completed, 0), 6))
          from counted c, given_up g, queue q);
end
$$;
