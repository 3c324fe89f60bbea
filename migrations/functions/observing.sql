-- The database half of a tick's snapshot. Each function is one statement, so that it never mixes two moments.

-- When the oldest task of a pool was created that a worker may claim now. In an order that only one index has: for a
-- minimum, the planner may read all ready tasks.
create or replace function public.internal_oldest_ready(p_pool text) returns timestamptz
language plpgsql stable security definer set search_path = '' set enable_seqscan = off set enable_sort = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
begin
    return (select t.created_at from public.tasks t
             where t.pool = p_pool and t.status = 'Queued' and not t.blocked and t.run_after is null
               and coalesce((select r.what <> 'claim' from public.task_refusals r where r.task_id = t.id), true)
             order by t.pool, t.created_at limit 1);
end
$$;

-- The data that a tick reads: pools, queue, workers, offers, budgets, pauses, and the identity of the database, because
-- decisions about pods must use rows and identity of the same database. Planned once for each connection, by indexes
-- only: a plan that was made while the queue was short must not be used when it is long.
create or replace function public.fleet_snapshot(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = '' set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_paused jsonb := public.internal_pauses(p_fleet, v_now);
    v_avoid jsonb := '{}';
    c_bringups constant int := 100;  -- of each pool: how many the breaker looks at
    c_batch constant int := 100;  -- tasks of one claim
    c_differences constant int := 1000;  -- more rows than that are rolled up first
    v_is_due boolean;
    v_set text;
begin
    v_set := set_config('orchestrator.alone', statement_timestamp()::text, true);
    perform public.internal_settle_pending();
    perform public.internal_let_in_pending(v_now);
    if (select count(*) from (select from public.task_counts limit c_differences + 1) c) > c_differences then
        perform public.internal_roll_up(false);
    end if;
    if public.internal_is_miscounted() then  -- once a minute, if a user has switched our triggers off
        with due as (
            insert into public.fleet_chores as d (fleet, name, done_at) values (p_fleet, 'recount', v_now)
            on conflict (fleet, name) do update set done_at = excluded.done_at
                where d.done_at not between v_now - interval '1 minute' and v_now
            returning 1)
        select count(*) > 0 into v_is_due from due;
        if v_is_due then
            perform public.internal_recount();
        end if;
    end if;
    if to_regclass('public.hosts') is not null then  -- the table comes with a later migration
        select coalesce(jsonb_object_agg(h.key, h.avoid_until), '{}') into v_avoid
          from public.hosts h where h.fleet = p_fleet and h.avoid_until > v_now;
    end if;
    return (
        with recursive spawned(pool) as (  -- goes from pool to pool in the index, however many workers each has had
            (select w.pool from public.workers w where w.fleet = p_fleet order by w.pool limit 1)
            union all
            select (select w.pool from public.workers w where w.fleet = p_fleet and w.pool > s.pool order by w.pool limit 1)
              from spawned s where s.pool is not null
        ), running as (
            select t.worker_id, t.pool, count(*) as n,
                   count(*) filter (where case
                       when t.lease_expires_at > v_now and t.lease_expires_at < 'infinity'  -- not of an earlier program
                       then exists (select from public.workers w where w.id = t.worker_id and w.status <> 'terminated')
                       else (select h.held_by <> 'nobody' from public.internal_holder(t.*, v_now) h) end) as counted,
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
        ), due as (  -- tasks that have become due since they were postponed
            select c.pool, count(t.run_after) as n, min(t.created_at) as oldest
              from counts c
              left join public.tasks t on t.pool = c.pool and t.status = 'Queued' and not t.blocked
                                      and t.run_after is not null and t.run_after <= v_now
             where c.kind = 'timed' and c.n > 0 group by c.pool
        ), refused as (  -- tasks that wait for the next try, which needs no worker
            select r.pool, r.n from public.internal_refused_ready(v_now) r
        ), queued as (
            select c.pool, c.total, c.dependencies, c.limits, c.timed - coalesce(d.n, 0) + coalesce(f.n, 0) as scheduled,
                   c.plain + coalesce(d.n, 0) - coalesce(f.n, 0) as ready,
                   least(d.oldest, case when c.plain > 0 then public.internal_oldest_ready(c.pool) end) as oldest
              from (select pool, sum(n) as total, coalesce(sum(n) filter (where kind = 'blocked'), 0) as dependencies,
                           coalesce(sum(n) filter (where kind = 'gated'), 0) as limits,
                           coalesce(sum(n) filter (where kind = 'timed'), 0) as timed,
                           coalesce(sum(n) filter (where kind = 'plain'), 0) as plain
                      from counts group by pool having sum(n) <> 0) c
              left join due d on d.pool = c.pool
              left join refused f on f.pool = c.pool
        ), demand as (
            select p.pool, v_paused ?| array['*', p.pool] as paused, coalesce(q.ready, 0) as ready,
                   coalesce(r.n, 0) as running, coalesce(q.dependencies, 0) as dependencies, coalesce(q.limits, 0) as limits,
                   coalesce(q.scheduled, 0) as scheduled, q.oldest
              from (select pool from queued union select pool from running) p
              left join queued q on q.pool = p.pool
              left join (select pool, sum(counted) as n from running group by pool) r on r.pool = p.pool
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
            'now', v_now,
            'workers', coalesce((
                select jsonb_agg(to_jsonb(w.*) || jsonb_build_object('tasks_running', coalesce(h.n, 0),
                           'progress_at', case when w.own_program then h.progress_at else h.moved_at end,
                           'slowest_task', h.slowest,
                           'second_opinion', case when w.held_back is not null then public.internal_second_opinion(w.*) end,
                           'empty_since', case when w.status = 'active' and h.n is null then greatest(w.state_since, (
                               select max(a.ended_at) from (select a.ended_at from public.task_attempts a
                                where a.worker_id = w.id order by a.started_at desc limit c_batch) a)) end) order by w.id)
                  from public.workers w left join held h on h.worker_id = w.id
                 where w.fleet = p_fleet and w.status <> 'terminated'), '[]'),
            'demand', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'pool', d.pool, 'claimable', case when d.paused then 0 else d.ready end, 'running', d.running,
                           'blocked', jsonb_build_object('dependencies', d.dependencies, 'concurrency', d.limits,
                                                         'scheduled', d.scheduled,
                                                         'paused', case when d.paused then d.ready else 0 end),
                           'oldest_claimable_at', d.oldest) order by d.pool) from demand d), '[]'),
            'expired_leases', (
                select count(*) from public.tasks t
                 where t.status = 'In Progress'
                   and (coalesce(t.lease_expires_at, 'infinity') = 'infinity' or t.lease_expires_at <= v_now)
                   and public.internal_is_lost(t.*, v_now, 0)
                   and not public.internal_is_unrescuable(t.id, v_now)
                   and not public.internal_is_of_other_fleet(p_fleet, t.worker_id, v_now)),
            'offers', coalesce((
                select jsonb_agg(to_jsonb(o.*) - 'fleet' order by o.key) from public.offers o
                 where o.fleet = p_fleet), '[]'),
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
                           'boot_s', case when c.promoted then extract(epoch from c.bringup_ended_at - c.created_at) end,
                           'ending_since', case when c.promoted then c.ending_since end,
                           'offer', c.offer,
                           'worked', c.promoted and exists (  -- bounded, for handlers that fail a thousand tasks
                               select from (select a.outcome from public.task_attempts a where a.worker_id = c.id
                                             order by a.started_at limit c_batch) a where a.outcome = 'complete'))
                       order by c.bringup_ended_at, c.id)
                  from bringups c where c.place <= c_bringups), '[]'),
            'pod_prices', coalesce((  -- of the newest pod of each offer; how many in a row have ended for the budget
                select jsonb_agg(to_jsonb(p.*) order by p.offer) from (
                    select c.offer, (array_agg(c.usd_per_gpu_hour order by c.created_at desc, c.usd_per_gpu_hour desc))[1]
                               as usd_per_gpu_hour,
                           max(c.created_at) as created_at,
                           (array_agg(c.ended_at order by c.created_at desc, c.usd_per_gpu_hour desc))[1] as ended_at,
                           count(*) filter (where c.ended_for_budget
                                              and c.created_at > coalesce(c.kept_at, '-infinity')) as ended_for_budget
                      from (select b.*, max(b.created_at) filter (where not b.ended_for_budget) over (partition by b.offer)
                                       as kept_at
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
                     order by w.ending_since desc limit c_bringups) f), '[]'),
            'spent', (select to_jsonb(s.*) from public.internal_spent(p_fleet, null, v_now) s),
            'avoid', v_avoid,
            'paused', v_paused,
            'clusters', public.internal_cluster_needs(p_fleet),
            'database_id', (select i.id from public.database_identity i where i.is_this),
            'queued_total', (select coalesce(sum(q.total), 0) from queued q))
    );
