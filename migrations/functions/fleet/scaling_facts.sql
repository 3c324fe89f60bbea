-- What the learned rule of scaling reads in each tick, and what it keeps. Moments are seconds since 1970.

-- What happened in these pools, {pool: since} at most 100, and what is open in each: {now, pools: {pool: {since, runs,
-- opened, open, waiting, busy, stored, is_stored}}}. With null for `since`, from the stored statistics on; without
-- those, and in any case, at most 14 days.
--   runs     [arrived, started, ended, worker] of each attempt that ended after `since`, the newest ones at most; if
--            there were more, `since` is the first of these ends
--   opened   arrivals after `since` of tasks that are ready or running; open: the number of these tasks
--   waiting  the arrivals of the oldest ready tasks, the oldest first
--   busy     {worker: when it claimed its oldest running task}
--   reviewed the rule that the last review names, if it is not too old
--   stored   the statistics as they were stored, if `since` was null; is_stored: whether there were any
create or replace function public.fleet_scaling_facts(p_fleet text, p_pools jsonb, p_now timestamptz default null)
returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    c_pools constant int := 100;
begin
    return jsonb_build_object('now', extract(epoch from v_now), 'pools', coalesce((
        select jsonb_object_agg(p.key, orchestrator.scaling_facts(p_fleet, p.key, p.value::text::numeric, v_now))
          from (select e.key, nullif(e.value, 'null') as value from jsonb_each(p_pools) e
                 order by e.key limit c_pools) p), '{}'));
end
$$;

-- The facts of one pool; see fleet_scaling_facts().
create or replace function orchestrator.scaling_facts(p_fleet text, p_pool text, p_since numeric, p_now timestamptz)
returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
#variable_conflict use_variable
declare
    c_days constant interval := '14 days';
    c_valid constant interval := '2 days';  -- of a review, which is made once a day
    c_ahead constant interval := '1 minute';  -- so far may a clock have gone back
    v_stored orchestrator.scaling_statistics;
    v_since timestamptz := to_timestamp(p_since::float8);
    v_most int;
    v_runs jsonb;
    v_count int;
    v_first timestamptz;
begin
    if p_since is null then
        select s.* into v_stored from orchestrator.scaling_statistics s where s.fleet = p_fleet and s.pool = p_pool;
        v_since := v_stored.until;
    end if;
    v_since := least(greatest(v_since, p_now - c_days), p_now);
    v_most := case when v_since > p_now - interval '1 hour' then 5000 else 10000 end;
    select count(*), min(r.ended_at), coalesce(jsonb_agg(jsonb_build_array(
               extract(epoch from r.arrived_at), extract(epoch from r.started_at), extract(epoch from r.ended_at),
               r.worker_id) order by r.ended_at, r.task_id, r.attempt), '[]')
      into v_count, v_first, v_runs
      from orchestrator.task_runs(p_fleet, p_pool, v_since, p_now, v_most) r;
    if v_count = v_most then
        v_since := v_first;
    end if;
    return jsonb_build_object('since', extract(epoch from v_since), 'runs', v_runs, 'stored', v_stored.statistics,
                              'is_stored', v_stored.fleet is not null, 'reviewed', (
                                  select r.review->>'tomorrow' from orchestrator.scaling_reviews r
                                   where r.fleet = p_fleet and r.pool = p_pool and r.at > p_now - c_valid
                                     and r.at <= p_now + c_ahead))
           || orchestrator.open_facts(p_fleet, p_pool, v_since, p_now);
end
$$;

-- What is open in a pool: `opened`, `open`, `waiting` and `busy` of fleet_scaling_facts(). A task whose time has come
-- is ready. Of more than 10,000 ready tasks, the newest count.
create or replace function orchestrator.open_facts(p_fleet text, p_pool text, p_since timestamptz, p_now timestamptz)
returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
declare
    c_ready constant int := 10000;
    c_waiting constant int := 100;
