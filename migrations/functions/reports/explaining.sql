-- Why a worker, a task or a pool is in its state. Each function is one statement, so that it never mixes two moments.

-- One worker with everything that explains it; the newest 200 of its events and bring-up attempts, oldest first.
create or replace function public.fleet_explain(p_fleet text, p_worker_id text, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers;
    c_queued constant int := 10000;  -- tasks of its pool that are counted
begin
    select * into v_worker from public.workers w where w.id = p_worker_id and w.fleet = p_fleet;
    return (select jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'paused', public.internal_paused(p_fleet, v_now),
        'worker', case when v_worker.id is not null then public.internal_worker_report(v_worker, v_now) end,
        'usual', public.fleet_usual(p_fleet, v_worker.gpu_type, v_now),
        'queued', (select count(*) from (
                       (select from orchestrator.live q where q.pool = v_worker.pool and q.state = 'ready'
                         order by q.place limit c_queued)
                       union all
                       (select from orchestrator.live q
                         where q.pool = v_worker.pool and q.state = 'waits_for_time' and q.run_after <= v_now
                         order by q.run_after limit c_queued)) q),
        'running', coalesce((
            select jsonb_agg(jsonb_build_object(
                       'id', q.task_id, 'task_type', q.task_type, 'attempt', q.attempt, 'max_attempts', q.max_attempts,
                       'started_at', q.claimed_at, 'progress', t.progress, 'progress_at', q.progress_at,
                       'lease_expires_at', q.lease_expires_at) order by q.claimed_at, q.task_id)
              from orchestrator.live q join public.tasks t on t.id = q.task_id
             where q.worker_id = p_worker_id and q.state = 'running'), '[]'),
        'events', coalesce((
            select jsonb_agg(to_jsonb(e.*) order by e.id)
              from (select * from public.worker_events e where e.worker_id = v_worker.id
                     order by e.id desc limit 200) e), '[]'),
        'attempts', coalesce((
            select jsonb_agg(to_jsonb(a.*) order by a.id)
              from (select * from public.worker_attempts a where a.worker_id = v_worker.id
                     order by a.id desc limit 200) a), '[]')));
end
$$;

