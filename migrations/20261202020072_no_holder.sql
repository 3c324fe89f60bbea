-- Tasks In Progress that nobody holds.
--
-- A row counts as running while its lease is valid. A row without a lease (a user's UPDATE, a task of an older schema)
-- belongs to nobody whom the orchestrator could hear, unless the programs of its pool take tasks themselves
-- (WORKER_START_COMMAND). The leader declares these pools, and after how long without a change another pool's row
-- without a lease is queued again. Until some leader has declared that, such rows count as running and stay as they are.

create function public.fleet_declare_programs(p_fleet text, p_term bigint, p_pools jsonb, p_stuck_s numeric,
                                              p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_declare_programs');
    if jsonb_typeof(p_pools) is distinct from 'array' or p_stuck_s is null or p_stuck_s not between 1 and 2592000 then
        perform public.internal_refuse('OR007', 'p_pools is a list of pools and p_stuck_s is from 1 to 2592000');
    end if;
    insert into public.fleet_settings (fleet, name, value, reason, set_at)
    values (p_fleet, 'programs', jsonb_build_object('pools', p_pools, 'stuck_s', p_stuck_s), 'WORKER_START_COMMAND', v_now)
    on conflict (fleet, name) do update set value = excluded.value, set_at = excluded.set_at;
    return jsonb_build_object('declared', jsonb_array_length(p_pools));
end
$$;

-- Who is to be waited for, of a task In Progress: 'lease' (a valid one), 'program' (it is its pool's program that has it),
-- 'unknown' (no leader has declared the programs), 'nobody'; and when it may be queued again, if that is known.
create function public.internal_holder(p_task public.tasks, p_now timestamptz, out held_by text, out rescue_at timestamptz)
language plpgsql stable security definer set search_path = '' as $$
declare
    v_worker record;
    v_program boolean;
    v_stuck_s numeric;
begin
    select bool_or(s.value->'pools' ? p_task.pool), max((s.value->>'stuck_s')::numeric) into v_program, v_stuck_s
      from public.fleet_settings s where s.name = 'programs';
    select w.status = 'terminated' as gone, w.terminated_at, w.own_program, w.metadata ? 'legacy_status' as legacy
      into v_worker from public.workers w where w.id = p_task.worker_id;
    if p_task.lease_expires_at < 'infinity' then
        rescue_at := p_task.lease_expires_at;
        if v_program and not exists (select from public.task_attempts a
                                      where a.task_id = p_task.id and a.attempt = p_task.attempts) then
            rescue_at := null;  -- the lease is not of a claim: its program has the task, whatever the lease says
        end if;
    elsif v_worker.gone and not (v_program and v_worker.legacy) then
        rescue_at := v_worker.terminated_at;
    elsif not v_program and v_worker.own_program is not true then
        rescue_at := greatest(p_task.updated_at, p_task.progress_at) + v_stuck_s * interval '1 second';
    end if;
    held_by := case when rescue_at is null and v_stuck_s is null then 'unknown'
                    when rescue_at is null then 'program'
                    when rescue_at > p_now and p_task.lease_expires_at < 'infinity' then 'lease'
                    else 'nobody' end;
end
$$;

-- Whether a task In Progress, whose lease is not valid, has been nobody's for p_over_s.
create function public.internal_is_lost(p_task public.tasks, p_now timestamptz, p_over_s numeric) returns boolean
language sql stable security definer set search_path = '' as $$
    select coalesce(h.rescue_at <= p_now - p_over_s * interval '1 second', false) from public.internal_holder(p_task, p_now) h
$$;

create or replace function public.internal_rescue(p_worker_id text, p_now timestamp with time zone, p_over_s numeric DEFAULT 0, p_fleet text DEFAULT NULL::text) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_task record;
    v_tasks jsonb := '[]';
    v_ids uuid[];
    v_failure jsonb;
begin
    if p_worker_id is not null then
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t where t.worker_id = p_worker_id and t.status = 'In Progress'
             order by t.id for no key update) l;
    else
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t
             where t.status = 'In Progress'
               and (coalesce(t.lease_expires_at, 'infinity') = 'infinity' or t.lease_expires_at <= p_now)
               and public.internal_is_lost(t, p_now, p_over_s)
               and (p_fleet is null or not public.internal_is_anothers(p_fleet, t.worker_id, p_now))
             order by t.id for no key update skip locked) l;
    end if;
    for v_task in
        select t.id, t.worker_id, t.lease_expires_at, t.updated_at,
               t.lease_expires_at < 'infinity' is true or w.status is not distinct from 'terminated' as leased,
               case when w.exit_cause = 'task_stuck' then
                   extract(epoch from p_now - coalesce(t.progress_at, t.generation_started_at)) end as still_s,
               coalesce((w.metadata->>'stuck_s')::numeric, 0) as stuck_s
          from public.tasks t left join public.workers w on w.id = t.worker_id
         where t.id = any (v_ids) and t.status = 'In Progress' order by t.id loop
        v_failure := case
            when v_task.still_s >= v_task.stuck_s then jsonb_build_object(
                'code', 'TASK_STUCK', 'exit_class', 'timeout',
                'message', format('No progress for %s s; worker %s was ended for that', floor(v_task.still_s),
                                  v_task.worker_id))
            when p_worker_id is not null then jsonb_build_object(
                'code', 'WORKER_LOST', 'exit_class', 'lost', 'message', format('Worker %s is gone', v_task.worker_id))
            when not v_task.leased then jsonb_build_object(
                'code', 'NO_HOLDER', 'exit_class', 'lost',
                'message', format('It was In Progress without a lease, and it did not change since %s', v_task.updated_at))
            else jsonb_build_object(
                'code', 'LEASE_EXPIRED', 'exit_class', 'lost',
                'message', format('Worker %s did not renew its lease, which ended %s', v_task.worker_id,
                                  v_task.lease_expires_at)) end;
        v_tasks := v_tasks || jsonb_build_object(
            'id', v_task.id, 'worker_id', v_task.worker_id,
            'outcome', public.internal_give_up(v_task.id, 'lost', v_failure || '{"point": "Processing"}', true, false, p_now));
    end loop;
    return v_tasks;
end
$$;

create or replace function public.fleet_snapshot(p_fleet text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_paused jsonb := public.internal_pauses(p_fleet, v_now);
    v_avoid jsonb := '{}';
    c_climbs constant int := 100;  -- of each pool: what the breaker looks back on
    c_batch constant int := 100;  -- tasks of one claim
    c_differences constant int := 1000;  -- more rows than that are rolled up first
begin
    perform public.internal_settle_late();
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
            select t.worker_id, t.pool, count(*) as n,
                   count(*) filter (where case
                       when t.lease_expires_at > v_now and t.lease_expires_at < 'infinity' then true
                       else (select h.held_by <> 'nobody' from public.internal_holder(t, v_now) h) end) as counted,
                   min(coalesce(t.progress_at, t.generation_started_at)) as progress_at,
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
              left join (select pool, sum(counted) as n from running group by pool) r on r.pool = p.pool
        ), climbs as (
            select w.id, w.pool, w.created_at, w.climb_ended_at, w.promoted_at is not null as promoted, w.exit_cause, w.failure_code,
                   w.release, w.ending_since,
                   row_number() over (partition by w.pool order by w.climb_ended_at desc, w.id) as place
              from public.workers w where w.fleet = p_fleet and w.climb_ended_at > v_now - interval '1 day'
        )
        select jsonb_build_object(
            'now', v_now,
            'workers', coalesce((
                select jsonb_agg(to_jsonb(w) || jsonb_build_object('tasks_running', coalesce(h.n, 0),
                           'progress_at', case when w.own_program then h.progress_at else h.moved_at end,
                           'slowest_task', h.slowest,
                           'done_elsewhere_at', case when w.held_back is not null then public.internal_done_elsewhere(w) end,
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
                   and (coalesce(t.lease_expires_at, 'infinity') = 'infinity' or t.lease_expires_at <= v_now)
                   and public.internal_is_lost(t, v_now, 0)
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
                           'exit_cause', c.exit_cause, 'failure_code', c.failure_code, 'release', c.release,
                           'boot_s', case when c.promoted then extract(epoch from c.climb_ended_at - c.created_at) end,
                           'ending_since', case when c.promoted then c.ending_since end,
                           'worked', c.promoted and exists (  -- bounded, where a handler fails a thousand tasks
                               select from (select a.outcome from public.task_attempts a where a.worker_id = c.id
                                             order by a.started_at limit c_batch) a where a.outcome = 'complete'))
                       order by c.climb_ended_at, c.id)
                  from climbs c where c.place <= c_climbs), '[]'),
            'proven', coalesce((
                select jsonb_agg(r.release order by r.release) from public.releases r
                 where r.fleet = p_fleet and r.promoted_at > v_now - interval '30 days'), '[]'),
            'spent', (select to_jsonb(s) from public.internal_spent(p_fleet, null, v_now) s),
            'avoid', v_avoid,
            'paused', v_paused,
            'database_id', (select i.id from public.database_identity i where i.is_this),
            'queued_total', (select coalesce(sum(q.total), 0) from queued q))
    );
