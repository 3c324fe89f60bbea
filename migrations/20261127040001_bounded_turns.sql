-- What a window cost and how well it was used was read from all attempts of the workers that lived in it. Of one that has done
-- millions of tasks these are millions of rows, for an hour as for a year: now only those that may reach into the window are.

drop function public.internal_turns(text, timestamptz);

-- The attempts that ended after p_since, or are open: from when to when, and among how many (`of`) that time is shared; an open
-- one lasts until p_now. Planned anew each time: what is the best way depends on how long ago p_since was.
create function public.internal_turns(p_since timestamptz, p_now timestamptz)
returns table (worker_id text, task_id uuid, attempt int, outcome text, from_at timestamptz, to_at timestamptz, of bigint)
language plpgsql stable security definer set search_path = '' set plan_cache_mode = 'force_custom_plan' as $$
#variable_conflict use_column
begin
    return query
    with reaching as (
        select a.* from public.task_attempts a where a.started_at > p_since or a.ended_at > p_since
        union all
        select a.* from public.tasks t
         cross join lateral (select b.* from public.task_attempts b
                              where b.task_id = t.id and b.attempt = t.attempts limit 1) a  -- by its key: these are few
         where t.status = 'In Progress' and a.started_at <= p_since and a.ended_at is null
    )
    select e.worker_id, e.task_id, e.attempt, e.outcome,
           greatest(e.started_at,
                    case when e.started_at <= p_since then (  -- the end of the one before, of the same claim
                        select max(b.ended_at) from public.task_attempts b
                         where b.worker_id = e.worker_id and b.nonce = e.nonce and b.claim_no = e.claim_no
                           and b.ended_at <= p_since) end,
                    max(e.to_at) over (partition by e.worker_id, e.nonce, e.claim_no order by e.to_at
                                       range between unbounded preceding and current row exclude group)),
           e.to_at, count(*) over (partition by e.worker_id, e.nonce, e.claim_no, e.to_at)
      from (select r.*, coalesce(r.ended_at, p_now) as to_at from reaching r) e;
end
$$;

create or replace function public.fleet_cost(p_fleet text, p_since timestamptz, p_until timestamptz,
                                  p_now timestamptz default null)
returns jsonb language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_until timestamptz := least(coalesce(p_until, v_now), v_now);
    c_tasks constant int := 1000;  -- the dearest so many are listed; the sums count all
