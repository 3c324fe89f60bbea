-- The history of pools and workers for charts, and roll-ups by hour or day.

-- What the leader recorded since p_since in steps of p_step_s seconds (null: a 360th of the time, in full minutes; at
-- least that) of one pool, or of each (p_pool null): {now, since, step_s, pools: {pool: [{at, …}]}}, the oldest first.
-- A step has the means of ready, waiting, running, spawning, active, idle, ending and usd_per_hour, the most of ready
-- (ready_most), and the sums of completed and failed attempts. Steps without a record, when no leader was there, are
-- absent.
create or replace function public.fleet_history(
    p_fleet text, p_since timestamptz, p_step_s int, p_pool text, p_now timestamptz default null
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off
set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_points constant int := 360;
    c_pools constant int := 50;
    v_since timestamptz := greatest(coalesce(p_since, v_now - interval '1 hour'), v_now - interval '366 days');
    v_least_s int := 60 * greatest(1, ceil(extract(epoch from v_now - v_since) / 60 / c_points));
    v_step_s int := greatest(v_least_s, p_step_s);
begin
    perform public.internal_check_window(v_since, v_now);
    return (
        with recursive every (pool) as (  -- from one to the next in the index
            (select m.pool from orchestrator.pool_minutes m where m.fleet = p_fleet order by m.pool limit 1)
            union all
            select (select m.pool from orchestrator.pool_minutes m
                     where m.fleet = p_fleet and m.pool > e.pool order by m.pool limit 1)
              from every e where e.pool is not null
        ), pools as (
            select p_pool as pool where p_pool is not null
            union all
            (select e.pool from every e where p_pool is null and e.pool is not null limit c_pools)
        ), steps as (
            select p.pool, s.at, round(avg(m.ready), 1) as ready, max(m.ready) as ready_most,
                   round(avg(m.waiting), 1) as waiting, round(avg(m.running), 1) as running,
                   round(avg(m.spawning), 1) as spawning, round(avg(m.active), 1) as active,
                   round(avg(m.idle), 1) as idle, round(avg(m.ending), 1) as ending,
                   round(avg(m.usd_per_hour), 4) as usd_per_hour, sum(m.completed) as completed,
                   sum(m.failed) as failed
              from pools p
             cross join lateral (select * from orchestrator.pool_minutes k
                                  where k.fleet = p_fleet and k.pool = p.pool and k.at > v_since and k.at <= v_now) m
             cross join lateral (select to_timestamp(
                   floor(extract(epoch from m.at) / v_step_s) * v_step_s) as at) s
             group by p.pool, s.at
        )
        select jsonb_build_object('now', v_now, 'since', v_since, 'step_s', v_step_s, 'pools', coalesce((
            select jsonb_object_agg(l.pool, l.points)
              from (select s.pool, jsonb_agg(to_jsonb(s.*) - 'pool' order by s.at) as points
                      from steps s group by s.pool) l), '{}')));
end
$$;

-- What one worker reported in each minute, the newest 1,440 (a day), the oldest first: {now, points: [{at, status,
-- running, gpu_percent, gpu_used_mb, gpu_total_mb}]}. A reading is null if the agent does not send it.
create or replace function public.fleet_worker_history(p_fleet text, p_worker_id text, p_now timestamptz default null)
returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_points constant int := 1440;
begin
    return jsonb_build_object('now', v_now, 'points', coalesce((
        select jsonb_agg(to_jsonb(m.*) - 'worker_id' order by m.at)
          from (select k.* from orchestrator.worker_minutes k
                 where k.worker_id = p_worker_id and exists (
                       select from public.workers w where w.id = p_worker_id and w.fleet = p_fleet)
                 order by k.at desc limit c_points) m), '[]'));
end
$$;

-- What was done and spent in each hour or day (p_span, UTC) of a window, by one dimension: fleet, queue (the tasks of
-- a pool), type, tenant or label:KEY of tasks; kind, pool or gpu of workers. {until, points: [{at, name, tasks,
-- attempts, completed, failed, seconds, usd, wasted_usd}]}, the oldest first, of each step the 50 most expensive
-- names; at most 168 hours or 400 days. `until`: what ended later is not stored yet.
create or replace function public.fleet_usage(
    p_fleet text, p_dimension text, p_span text, p_since timestamptz, p_until timestamptz,
    p_now timestamptz default null
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off
set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_names constant int := 50;
    v_until timestamptz := least(coalesce(p_until, v_now), v_now);
    v_since timestamptz := greatest(p_since, v_until - case p_span when 'day' then interval '400 days'
                                                                   else interval '168 hours' end);
begin
    perform public.internal_check_window(v_since, v_until);
    if (p_span in ('hour', 'day')) is not true then
        perform public.internal_refuse('OR007', 'p_span is not valid', format('got %L', left(p_span, 100)),
                                       'hour or day');
    end if;
    return jsonb_build_object('until', orchestrator.usage_until(p_fleet), 'points', coalesce((
        select jsonb_agg(to_jsonb(n.*) - 'place' order by n.at, n.usd desc, n.name)
          from (select date_trunc(p_span, u.at, 'UTC') as at, u.name, sum(u.tasks) as tasks,
                       sum(u.attempts) as attempts, sum(u.completed) as completed, sum(u.failed) as failed,
                       round(sum(u.seconds), 3) as seconds,
                       round(sum(u.usd), 6) as usd, round(sum(u.wasted_usd), 6) as wasted_usd,
                       row_number() over (partition by date_trunc(p_span, u.at, 'UTC')
                                          order by sum(u.usd) desc, u.name) as place
                  from orchestrator.usage u
                 where u.fleet = p_fleet and u.dimension = p_dimension
                   and u.span = case p_span when 'day' then 'day' else 'part' end
                   and u.at >= date_trunc(p_span, v_since, 'UTC') and u.at < v_until
                 group by 1, 2) n
         where n.place <= c_names), '[]'));
end
$$;