end
$$;

create or replace function public.fleet_report(p_fleet text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_nestloop TO 'off'
    SET jit TO 'off'
    AS $$
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
                   and (coalesce(t.lease_expires_at, 'infinity') = 'infinity' or t.lease_expires_at <= v_now)
                   and public.internal_is_lost(t, v_now, 0)),
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

create or replace function public.fleet_task_explain(p_fleet text, p_task_id uuid, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_task public.tasks;
    c_workers constant int := 25;  -- the newest of its pool, and …
    c_attempts constant int := 200;  -- … the newest of each: what is usual for its type
begin
    select * into v_task from public.tasks t where t.id = p_task_id;
    return (select jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'paused', public.internal_pauses(p_fleet, v_now),
        'task', case when v_task.id is not null then to_jsonb(v_task) end,
        'usual', (
            select jsonb_build_object('task_type', v_task.task_type, 'n', count(*),
                       'p50_s', round(percentile_cont(0.5) within group (order by x.seconds)::numeric, 3),
                       'p95_s', round(percentile_cont(0.95) within group (order by x.seconds)::numeric, 3))
              from (select w.id from public.workers w where w.fleet = p_fleet and w.pool = v_task.pool
                     order by w.created_at desc limit c_workers) w
              cross join lateral (select * from public.task_attempts b where b.worker_id = w.id
                                   order by b.started_at desc limit c_attempts) a
              join public.tasks t on t.id = a.task_id
              cross join lateral (select extract(epoch from a.ended_at - greatest(a.started_at, (
                       select max(b.ended_at) from public.task_attempts b  -- the one before, of the same claim
                        where b.worker_id = a.worker_id and b.nonce = a.nonce and b.claim_no = a.claim_no
                          and b.ended_at < a.ended_at))) as seconds) x
             where a.outcome = 'complete' and t.task_type = v_task.task_type),
        'holder', case when v_task.status = 'In Progress' then (select to_jsonb(h) from public.internal_holder(v_task, v_now) h) end,
        'decision', public.internal_pool_decision(p_fleet, v_task.pool),
        'ahead', (select count(*) from public.tasks t
                   where t.pool = v_task.pool and t.status = 'Queued' and not t.blocked
                     and coalesce(t.run_after <= v_now, true)
                     and (~t.priority, t.created_at, t.id) < (~v_task.priority, v_task.created_at, v_task.id)),
        'workers', coalesce((
            select jsonb_object_agg(s.status, s.n)
              from (select w.status, count(*) as n from public.workers w
                     where w.fleet = p_fleet and w.pool = v_task.pool and w.status <> 'terminated'
                     group by w.status) s), '{}'),
        'worker', (select jsonb_build_object('id', w.id, 'status', w.status, 'last_heartbeat', w.last_heartbeat,
                                             'exit_cause', w.exit_cause, 'failure_code', w.failure_code)
                     from public.workers w where w.id = v_task.worker_id),
        'dependencies', coalesce((
            select jsonb_agg(jsonb_build_object(
                       'id', n.id, 'task_type', coalesce(d.task_type, r.task_type),
                       'status', coalesce(d.status::text, case when r.id is not null then 'Complete' end), 'worker_id', d.worker_id,
                       'run_after', d.run_after, 'failure_code', d.failure_code, 'error_message', d.error_message)
                       order by n.place)
              from unnest(v_task.depends_on) with ordinality n (id, place)
              left join public.tasks d on d.id = n.id
              left join public.task_results r on r.id = n.id), '[]'),
        'dependants', (select count(*) from public.tasks t
                        where t.blocked and t.status = 'Queued' and t.depends_on && array[p_task_id]),
        'attempts', coalesce((
            select jsonb_agg(to_jsonb(a) || jsonb_build_object(
                       'price_usd_per_hour', w.price_usd_per_hour, 'worker_status', w.status,
                       'worker_exit_cause', w.exit_cause, 'worker_failure_code', w.failure_code,
                       'usd', case when w.price_usd_per_hour is not null then round(coalesce(s.usd, 0), 6) end)
                       order by a.attempt)
              from public.task_attempts a left join public.workers w on w.id = a.worker_id
              left join public.internal_shares('-infinity', v_now, v_now, p_task_id) s
                     on s.task_id = a.task_id and s.attempt = a.attempt
             where a.task_id = p_task_id), '[]')));
end
$$;

drop function public.internal_is_abandoned(text, timestamptz, timestamptz);

do $$
declare
    v_function text;
    v_role name;
begin
    foreach v_function in array array['internal_holder', 'internal_is_lost', 'fleet_declare_programs'] loop
        execute format('revoke all on function public.%I from public', v_function);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function public.%I from %I', v_function, v_role);
        end loop;
    end loop;
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        grant execute on function public.fleet_declare_programs to service_role;
    end if;
end
$$;