end
$$;

-- How many ready tasks of each pool claims skip for now. Each refusal looks up its task: any other join reads the queue.
create or replace function public.internal_refused_ready(p_now timestamptz) returns table (pool text, n bigint)
language sql stable security definer set search_path = '' set enable_hashjoin = off set enable_mergejoin = off
set enable_material = off set jit = off as $$
    select t.pool, count(*)
      from (select o.task_id, o.what from public.task_refusals o
             where o.what = 'claim' or o.what = 'let_in' and o.retry_at > internal_refused_ready.p_now offset 0) r
     cross join lateral (select d.* from public.tasks d where d.id = r.task_id offset 0) t
     where t.status = 'Queued' and not t.blocked and (t.run_after is null or t.run_after <= internal_refused_ready.p_now)
       and (r.what = 'claim' or t.queue_gate = 0)
     group by t.pool
$$;

-- The events of LISTEN for clients that cannot listen (PostgREST, a transaction pooler): a mark for every pool with
-- claimable tasks and for every live worker, and one for leases and pauses under the name ''. A mark changes with
-- everything that would be notified. If the caller's digest is current, only the digest is returned.
create or replace function public.fleet_changes(p_digest text, p_now timestamptz default null) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    c_head constant int := 100;  -- tasks of a pool; if more are claimable, no worker waits for a task
    v_marks jsonb;
