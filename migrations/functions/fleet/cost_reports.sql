-- What tasks and workers cost between two moments.

-- Returns dollars between two moments: of workers for the time within them, of tasks for the attempts that ended then
-- or are open. The answer says where the window begins (see orchestrator.usage_since). Long ago, tasks are the most
-- expensive ones of each hour.
create or replace function public.fleet_cost(
    p_fleet text, p_since timestamptz, p_until timestamptz, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_until timestamptz := least(coalesce(p_until, v_now), v_now);
    v_since timestamptz := orchestrator.usage_since(p_since, v_now);
    c_rows constant int := 1000;  -- tasks that are listed, and ten times as many workers; the sums count all
begin
    perform public.internal_check_window(p_since, v_until);
    return (
        with workers as materialized (
            select k.worker_id, sum(k.seconds) as seconds, sum(k.usd) as usd,
                   jsonb_object_agg(k.kind, jsonb_build_object('seconds', round(k.seconds, 3),
                                                               'usd', round(k.usd, 6))) as kinds
              from public.internal_booked(p_fleet, v_since, v_until, v_now) k
             group by k.worker_id order by sum(k.usd) desc, k.worker_id limit 10 * c_rows
        ), kinds as materialized (
            select * from orchestrator.usage_between(p_fleet, v_since, v_until, v_now, 'kind')
        )
        select jsonb_build_object(
            'now', v_now, 'since', v_since, 'until', v_until,
            'usd', (select coalesce(round(sum(k.usd), 6), 0) from kinds k),
            'bought', orchestrator.bought(p_fleet, v_since, v_until),
            'kinds', coalesce((
                select jsonb_object_agg(k.name, jsonb_build_object('seconds', round(k.seconds, 3),
                                                                   'usd', round(k.usd, 6))) from kinds k), '{}'),
            'workers', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'id', w.id, 'pool', w.pool, 'cluster', w.cluster, 'gpu_type', w.gpu_type,
                           'gpu_count', w.gpu_count, 'pod_id', w.pod_id, 'status', w.status,
                           'price_usd_per_hour', w.price_usd_per_hour, 'seconds', round(k.seconds, 3),
                           'usd', round(k.usd, 6), 'kinds', k.kinds)
                           order by k.usd desc, w.id)
                  from workers k join public.workers w on w.id = k.worker_id), '[]'),
            'types', public.internal_usage_lines(p_fleet, v_since, v_until, v_now, 'type', 'task_type', c_rows),
            'tasks', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'id', u.name, 'task_type', t.task_type, 'attempts', u.attempts,
                           'seconds', round(u.seconds, 3), 'usd', round(u.usd, 6),
                           'wasted_usd', round(u.wasted_usd, 6)) order by u.usd desc, u.name)
                  from (select * from orchestrator.usage_between(p_fleet, v_since, v_until, v_now, 'task') b
                         where b.attempts > 0 order by b.usd desc, b.name limit c_rows) u
                 cross join lateral (select * from public.tasks k where k.id = u.name::uuid offset 0) t), '[]')));
end
$$;

-- What idle and booting time bought in a window of about a week at most: how often an idle worker got a task, how many
-- workers came up, and how many did not. Null for a longer window, whose rows are too many.
create or replace function orchestrator.bought(p_fleet text, p_since timestamptz, p_until timestamptz) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = on set jit = off set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
declare
    c_longest constant interval := '8 days';
begin
    if p_until - p_since > c_longest then
        return null;
    end if;
    return (
        select jsonb_build_object(
                   'warm_starts', count(*) filter (where e.from_state = 'idle' and e.to_state = 'active'),
                   'workers', count(*) filter (where e.from_state = 'spawning' and e.to_state = 'active'),
                   'failed_workers', count(*) filter (where e.from_state = 'spawning' and e.to_state = 'terminating'))
          from public.worker_events e where e.fleet = p_fleet and e.at > p_since and e.at <= p_until);
end
$$;

-- The lines of one dimension in a window, the most expensive first; their names are under p_key.
create or replace function public.internal_usage_lines(
    p_fleet text, p_since timestamptz, p_until timestamptz, p_now timestamptz, p_dimension text, p_key text, p_most int
) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(jsonb_build_object(
               internal_usage_lines.p_key, u.name, 'tasks', u.tasks, 'attempts', u.attempts,
               'seconds', round(u.seconds, 3), 'usd', round(u.usd, 6), 'wasted_usd', round(u.wasted_usd, 6))
               order by u.usd desc, u.name), '[]')
      from (select * from orchestrator.usage_between(
                internal_usage_lines.p_fleet, internal_usage_lines.p_since, internal_usage_lines.p_until,
                internal_usage_lines.p_now, internal_usage_lines.p_dimension) b
             where b.seconds > 0 order by b.usd desc, b.name limit internal_usage_lines.p_most) u
$$;