-- Each live worker as fleet_explain() has it, by its id: one call, however many there are.
create or replace function public.fleet_explain_workers(p_fleet text, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    return (select jsonb_build_object('workers', coalesce(
                jsonb_object_agg(w.id, public.fleet_explain(p_fleet, w.id, v_now)), '{}'))
              from public.workers w where w.fleet = p_fleet and w.status <> 'terminated');
end
$$;

-- One task with everything that explains it: its place in the queue, dependencies, attempts, holder and cost.
create or replace function public.fleet_task_explain(p_fleet text, p_task_id uuid, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_task public.tasks := orchestrator.current_task(p_task_id);
    v_live orchestrator.live;
    c_ahead constant int := 10000;  -- tasks before it that are counted
    c_waiting constant int := 40;  -- tasks that need it
begin
    select * into v_live from orchestrator.live q where q.task_id = p_task_id;
    return (select jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'read_only', public.internal_is_read_only(),
        'paused', public.internal_pauses(p_fleet, v_now),
        'conditions', public.internal_conditions(p_fleet, v_now),
        'task', orchestrator.task_json(p_task_id) - 'params' - 'result_data' - 'depends_on',
        'usual', public.internal_usual_task(p_fleet, v_task.pool, v_task.task_type),
        'holder', case when v_live.state = 'running' then (
            select to_jsonb(h.*) from orchestrator.holder(v_live, v_now) h) end,
        'declared', (select to_jsonb(d.*) from public.task_types d where d.task_type = v_task.task_type),
        'limit', case when v_live.state in ('waits_for_key', 'waits_for_type')
                      then public.internal_limit_waits(v_live) end,
        'publication', (select jsonb_build_object('shown', p.shown, 'since', p.at, 'reason', p.reason, 'times', p.times,
                                                  'retry_at', p.retry_at)
                          from orchestrator.publications p
                          join public.tasks t on t.id = p.task_id and p.no > t.published
                         where p.task_id = p_task_id and p.reason is not null),
        'decision', public.internal_pool_decision(p_fleet, v_task.pool),
        'ahead', (select count(*) from (
                      select from orchestrator.live q
                       where q.pool = v_live.pool and q.state = 'ready'
                         and (q.place, q.turn, q.created_at, q.task_id)
                             < (v_live.place, v_live.turn, v_live.created_at, v_live.task_id)
                       order by q.place, q.turn, q.created_at, q.task_id limit c_ahead) q),
        'workers', coalesce((
            select jsonb_object_agg(s.status, s.n)
              from (select w.status, count(*) as n from public.workers w
                     where w.fleet = p_fleet and w.pool = v_task.pool and w.status <> 'terminated'
                     group by w.status) s), '{}'),
        'worker', (select jsonb_build_object('id', w.id, 'status', w.status, 'last_heartbeat', w.last_heartbeat,
                                             'exit_cause', w.exit_cause, 'failure_code', w.failure_code,
                                             'waiting_on', w.waiting_on, 'waiting_for', w.waiting_for,
                                             'deadline_at', w.deadline_at)
                     from public.workers w where w.id = v_task.worker_id),
        'dependants', (select count(*) from orchestrator.edges e join orchestrator.live q on q.task_id = e.task_id
                        where e.needs = p_task_id and q.state = 'waits_for_tasks'),
        'waiting', coalesce((
            select jsonb_agg(to_jsonb(n.*) order by n.id)
              from (select q.task_id as id, t.task_type, q.pool
                      from orchestrator.edges e join orchestrator.live q on q.task_id = e.task_id
                      join public.tasks t on t.id = e.task_id
                     where e.needs = p_task_id and q.state = 'waits_for_tasks' order by e.task_id limit c_waiting) n),
            '[]'))
        || public.internal_task_needs(v_task)
        || jsonb_build_object('attempts', public.internal_attempts_with_cost(p_task_id, v_now)));
end
$$;

-- The usual duration of this type on the newest workers of the pool.
create or replace function public.internal_usual_task(p_fleet text, p_pool text, p_task_type text) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
#variable_conflict use_variable
declare
    c_workers constant int := 25;
    c_attempts constant int := 40;  -- the newest of each worker
begin
    return (
        select jsonb_build_object('task_type', p_task_type, 'n', count(*),
                   'p50_s', round(percentile_cont(0.5) within group (order by x.seconds)::numeric, 3),
                   'p95_s', round(percentile_cont(0.95) within group (order by x.seconds)::numeric, 3))
          from (select w.id from public.workers w where w.fleet = p_fleet and w.pool = p_pool
                 order by w.created_at desc limit c_workers) w
          cross join lateral (select * from orchestrator.attempts b where b.worker_id = w.id
                               order by b.started_at desc limit c_attempts) a
          join public.tasks t on t.id = a.task_id
          cross join lateral (select extract(epoch from a.ended_at - greatest(a.started_at, (
                   select max(b.ended_at) from orchestrator.attempts b  -- the previous one of the same claim
                    where b.worker_id = a.worker_id and b.nonce = a.nonce and b.claim_no = a.claim_no
                      and b.ended_at < a.ended_at))) as seconds) x
         where a.outcome = 'complete' and t.task_type = p_task_type);
end
$$;

-- What a task needs: {dependencies, dependency_counts}. Of many, the list has first those that are not Complete.
create or replace function public.internal_task_needs(p_task public.tasks) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
#variable_conflict use_variable
declare
    c_needs constant int := 100;
    c_letters constant int := 500;  -- of another task's error
begin
    return (with needs as materialized (
        select n.id, n.place, coalesce(q.pool, orchestrator.pool_of(d.*)) as pool,
               coalesce(d.task_type, r.task_type) as task_type,
               case when q.state = 'running' then 'In Progress'
                    else coalesce(p.status, d.status::text, case when r.id is not null then 'Complete' end)
               end as status,
               coalesce(q.worker_id, d.worker_id) as worker_id, d.run_after,
               case when p.task_id is null then d.failure_code else p.failure_code end as failure_code,
               left(case when p.task_id is null then d.error_message else p.error_message end, c_letters)
                   as error_message
          from (select u.id, min(u.place) as place from unnest(p_task.depends_on) with ordinality u (id, place)
                 group by u.id) n
          left join public.tasks d on d.id = n.id
          left join public.task_results r on r.id = n.id
          left join orchestrator.live q on q.task_id = n.id
          left join orchestrator.publications p on p.task_id = n.id and p.no > d.published
    ) select jsonb_build_object(
        'dependencies', coalesce((
            select jsonb_agg(to_jsonb(n.*) - 'place' order by n.place)
              from (select * from needs
                     order by needs.status is not distinct from 'Complete', needs.place limit c_needs) n), '[]'),
        'dependency_counts', (select jsonb_build_object('all', count(*), 'complete',
                                     count(*) filter (where n.status = 'Complete')) from needs n)));
end
$$;

-- The newest attempts of a task, oldest first, each with its worker and its share of the cost.
create or replace function public.internal_attempts_with_cost(p_task_id uuid, p_now timestamptz) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
#variable_conflict use_variable
declare
    c_tries constant int := 200;
begin
    return coalesce((
        select jsonb_agg(to_jsonb(a.*) || jsonb_build_object(
                   'price_usd_per_hour', w.price_usd_per_hour, 'worker_status', w.status,
                   'worker_exit_cause', w.exit_cause, 'worker_failure_code', w.failure_code,
                   'usd', case when w.price_usd_per_hour is not null then round(coalesce(s.usd, 0), 6) end)
                   order by a.attempt)
          from (select * from public.task_attempts m where m.task_id = p_task_id
                 order by m.attempt desc limit c_tries) a
          left join public.workers w on w.id = a.worker_id
          left join public.internal_shares(p_task_id, p_now) s
                 on s.task_id = a.task_id and s.attempt = a.attempt), '[]');
end
$$;

-- The facts behind the size of every pool: its last decision, the offers, the workers, the leader.
create or replace function public.fleet_scaling_explain(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_decisions constant int := 500;  -- of each pool: how far it looks back for the start of a block
begin
    return (with recursive pools (pool) as (  -- from one to the next in the index, however many decisions each has
        (select d.pool from public.decisions d where d.fleet = p_fleet order by d.pool limit 1)
        union all
        select (select d.pool from public.decisions d where d.fleet = p_fleet and d.pool > p.pool
                 order by d.pool limit 1)
          from pools p where p.pool is not null
    ) select jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'paused', public.internal_paused(p_fleet, v_now),
        'offers', coalesce((select jsonb_agg(to_jsonb(o.*) - 'fleet' order by o.key)
                              from public.offers o where o.fleet = p_fleet), '[]'),
        'decisions', coalesce((
            select jsonb_object_agg(p.pool, public.internal_pool_decision(p_fleet, p.pool))
              from pools p where p.pool is not null), '{}'),
        'blocks', coalesce((
            select jsonb_object_agg(p.pool, (
                       select jsonb_agg(jsonb_build_object('at', c.at, 'blocked', c.blocked) order by c.id desc)
                         from (select d.*, lag(d.blocked) over (order by d.id) as before
                                 from (select * from public.decisions d where d.fleet = p_fleet and d.pool = p.pool
                                        order by d.id desc limit c_decisions) d) c
                        where c.blocked is distinct from c.before))
              from pools p where p.pool is not null), '{}'),
        'waiting', coalesce((
            select jsonb_agg(jsonb_build_object(
                       'id', w.id, 'pool', w.pool, 'stage', w.stage, 'waiting_on', w.waiting_on,
                       'waiting_for', w.waiting_for, 'next_attempt_at', w.next_attempt_at,
                       'deadline_at', w.deadline_at) order by w.id)
              from public.workers w
             where w.fleet = p_fleet and w.status = 'spawning'
               and w.waiting_on in ('capacity', 'budget', 'operator')), '[]')));
end
$$;

-- The decisions of these pools (null: of all) between two moments, the newest first, and the one of each pool that was
-- in force when the time began; at most p_limit: {now, decisions, more}.
create or replace function public.fleet_decisions_between(
    p_fleet text, p_pools jsonb, p_since timestamptz, p_until timestamptz, p_limit int, p_now timestamptz default null
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off
set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_limit int := least(greatest(coalesce(p_limit, 100), 1), 1000);
    v_first bigint;  -- the newest decision before the time, of any fleet and pool
    v_last bigint;  -- … and the newest one in it
begin
    perform public.internal_check_window(p_since, p_until);
    v_first := coalesce((select d.id from public.decisions d where d.at < p_since order by d.at desc limit 1), 0);
    v_last := coalesce((select d.id from public.decisions d where d.at < p_until order by d.at desc limit 1), 0);
    return (
        with recursive pools (pool) as (  -- from one to the next in the index, however many decisions each has
            (select d.pool from public.decisions d where d.fleet = p_fleet order by d.pool limit 1)
            union all
            select (select d.pool from public.decisions d where d.fleet = p_fleet and d.pool > p.pool
                     order by d.pool limit 1)
              from pools p where p.pool is not null
        ), found as (
            select d.* from pools p
             cross join lateral (
                   (select * from public.decisions d where d.fleet = p_fleet and d.pool = p.pool
                       and d.id > v_first and d.id <= v_last order by d.id desc limit v_limit + 1)
                   union all
                   (select * from public.decisions d where d.fleet = p_fleet and d.pool = p.pool
                       and d.id <= v_first order by d.id desc limit 1)) d
             where p.pool is not null
               and (jsonb_typeof(p_pools) is distinct from 'array' or coalesce(p_pools ? p.pool, false))
        )
        select jsonb_build_object('now', v_now, 'more', (select count(*) > v_limit from found), 'decisions', coalesce((
            select jsonb_agg(to_jsonb(d.*) order by d.id desc)
              from (select * from found f order by f.id desc limit v_limit) d), '[]')));
end
$$;

-- The usual duration of each stage of a bring-up on this GPU type, and of a task of each type.
create or replace function public.fleet_usual(p_fleet text, p_gpu_type text, p_now timestamptz default null)
returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    with bringups as (
        select w.id, extract(epoch from e.at - w.created_at) as seconds
          from public.workers w
          cross join lateral (select e.at from public.worker_events e
                               where e.worker_id = w.id and e.from_state = 'spawning' and e.to_state = 'active'
                               order by e.id limit 1) e
         where w.fleet = fleet_usual.p_fleet and (fleet_usual.p_gpu_type is null or w.gpu_type = fleet_usual.p_gpu_type)
         order by w.created_at desc limit 1000
    ), stages as (
        select a.stage, count(*) as n, percentile_cont(0.5) within group (order by x.seconds) as p50_s,
               percentile_cont(0.95) within group (order by x.seconds) as p95_s
          from bringups c
          join public.worker_attempts a on a.worker_id = c.id and a.outcome = 'ok'
          cross join lateral (select extract(epoch from a.ended_at - a.started_at) as seconds) x
         group by a.stage
    )
    select jsonb_build_object(
        'stages', coalesce((
            select jsonb_object_agg(s.stage, jsonb_build_object(
                       'n', s.n, 'p50_s', round(s.p50_s::numeric, 3), 'p95_s', round(s.p95_s::numeric, 3)))
              from stages s), '{}'),
        'gpu_type', fleet_usual.p_gpu_type, 'n', count(*),
        'p50_s', round(percentile_cont(0.5) within group (order by c.seconds)::numeric, 3),
        'p95_s', round(percentile_cont(0.95) within group (order by c.seconds)::numeric, 3)) from bringups c
$$;

create or replace function public.internal_pool_decision(p_fleet text, p_pool text) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select to_jsonb(d.*) from public.decisions d
     where d.fleet = internal_pool_decision.p_fleet and d.pool = internal_pool_decision.p_pool
     order by d.id desc limit 1
$$;