begin
    with recursive pools(pool) as (  -- goes from pool to pool in the index, however many tasks each has
        (select t.pool from public.tasks t where t.status = 'Queued' and not t.blocked order by t.pool limit 1)
        union all
        select (select t.pool from public.tasks t where t.status = 'Queued' and not t.blocked and t.pool > p.pool
                 order by t.pool limit 1)
          from pools p where p.pool is not null
    ), heads as (
        select p.pool, h.mark
          from pools p
         cross join lateral public.internal_claim_start(p.pool, v_now) s  -- not past all postponed tasks each time
         cross join lateral (
             select md5(string_agg(c.id || '/' || c.attempts, ',')) as mark from (
                 select t.id, t.attempts from public.tasks t
                  where t.pool = p.pool and t.status = 'Queued' and not t.blocked
                    and coalesce(t.run_after <= v_now, true)
                    and (~t.priority, t.queue_turn, t.created_at, t.id) >= (s.place, s.queue_turn, s.created_at, s.id)
                  order by ~t.priority, t.queue_turn, t.created_at, t.id limit c_head) c) h
         where h.mark is not null
    ), held as (
        select t.worker_id, string_agg(t.id || '/' || t.attempts, ',' order by t.id) as tasks
          from public.tasks t where t.status = 'In Progress' and t.worker_id is not null group by t.worker_id
    ), fleet as (
        select w.id as key,
               md5(concat_ws('|', w.status, w.stage, w.drain_requested_at, w.stop_requested_at, w.agent->>'nonce',
                             w.last_heartbeat is null, h.tasks, m.role, m.status, c.status)) as mark
          from public.workers w left join held h on h.worker_id = w.id
          left join public.cluster_members m on m.cluster = w.cluster and m.worker_id = w.id
          left join public.cluster_apps c on c.id = m.cluster
         where w.status <> 'terminated'
        union all
        select '', md5(concat_ws('|',
            (select string_agg(concat_ws('/', l.fleet, l.term, l.holder, l.expires_at <= v_now), ',' order by l.fleet)
               from public.fleet_lease l),
            (select string_agg(concat_ws('/', s.fleet, s.name, s.set_at), ',' order by s.fleet, s.name)
               from public.fleet_settings s where s.name like 'paused%'),
            (select string_agg(concat_ws('/', c.id, c.status, c.nodes), ',' order by c.id)
               from public.cluster_apps c where c.status not in ('deleted', 'failed'))))
    )
    select jsonb_build_object(
        'orchestrator_tasks', coalesce((select jsonb_object_agg(h.pool, h.mark) from heads h), '{}'),
        'orchestrator_fleet', (select jsonb_object_agg(f.key, f.mark) from fleet f))
      into v_marks;
    return jsonb_build_object('digest', md5(v_marks::text),
                              'marks', case when md5(v_marks::text) is distinct from p_digest then v_marks end);
end
$$;
