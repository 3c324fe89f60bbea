-- Of a worker that has done many tasks the first and the last events are read, and what lies between was taken for one stretch
-- of one state. Now it is told how many rows were left out and where, and the seconds in each state count all events.
--
-- What an attempt cost was reckoned twice: a task's explanation knew neither of the tasks of the same claim, which share its
-- time, nor of the end of the bill. Now internal_shares is the one place; for a single task internal_turns reads its claims.
create or replace function public.fleet_worker(p_fleet text, p_worker_id text, p_now timestamptz default null) returns jsonb
language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers;
    c_first constant int := 200;  -- its bring-up …
    c_last constant int := 800;  -- … and what it came to
    c_tasks constant int := 1000;  -- the newest
begin
    select * into v_worker from public.workers w where w.id = p_worker_id and w.fleet = p_fleet;
    if not found then
        return jsonb_build_object('now', v_now, 'worker', null, 'events', '[]'::jsonb, 'attempts', '[]'::jsonb,
                                  'tasks', '[]'::jsonb, 'left_out', '{}'::jsonb, 'states', '{}'::jsonb);
    end if;
    return jsonb_build_object(
        'now', v_now,
        'worker', public.internal_worker_report(v_worker, v_now),
        'events', coalesce((
            select jsonb_agg(to_jsonb(e) order by e.id) from (
                (select * from public.worker_events b where b.worker_id = p_worker_id order by b.id limit c_first)
                union
                (select * from public.worker_events b where b.worker_id = p_worker_id order by b.id desc limit c_last)) e),
            '[]'),
        'attempts', coalesce((
            select jsonb_agg(to_jsonb(a) order by a.id) from (
                (select * from public.worker_attempts b where b.worker_id = p_worker_id order by b.id limit c_first)
                union
                (select * from public.worker_attempts b where b.worker_id = p_worker_id order by b.id desc limit c_last)) a),
            '[]'),
        'tasks', coalesce((select jsonb_agg(to_jsonb(a) order by a.started_at, a.task_id)
                             from (select * from public.task_attempts a where a.worker_id = p_worker_id
                                    order by a.started_at desc limit c_tasks) a), '[]'),
        'left_out', jsonb_build_object(
            'events', jsonb_build_object('at', c_first, 'count', (
                select greatest(count(*) - c_first - c_last, 0) from public.worker_events e where e.worker_id = p_worker_id)),
            'attempts', jsonb_build_object('at', c_first, 'count', (
                select greatest(count(*) - c_first - c_last, 0) from public.worker_attempts a where a.worker_id = p_worker_id)),
            'tasks', jsonb_build_object('at', 0, 'count', (
                select greatest(count(*) - c_tasks, 0) from public.task_attempts a where a.worker_id = p_worker_id))),
        'states', coalesce((
            select jsonb_object_agg(s.state, s.seconds)
              from (select m.state, sum(extract(epoch from coalesce(m.to_at, v_now) - m.at)) as seconds
                      from (select e.to_state as state, e.at, lead(e.at) over (order by e.id) as to_at
                              from public.worker_events e
                             where e.worker_id = p_worker_id and e.from_state is distinct from e.to_state) m
                     where m.state <> 'terminated' group by m.state) s), '{}'));
end
$$;

drop function public.internal_turns(timestamptz, timestamptz);

-- The attempts that ended after p_since, or are open, or those of the claims of one task: from when to when, and among how many
-- (`of`) that time is shared; an open one lasts until p_now. Planned anew each time: what is the best way depends on how long
-- ago p_since was.
create function public.internal_turns(p_since timestamptz, p_now timestamptz, p_task_id uuid default null)
returns table (worker_id text, task_id uuid, attempt int, outcome text, from_at timestamptz, to_at timestamptz, of bigint)
language plpgsql stable security definer set search_path = '' set plan_cache_mode = 'force_custom_plan' as $$
#variable_conflict use_column
begin
    return query
    with reaching as (
        select a.* from public.task_attempts a
         where p_task_id is null and (a.started_at > p_since or a.ended_at > p_since)
        union all
        select a.* from public.tasks t
         cross join lateral (select b.* from public.task_attempts b
                              where b.task_id = t.id and b.attempt = t.attempts limit 1) a  -- by its key: these are few
         where p_task_id is null and t.status = 'In Progress' and a.started_at <= p_since and a.ended_at is null
        union all
        select a.* from (select distinct b.worker_id, b.nonce, b.claim_no
                           from public.task_attempts b where b.task_id = p_task_id) c
          join public.task_attempts a on a.worker_id = c.worker_id and a.nonce = c.nonce and a.claim_no = c.claim_no
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

-- What each attempt's time between p_since and p_until cost: its share of its claim, until the bill of its worker ended.
create function public.internal_shares(p_since timestamptz, p_until timestamptz, p_now timestamptz, p_task_id uuid default null)
returns table (fleet text, task_id uuid, attempt int, outcome text, seconds numeric, usd numeric)
language sql stable security definer set search_path = '' as $$
    select w.fleet, a.task_id, a.attempt, a.outcome, x.seconds, coalesce(w.price_usd_per_hour, 0) * x.seconds / 3600
      from public.internal_turns(p_since, p_now, p_task_id) a
      join public.workers w on w.id = a.worker_id
      cross join lateral (
          select extract(epoch from least(a.to_at, w.billing_until, p_until) - greatest(a.from_at, p_since)) / a.of) x (seconds)
     where w.billing_since is not null and w.created_at < p_until and coalesce(w.terminated_at > p_since, true)
       and x.seconds > 0
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
            select s.task_id, t.task_type, s.outcome, s.seconds, s.usd
              from public.internal_shares(p_since, v_until, v_now) s join public.tasks t on t.id = s.task_id
             where s.fleet = p_fleet
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

create or replace function public.fleet_task_explain(p_fleet text, p_task_id uuid, p_now timestamptz default null)
returns jsonb language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_task public.tasks;
begin
    select * into v_task from public.tasks t where t.id = p_task_id;
    return (select jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'paused', public.internal_pauses(p_fleet, v_now),
        'task', case when v_task.id is not null then to_jsonb(v_task) end,
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
                       'id', n.id, 'task_type', d.task_type, 'status', d.status, 'worker_id', d.worker_id,
                       'run_after', d.run_after, 'failure_code', d.failure_code, 'error_message', d.error_message)
                       order by n.place)
              from unnest(v_task.depends_on) with ordinality n (id, place)
              left join public.tasks d on d.id = n.id), '[]'),
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

do $$
declare
    v_role name;
    v_function text;
begin
    foreach v_function in array array['internal_turns(timestamptz, timestamptz, uuid)',
                                      'internal_shares(timestamptz, timestamptz, timestamptz, uuid)'] loop
        execute format('revoke all on function public.%s from public', v_function);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function public.%s from %I', v_function, v_role);
        end loop;
    end loop;
end
$$;