begin
    if p_since is null or p_since >= v_until then
        perform public.internal_refuse('OR007', 'p_since must be before p_until',
            format('got %s and %s', p_since, v_until));
    end if;
    return (
        with booked as (
            select c.worker_id, c.kind, c.from_at, c.to_at, c.usd
              from public.costs c where c.fleet = p_fleet and c.to_at > p_since and c.from_at < v_until
            union all
            select w.id, o.kind, o.from_at, o.to_at, o.usd
              from public.workers w cross join lateral public.internal_open_interval(w, v_now) o
             where w.fleet = p_fleet and w.status <> 'terminated' and o.to_at > p_since and o.from_at < v_until
        ), spent as (  -- only what lies within
            select b.worker_id, b.kind,
                   extract(epoch from least(b.to_at, v_until) - greatest(b.from_at, p_since)) as seconds,
                   b.usd * extract(epoch from least(b.to_at, v_until) - greatest(b.from_at, p_since))
                         / extract(epoch from b.to_at - b.from_at) as usd
              from booked b where b.to_at > b.from_at
        ), by_kind as (
            select s.worker_id, s.kind, sum(s.seconds) as seconds, sum(s.usd) as usd
              from spent s group by s.worker_id, s.kind
        ), workers as (
            select w.id, w.pool, w.gpu_type, w.gpu_count, w.pod_id, w.status, w.price_usd_per_hour,
                   sum(k.seconds) as seconds, sum(k.usd) as usd,
                   jsonb_object_agg(k.kind, jsonb_build_object('seconds', round(k.seconds, 3),
                                                               'usd', round(k.usd, 6))) as kinds
              from by_kind k join public.workers w on w.id = k.worker_id
             group by w.id
        ), shares as (
            select a.task_id, t.task_type, a.outcome, extract(epoch from x.to_at - x.from_at) / a.of as seconds,
                   coalesce(w.price_usd_per_hour, 0) * extract(epoch from x.to_at - x.from_at) / a.of / 3600 as usd
              from public.internal_turns(p_since, v_now) a
              join public.workers w on w.id = a.worker_id
              join public.tasks t on t.id = a.task_id
              cross join lateral (
                  select greatest(a.from_at, p_since) as from_at,
                         least(a.to_at, w.billing_until, v_until) as to_at) x
             where w.fleet = p_fleet and w.billing_since is not null and w.created_at < v_until
               and coalesce(w.terminated_at > p_since, true) and x.to_at > x.from_at
        ), tasks as (
            select s.task_id, s.task_type, count(*) as attempts, sum(s.seconds) as seconds, sum(s.usd) as usd,
                   coalesce(sum(s.usd) filter (where s.outcome <> 'complete'), 0) as wasted_usd
              from shares s group by s.task_id, s.task_type
        )
        select jsonb_build_object(
            'now', v_now, 'since', p_since, 'until', v_until,
            'usd', (select coalesce(round(sum(w.usd), 6), 0) from workers w),
            'kinds', coalesce((
                select jsonb_object_agg(k.kind, jsonb_build_object('seconds', round(k.seconds, 3), 'usd', round(k.usd, 6)))
                  from (select b.kind, sum(b.seconds) as seconds, sum(b.usd) as usd
                          from by_kind b group by b.kind) k), '{}'),
            'workers', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'id', w.id, 'pool', w.pool, 'gpu_type', w.gpu_type, 'gpu_count', w.gpu_count,
                           'pod_id', w.pod_id, 'status', w.status, 'price_usd_per_hour', w.price_usd_per_hour,
                           'seconds', round(w.seconds, 3), 'usd', round(w.usd, 6), 'kinds', w.kinds)
                           order by w.usd desc, w.id) from workers w), '[]'),
            'types', coalesce((
                select jsonb_agg(to_jsonb(y) order by y.usd desc, y.task_type)
                  from (select t.task_type, count(*) as tasks, sum(t.attempts) as attempts,
                               round(sum(t.seconds), 3) as seconds, round(sum(t.usd), 6) as usd,
                               round(sum(t.wasted_usd), 6) as wasted_usd
                          from tasks t group by t.task_type) y), '[]'),
            'tasks', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'id', t.task_id, 'task_type', t.task_type, 'attempts', t.attempts,
                           'seconds', round(t.seconds, 3), 'usd', round(t.usd, 6),
                           'wasted_usd', round(t.wasted_usd, 6)) order by t.usd desc, t.task_id)
                  from (select * from tasks t order by t.usd desc, t.task_id limit c_tasks) t), '[]')));
end
$$;

create or replace function public.fleet_efficiency(p_fleet text, p_since timestamptz, p_until timestamptz,
                                        p_now timestamptz default null)
returns jsonb language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_until timestamptz := least(coalesce(p_until, v_now), v_now);
    v_cost jsonb := public.fleet_cost(p_fleet, p_since, v_until, v_now);  -- refuses a window that is none
    v_length_s numeric := extract(epoch from v_until - p_since);
    v_paid_s numeric;
begin
    select coalesce(sum((k.value ->> 'seconds')::numeric), 0) into v_paid_s from jsonb_each(v_cost -> 'kinds') k;
    return (
        with ended as (
            select a.outcome, extract(epoch from a.to_at - a.from_at) / a.of as seconds
              from public.internal_turns(p_since, v_now) a join public.workers w on w.id = a.worker_id
             where w.fleet = p_fleet and coalesce(w.terminated_at > p_since - interval '1 day', true)
               and a.outcome is not null and a.to_at > p_since and a.to_at <= v_until
        ), counted as (
            select count(*) filter (where e.outcome = 'complete') as completed,
                   count(*) filter (where e.outcome in ('failed', 'lost')) as failed_attempts,
                   percentile_cont(0.5) within group (order by e.seconds)
                       filter (where e.outcome = 'complete') as run_p50_s
              from ended e
        ), given_up as (  -- tasks, not attempts; one that a dependency failed has no worker
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
            'queue_now', (select count(*) from public.tasks t where t.status = 'Queued'),
            'wait_p50_s', round(q.wait_p50_s::numeric, 3), 'wait_p95_s', round(q.wait_p95_s::numeric, 3),
            'paid_s', v_paid_s,
            'utilisation', round(coalesce((v_cost -> 'kinds' -> 'busy' ->> 'seconds')::numeric, 0)
                                 / nullif(v_paid_s, 0), 4),
            'usd', (v_cost ->> 'usd')::numeric,
            'usd_per_task', round((v_cost ->> 'usd')::numeric / nullif(c.completed, 0), 6))
          from counted c, given_up g, queue q);