-- Dollars of tasks between two moments, by tenant or by the value of one label; p_by is 'tenant' or 'label:KEY'. The
-- name of tasks without it is NULL. The p_limit most expensive lines, with the number of all: {now, since, until,
-- lines, of}.
create or replace function public.fleet_cost_by(
    p_fleet text, p_since timestamptz, p_until timestamptz, p_by text, p_limit int, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_until timestamptz := least(coalesce(p_until, v_now), v_now);
    v_since timestamptz := orchestrator.usage_since(p_since, v_now);
begin
    perform public.internal_check_window(p_since, v_until);
    if (p_by = 'tenant' or p_by like 'label:_%') is not true then
        perform public.internal_refuse('OR007', 'p_by is not valid', format('got %L', left(p_by, 100)),
                                       'tenant, or label:KEY');
    end if;
    return (
        with named as (
            select u.name, u.tasks, u.attempts, u.seconds, u.usd, u.wasted_usd
              from orchestrator.usage_between(p_fleet, v_since, v_until, v_now, p_by) u
        ), every as (
            select sum(u.tasks) as tasks, sum(u.attempts) as attempts, sum(u.seconds) as seconds, sum(u.usd) as usd,
                   sum(u.wasted_usd) as wasted_usd
              from orchestrator.usage_between(p_fleet, v_since, v_until, v_now, 'type') u
        ), lines as (
            select * from named n where n.attempts > 0
            union all
            select null, e.tasks - s.tasks, e.attempts - s.attempts, e.seconds - s.seconds, e.usd - s.usd,
                   e.wasted_usd - s.wasted_usd
              from every e
             cross join (select coalesce(sum(n.tasks), 0) as tasks, coalesce(sum(n.attempts), 0) as attempts,
                                coalesce(sum(n.seconds), 0) as seconds, coalesce(sum(n.usd), 0) as usd,
                                coalesce(sum(n.wasted_usd), 0) as wasted_usd from named n) s
             where e.attempts > s.attempts
        )
        select jsonb_build_object(
            'now', v_now, 'since', v_since, 'until', v_until,
            'lines', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'name', l.name, 'tasks', l.tasks, 'attempts', l.attempts, 'seconds', round(l.seconds, 3),
                           'usd', round(l.usd, 6), 'wasted_usd', round(l.wasted_usd, 6)) order by l.usd desc, l.name)
                  from (select * from lines l order by l.usd desc, l.name
                         limit least(greatest(coalesce(p_limit, 1000), 0), 10000)) l), '[]'),
            'of', (select count(*) from lines)));
end
$$;

-- Records a comparison of our records with the provider's bill, for two days: {since, until, ours_usd, theirs_usd, …}.
-- With `error`, it records that the bill could not be read, since when, and why, beside the last comparison.
create or replace function public.fleet_note_bill(
    p_fleet text, p_term bigint, p_bill jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_last jsonb;
    c_most constant int := 10000;  -- characters
    c_most_of_error constant int := 300;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_note_bill');
    if jsonb_typeof(p_bill) is distinct from 'object' or length(p_bill::text) > c_most then
        perform public.internal_refuse('OR007', format('p_bill must be an object of at most %s characters', c_most));
    end if;
    select s.value into v_last from public.fleet_settings s
     where s.fleet = p_fleet and s.name = 'bill' and s.expires_at > v_now;
    insert into public.fleet_settings (fleet, name, value, reason, set_at, expires_at)
    values (p_fleet, 'bill',
            case when p_bill ? 'error' then
                coalesce(v_last, '{}') || jsonb_build_object(
                    'error', left(p_bill ->> 'error', c_most_of_error), 'failed_at', v_now,
                    'failing_since', coalesce(v_last -> 'failing_since', to_jsonb(v_now)))
            else p_bill || jsonb_build_object('at', v_now) end,
            '', v_now, v_now + interval '2 days')
    on conflict (fleet, name) do update
       set value = excluded.value, set_at = excluded.set_at, expires_at = excluded.expires_at;
    return '{"outcome": "ok"}';
end
$$;

-- The last recorded comparison, with `at`, when that was; null if there is none. Each pod without a cost in our records
-- has the worker that has its id, of any fleet of this database: {pod_id, usd, worker_id, fleet, terminated_at}.
create or replace function public.fleet_bill(p_fleet text, p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object('bill', (
        select s.value || jsonb_build_object('unbooked', coalesce((
                   select jsonb_agg(p.pod || jsonb_build_object(
                              'worker_id', w.id, 'fleet', w.fleet, 'terminated_at', w.terminated_at) order by p.place)
                     from jsonb_array_elements(s.value -> 'unbooked') with ordinality p (pod, place)
                     left join lateral (
                         select k.id, k.fleet, k.terminated_at from public.workers k
                          where k.pod_id collate "C" = p.pod ->> 'pod_id'
                          order by k.fleet = fleet_bill.p_fleet desc, k.created_at desc limit 1) w on true), '[]'))
          from public.fleet_settings s
         where s.fleet = fleet_bill.p_fleet and s.name = 'bill'
           and s.expires_at > public.internal_clock(fleet_bill.p_now)))
$$;
