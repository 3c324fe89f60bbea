-- fleet_cost: dollars between two moments, from what each worker's states and each attempt took of them.

create function public.fleet_cost(p_fleet text, p_since timestamptz, p_until timestamptz,
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
            select a.task_id, t.task_type, a.outcome, extract(epoch from x.to_at - x.from_at) as seconds,
                   coalesce(w.price_usd_per_hour, 0) * extract(epoch from x.to_at - x.from_at) / 3600 as usd
              from public.workers w
              join public.task_attempts a on a.worker_id = w.id
              join public.tasks t on t.id = a.task_id
              cross join lateral (
                  select greatest(a.started_at, p_since) as from_at,
                         least(coalesce(a.ended_at, v_now), w.billing_until, v_until) as to_at) x
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

-- New functions come with PostgreSQL's defaults: shut them, and open those that are for service_role.
do $$
declare
    v_function record;
    v_role name;
begin
    for v_function in
        select p.oid::regprocedure as signature, p.proname as name from pg_catalog.pg_proc p
         where p.pronamespace = 'public'::regnamespace
           and p.proname in ('internal_worker_billing', 'internal_cost_booking', 'internal_open_interval',
                             'internal_leader', 'internal_paused', 'internal_pool_decision', 'fleet_usual',
                             'fleet_explain', 'fleet_task_explain', 'fleet_scaling_explain', 'fleet_cost')
    loop
        execute format('revoke all on function %s from public', v_function.signature);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function %s from %I', v_function.signature, v_role);
        end loop;
        if v_function.name !~ '^internal_'
           and exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
            execute format('grant execute on function %s to service_role', v_function.signature);
        end if;
    end loop;
end
$$;