begin
    return (
        with ready as materialized (
            (select q.task_id, q.created_at, q.run_after, q.attempt, q.has_needs from orchestrator.live q
              where q.pool = p_pool and q.state = 'ready' order by q.pool desc, q.created_at desc limit c_ready)
            union all
            (select q.task_id, q.created_at, q.run_after, q.attempt, q.has_needs from orchestrator.live q
              where q.pool = p_pool and q.state = 'waits_for_time' and q.run_after <= p_now
              order by q.pool desc, q.run_after desc limit c_ready)
        ), running as materialized (
            select q.task_id, q.created_at, q.run_after, q.attempt - 1 as attempt, q.has_needs, q.worker_id,
                   coalesce(q.claimed_at, p_now) as claimed_at
              from (select w.id from public.workers w
                     where w.fleet = p_fleet and w.status <> 'terminated' and w.pool = p_pool) w
             cross join lateral (select l.* from orchestrator.live l
                                  where l.worker_id = w.id and l.state = 'running' offset 0) q
        ), recent as (
            select r.* from (
                select k.task_id, k.created_at, k.run_after, k.attempt, k.has_needs, p_now as before from ready k
                union all
                select k.task_id, k.created_at, k.run_after, k.attempt, k.has_needs, k.claimed_at from running k) r
             where r.created_at > p_since or r.run_after > p_since or r.has_needs or r.attempt > 0
        ), opened as (
            select a.at from recent r
             cross join lateral orchestrator.open_arrival(
                   r.task_id, r.created_at, r.run_after, r.attempt, r.has_needs, r.before) a (at)
        ), waiting as (
            select a.at
              from ((select l.* from orchestrator.live l where l.pool = p_pool and l.state = 'ready'
                      order by l.pool, l.created_at limit c_waiting)
                    union all
                    (select l.* from orchestrator.live l
                      where l.pool = p_pool and l.state = 'waits_for_time' and l.run_after <= p_now
                      order by l.pool, l.run_after limit c_waiting)) q
             cross join lateral orchestrator.open_arrival(
                   q.task_id, q.created_at, q.run_after, q.attempt, q.has_needs, p_now) a (at)
             order by a.at limit c_waiting
        )
        select jsonb_build_object(
            'open', (select count(*) from ready) + (select count(*) from running),
            'opened', coalesce((select jsonb_agg(extract(epoch from o.at) order by o.at)
                                  from opened o where o.at > p_since), '[]'),
            'waiting', coalesce((select jsonb_agg(extract(epoch from w.at) order by w.at) from waiting w), '[]'),
            'busy', coalesce((select jsonb_object_agg(b.worker_id, extract(epoch from b.at))
                                from (select r.worker_id, min(r.claimed_at) as at from running r
                                       group by r.worker_id) b), '{}')));
end
$$;

-- From when a worker could run an open task, at the latest p_before. `p_attempt`: its last attempt that has ended;
-- 0 for none. A run_after later than p_before is one of a later attempt. A part of the query, as previous_end().
create or replace function orchestrator.open_arrival(
    p_task_id uuid, p_created_at timestamptz, p_run_after timestamptz, p_attempt int, p_has_needs boolean,
    p_before timestamptz
) returns setof timestamptz
language sql stable as $$
    select least(open_arrival.p_before, orchestrator.arrival(
               open_arrival.p_created_at,
               case when open_arrival.p_run_after <= open_arrival.p_before then open_arrival.p_run_after end,
               p.ended_at, n.ended_at))
      from (values (1)) o (one)
      left join lateral orchestrator.previous_end(open_arrival.p_task_id, open_arrival.p_attempt + 1) p (ended_at)
        on open_arrival.p_attempt > 0
      left join lateral (
           select max(l.ended_at) as ended_at from orchestrator.edges e
            cross join lateral (select b.ended_at from orchestrator.attempts b where b.task_id = e.needs
                                 order by b.attempt desc limit 1) l
            where open_arrival.p_has_needs and e.task_id = open_arrival.p_task_id) n on p.ended_at is null
$$;

-- Keeps the statistics of pools, [{pool, statistics, until}], until the next ones are kept.
create or replace function public.fleet_learn(p_fleet text, p_term bigint, p_rows jsonb, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_learn');
    insert into orchestrator.scaling_statistics as s (fleet, pool, statistics, until)
    select p_fleet, r->>'pool', r->'statistics', to_timestamp((r->>'until')::float8)
      from jsonb_array_elements(p_rows) r
    on conflict (fleet, pool) do update set statistics = excluded.statistics, until = excluded.until;
    return jsonb_build_object('stored', jsonb_array_length(p_rows));
end
$$;
