-- fleet_*: what the orchestrator and an operator read. Each is one statement: no torn reads.

create function public.fleet_snapshot(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    return (
        with running as (
            select t.worker_id, t.pool, count(*) as n from public.tasks t
             where t.status = 'In Progress' group by t.worker_id, t.pool
        ), queued as (
            select t.pool,
                   count(*) as total,
                   count(*) filter (where t.blocked) as dependencies,
                   count(*) filter (where not t.blocked and t.run_after > v_now) as scheduled,
                   count(*) filter (where not t.blocked and coalesce(t.run_after <= v_now, true)) as claimable,
                   min(t.created_at) filter (where not t.blocked and coalesce(t.run_after <= v_now, true)) as oldest
              from public.tasks t where t.status = 'Queued' group by t.pool
        ), demand as (
            select p.pool, coalesce(q.claimable, 0) as claimable, coalesce(r.n, 0) as running,
                   coalesce(q.dependencies, 0) as dependencies, coalesce(q.scheduled, 0) as scheduled, q.oldest
              from (select pool from queued union select pool from running) p
              left join queued q on q.pool = p.pool
              left join (select pool, sum(n) as n from running group by pool) r on r.pool = p.pool
        )
        select jsonb_build_object(
            'now', v_now,
            'workers', coalesce((
                select jsonb_agg(to_jsonb(w) || jsonb_build_object('tasks_running', coalesce((
                           select sum(r.n) from running r where r.worker_id = w.id), 0)) order by w.id)
                  from public.workers w where w.fleet = p_fleet and w.status <> 'terminated'), '[]'),
            'demand', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'pool', d.pool, 'claimable', d.claimable, 'running', d.running,
                           'blocked', jsonb_build_object('dependencies', d.dependencies, 'scheduled', d.scheduled),
                           'oldest_claimable_at', d.oldest) order by d.pool) from demand d), '[]'),
            'expired_leases', (
                select count(*) from public.tasks t
                 where t.status = 'In Progress'
                   and public.internal_is_abandoned(t.worker_id, t.lease_expires_at, v_now)),
            'offers', coalesce((
                select jsonb_agg(to_jsonb(o) - 'fleet' order by o.key) from public.offers o
                 where o.fleet = p_fleet), '[]'),
            'last_spawn_at', coalesce((
                select jsonb_object_agg(s.pool, s.at) from (
                    select w.pool, max(w.created_at) as at from public.workers w
                     where w.fleet = p_fleet and w.stage is not null group by w.pool) s), '{}'),
            'paused', (select s.reason from public.fleet_settings s
                        where s.fleet = p_fleet and s.name = 'paused' and coalesce(s.expires_at > v_now, true)),
            'queued_total', (select coalesce(sum(q.total), 0) from queued q))
    );
end
$$;

create function public.internal_worker_costs(p_worker public.workers, p_now timestamptz) returns jsonb
language sql stable security definer set search_path = '' as $$
    with spent (kind, usd) as (
        select c.kind, c.usd from public.costs c where c.worker_id = p_worker.id
        union all  -- the interval that is still open
        select case p_worker.status when 'spawning' then 'booting' when 'active' then 'busy' when 'idle' then 'idle'
                                    else 'draining' end,
               coalesce(p_worker.price_usd_per_hour, 0)
                   * greatest(extract(epoch from p_now - greatest(p_worker.state_since, p_worker.billing_since)), 0) / 3600
         where p_worker.status <> 'terminated' and p_worker.billing_since is not null
    ), by_kind as (select kind, sum(usd) as usd from spent group by kind)
    select jsonb_build_object(
        'cost_usd', coalesce((select round(sum(k.usd), 6) from by_kind k), 0),
        'cost_by_kind', coalesce((select jsonb_object_agg(k.kind, round(k.usd, 6)) from by_kind k), '{}'))
$$;

create function public.internal_worker_report(p_worker public.workers, p_now timestamptz) returns jsonb
language sql stable security definer set search_path = '' as $$
    select public.internal_worker_json(p_worker) || public.internal_worker_costs(p_worker, p_now) || (
        select jsonb_build_object('tasks_done', count(*) filter (where a.outcome = 'complete'),
                                  'tasks_failed', count(*) filter (where a.outcome in ('failed', 'lost')))
          from public.task_attempts a where a.worker_id = p_worker.id)
$$;

create function public.fleet_workers(p_fleet text, p_all boolean, p_limit int, p_now timestamptz default null)
returns jsonb language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    return jsonb_build_object('now', v_now, 'workers', coalesce((
        select jsonb_agg(public.internal_worker_report(w, v_now) order by w.created_at desc, w.id)
          from (select * from public.workers w
                 where w.fleet = p_fleet and (coalesce(p_all, false) or w.status <> 'terminated')
                 order by w.created_at desc, w.id limit least(greatest(coalesce(p_limit, 1000), 0), 10000)) w), '[]'));
end
$$;

create function public.fleet_worker(p_fleet text, p_worker_id text, p_now timestamptz default null) returns jsonb
language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers;
begin
    select * into v_worker from public.workers w where w.id = p_worker_id and w.fleet = p_fleet;
    if not found then
        return jsonb_build_object('now', v_now, 'worker', null, 'events', '[]'::jsonb, 'attempts', '[]'::jsonb,
                                  'tasks', '[]'::jsonb);
    end if;
    return jsonb_build_object(
        'now', v_now,
        'worker', public.internal_worker_report(v_worker, v_now),
        'events', coalesce((select jsonb_agg(to_jsonb(e) order by e.id)
                              from public.worker_events e where e.worker_id = p_worker_id), '[]'),
        'attempts', coalesce((select jsonb_agg(to_jsonb(a) order by a.id)
                                from public.worker_attempts a where a.worker_id = p_worker_id), '[]'),
        'tasks', coalesce((select jsonb_agg(to_jsonb(a) order by a.started_at, a.task_id)
                             from (select * from public.task_attempts a where a.worker_id = p_worker_id
                                    order by a.started_at desc limit 1000) a), '[]'));
end
$$;

create function public.fleet_decisions(p_fleet text, p_limit int, p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = '' as $$
    select jsonb_build_object('decisions', coalesce((
        select jsonb_agg(to_jsonb(d) order by d.id desc) from (
            select * from public.decisions d where d.fleet = p_fleet
             order by d.id desc limit least(greatest(coalesce(p_limit, 100), 0), 10000)) d), '[]'))
$$;

-- What this database can do: an orchestrator compares it with what it is going to call.
create function public.fleet_describe() returns jsonb
language sql stable security definer set search_path = '' as $$
    select jsonb_build_object(
        'schema_version', (select max(m.version) from public.schema_migrations m),
        'functions', (
            select jsonb_object_agg(p.proname, to_jsonb(coalesce(p.proargnames, '{}'::text[])))
              from pg_catalog.pg_proc p
             where p.pronamespace = 'public'::regnamespace and p.prosecdef
               and p.proname ~ '^(task|worker|fleet)_' and p.prorettype = 'jsonb'::regtype))
$$;
