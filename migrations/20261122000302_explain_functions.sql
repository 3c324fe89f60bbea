-- fleet_*: what `explain` asks. Each is one statement, so that an explanation never mixes two moments.

-- Seconds from intent to promotion of the newest thousand climbs; null: of every GPU type.
create function public.fleet_usual(p_fleet text, p_gpu_type text, p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = '' as $$
    with climbs as (
        select extract(epoch from e.at - w.created_at) as seconds
          from public.workers w
          cross join lateral (select e.at from public.worker_events e
                               where e.worker_id = w.id and e.from_state = 'spawning' and e.to_state = 'active'
                               order by e.id limit 1) e
         where w.fleet = p_fleet and (p_gpu_type is null or w.gpu_type = p_gpu_type)
         order by w.created_at desc limit 1000
    )
    select jsonb_build_object(
        'gpu_type', p_gpu_type, 'n', count(*),
        'p50_s', round(percentile_cont(0.5) within group (order by c.seconds)::numeric, 3),
        'p95_s', round(percentile_cont(0.95) within group (order by c.seconds)::numeric, 3)) from climbs c
$$;

create function public.internal_leader(p_fleet text, p_now timestamptz) returns jsonb
language sql stable security definer set search_path = '' as $$
    select jsonb_build_object('holder', l.holder, 'since', l.since, 'term', l.term)
      from public.fleet_lease l where l.fleet = p_fleet and l.expires_at > p_now
$$;

create function public.internal_paused(p_fleet text, p_now timestamptz) returns text
language sql stable security definer set search_path = '' as $$
    select s.reason from public.fleet_settings s
     where s.fleet = p_fleet and s.name = 'paused' and coalesce(s.expires_at > p_now, true)
$$;

create function public.internal_pool_decision(p_fleet text, p_pool text) returns jsonb
language sql stable security definer set search_path = '' as $$
    select to_jsonb(d) from public.decisions d
     where d.fleet = p_fleet and d.pool = p_pool order by d.id desc limit 1
$$;

-- Everything about one worker; the newest 200 of its events and bring-up attempts, oldest first.
create function public.fleet_explain(p_fleet text, p_worker_id text, p_now timestamptz default null) returns jsonb
language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers;
begin
    select * into v_worker from public.workers w where w.id = p_worker_id and w.fleet = p_fleet;
    return (select jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'paused', public.internal_paused(p_fleet, v_now),
        'worker', case when v_worker.id is not null then public.internal_worker_report(v_worker, v_now) end,
        'usual', public.fleet_usual(p_fleet, v_worker.gpu_type, v_now),
        'queued', (select count(*) from public.tasks t
                    where t.pool = v_worker.pool and t.status = 'Queued' and not t.blocked
                      and coalesce(t.run_after <= v_now, true)),
        'running', coalesce((
            select jsonb_agg(jsonb_build_object(
                       'id', t.id, 'task_type', t.task_type, 'attempt', t.attempts, 'max_attempts', t.max_attempts,
                       'started_at', t.generation_started_at, 'progress', t.progress, 'progress_at', t.progress_at,
                       'lease_expires_at', t.lease_expires_at) order by t.generation_started_at, t.id)
              from public.tasks t where t.worker_id = p_worker_id and t.status = 'In Progress'), '[]'),
        'events', coalesce((
            select jsonb_agg(to_jsonb(e) order by e.id)
              from (select * from public.worker_events e where e.worker_id = v_worker.id
                     order by e.id desc limit 200) e), '[]'),
        'attempts', coalesce((
            select jsonb_agg(to_jsonb(a) order by a.id)
              from (select * from public.worker_attempts a where a.worker_id = v_worker.id
                     order by a.id desc limit 200) a), '[]')));
end
$$;

-- One task: what it waits for, who is before it, what its pool's workers do, and each of its attempts.
create function public.fleet_task_explain(p_fleet text, p_task_id uuid, p_now timestamptz default null) returns jsonb
language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_task public.tasks;
begin
    select * into v_task from public.tasks t where t.id = p_task_id;
    return (select jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'paused', public.internal_paused(p_fleet, v_now),
        'task', case when v_task.id is not null then to_jsonb(v_task) end,
        'decision', public.internal_pool_decision(p_fleet, v_task.pool),
        'ahead', (select count(*) from public.tasks t
                   where t.pool = v_task.pool and t.status = 'Queued' and not t.blocked
                     and coalesce(t.run_after <= v_now, true)
                     and (-t.priority, t.created_at, t.id) < (-v_task.priority, v_task.created_at, v_task.id)),
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
                       'worker_exit_cause', w.exit_cause, 'worker_failure_code', w.failure_code) order by a.attempt)
              from public.task_attempts a left join public.workers w on w.id = a.worker_id
             where a.task_id = p_task_id), '[]')));
end
$$;

-- What every pool's size rests on: the last decision of each, the offers, the workers, who leads.
create function public.fleet_scaling_explain(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    return (select jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'paused', public.internal_paused(p_fleet, v_now),
        'offers', coalesce((select jsonb_agg(to_jsonb(o) - 'fleet' order by o.key)
                              from public.offers o where o.fleet = p_fleet), '[]'),
        'decisions', coalesce((
            select jsonb_object_agg(p.pool, public.internal_pool_decision(p_fleet, p.pool))
              from (select distinct d.pool from public.decisions d where d.fleet = p_fleet) p), '{}'),
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