end
$$;

create or replace function public.fleet_report(p_fleet text, p_now timestamptz default null)
returns jsonb language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_day timestamptz := v_now - interval '24 hours';
    c_rows constant int := 50;  -- of each list
begin
    return (
        with mine as (select w.* from public.workers w where w.fleet = p_fleet),
        turns as (
            select w.pool, avg(extract(epoch from a.to_at - a.from_at) / a.of) as mean_s
              from public.internal_turns(v_day, v_now) a join mine w on w.id = a.worker_id
             where coalesce(w.terminated_at > v_day, true) and a.outcome = 'complete' and a.to_at > v_day
             group by w.pool
        ),
        queue as (
            select t.pool,
                   count(*) filter (where t.status = 'Queued' and not t.blocked
                                      and coalesce(t.run_after <= v_now, true)) as claimable,
                   count(*) filter (where t.status = 'Queued' and t.blocked) as dependencies,
                   count(*) filter (where t.status = 'Queued' and not t.blocked and t.run_after > v_now) as scheduled,
                   min(t.run_after) filter (where t.status = 'Queued' and not t.blocked
                                              and t.run_after > v_now) as next_due_at,
                   count(*) filter (where t.status = 'In Progress') as running,
                   count(*) filter (where t.status = 'Complete'
                                      and t.generation_processed_at > v_now - interval '1 hour') as completed_1h,
                   min(t.created_at) filter (where t.status = 'Queued' and not t.blocked
                                               and coalesce(t.run_after <= v_now, true)) as oldest_claimable_at,
                   (select u.mean_s from turns u where u.pool = t.pool) as mean_task_s
              from public.tasks t group by t.pool
        ),
        attempts as (
            select a.*, w.pool from public.worker_attempts a join mine w on w.id = a.worker_id
             where a.ended_at > v_day and a.outcome in ('failed', 'timeout', 'lost')
        ),
        failed as (
            select t.task_type, t.failure_code, t.error_message, t.id, t.updated_at from public.tasks t
             where t.status = 'Failed' and t.updated_at > v_day
        ),
        spent as (
            select date_trunc('day', c.from_at at time zone 'UTC') as day, sum(c.usd) as usd from public.costs c
             where c.fleet = p_fleet and c.from_at > v_now - interval '8 days' and c.to_at <= v_day group by 1
        )
        select jsonb_build_object(
            'now', v_now,
            'leader', public.internal_leader(p_fleet, v_now),
            'paused', public.internal_pauses(p_fleet, v_now),
            'total_workers', (select count(*) from mine),
            'workers_by_status', coalesce((
                select jsonb_object_agg(s.status, s.n)
                  from (select w.status, count(*) as n from mine w group by w.status) s), '{}'),
            'task_counts', coalesce((
                select jsonb_object_agg(s.status, s.n)
                  from (select t.status::text as status, count(*) as n from public.tasks t group by 1) s), '{}'),
            'queue', coalesce((select jsonb_agg(to_jsonb(q) order by q.pool) from queue q), '[]'),
            'expired_leases', (
                select count(*) from public.tasks t
                 where t.status = 'In Progress'
                   and public.internal_is_abandoned(t.worker_id, t.lease_expires_at, v_now)),
            'recent_workers', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'id', w.id, 'status', w.status, 'pool', w.pool, 'gpu_type', w.gpu_type, 'pod_id', w.pod_id,
                           'created_at', w.created_at, 'promoted_at', w.promoted_at, 'terminated_at', w.terminated_at,
                           'exit_cause', w.exit_cause, 'failure_code', w.failure_code) order by w.created_at desc, w.id)
                  from (select * from mine w order by w.created_at desc, w.id limit c_rows) w), '[]'),
            'failed_climbs', coalesce((
                select jsonb_agg(to_jsonb(f) order by f.n desc, f.code)
                  from (select coalesce(a.failure_code, 'UNKNOWN') as code, a.stage, a.pool,
                               upper(a.evidence ->> 'cause') as cause, count(*) as n, count(distinct a.worker_id) as workers,
                               max(a.ended_at) as last_at,
                               (select max(o.ended_at) from public.worker_attempts o join mine w on w.id = o.worker_id
                                 where w.pool = a.pool and o.stage = a.stage and o.outcome = 'ok'
                                   and o.ended_at > v_day) as ok_at
                          from attempts a group by 1, 2, 3, 4) f), '[]'),
            'failed_tasks', coalesce((
                select jsonb_agg(to_jsonb(f) order by f.n desc, f.task_type)
                  from (select f.task_type, f.failure_code as code, count(*) as n, max(f.updated_at) as last_at,
                               (array_agg(f.id order by f.updated_at desc))[1] as last_task,
                               left((array_agg(f.error_message order by f.updated_at desc))[1], 500) as message,
                               count(*) filter (where f.failure_code is distinct from 'DEPENDENCY_FAILED'
                                   and f.error_message like '%No valid segment videos found%') as no_segments
                          from failed f group by f.task_type, f.failure_code) f), '[]'),
            'error_patterns', jsonb_build_object(
                'orphaned_tasks_reset', (
                    select count(*) from public.task_attempts a join mine w on w.id = a.worker_id
                     where a.outcome = 'lost' and a.ended_at > v_day),
                'ssh_errors', (
                    select count(*) from attempts a
                     where a.failure_code in ('TCP_REFUSED', 'TCP_TIMEOUT', 'NOT_SSH', 'SSH_DETAILS_MISSING',
                                              'HOST_KEY_CHANGED', 'EXEC_FAILED', 'CONNECTION_LOST')),
                'auth_failures', (
                    select count(*) from attempts a where a.failure_code in ('AUTH_FAILED', 'API_AUTH')),
                'other_errors', (
                    select count(*) from attempts a
                     where coalesce(a.failure_code, '') not in (
                               'TCP_REFUSED', 'TCP_TIMEOUT', 'NOT_SSH', 'SSH_DETAILS_MISSING', 'HOST_KEY_CHANGED',
                               'EXEC_FAILED', 'CONNECTION_LOST', 'AUTH_FAILED', 'API_AUTH'))),
            'recent_cycles', coalesce((
                select jsonb_agg(to_jsonb(d) - 'fleet' order by d.id desc)
                  from (select * from public.decisions d where d.fleet = p_fleet order by d.id desc limit c_rows) d), '[]'),
            'worker_lifecycle_events', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'at', e.at, 'worker_id', e.worker_id, 'from_state', e.from_state, 'to_state', e.to_state,
                           'reason', e.reason, 'actor', e.actor) order by e.id desc)
                  from (select e.* from public.worker_events e
                         where e.fleet = p_fleet and e.from_state is distinct from e.to_state
                         order by e.id desc limit c_rows) e), '[]'),
            'spent', jsonb_build_object(
                'last_hour_usd', (public.fleet_cost(p_fleet, v_now - interval '1 hour', v_now, v_now) ->> 'usd')::numeric,
                'last_day_usd', (public.fleet_cost(p_fleet, v_day, v_now, v_now) ->> 'usd')::numeric,
                'usual_day_usd', (select round(avg(s.usd), 6) from spent s))));
end
$$;

do $$
declare
    v_role name;
begin
    revoke all on function public.internal_turns(timestamptz, timestamptz) from public;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
        execute format('revoke all on function public.internal_turns(timestamptz, timestamptz) from %I', v_role);
    end loop;
end
$$;
