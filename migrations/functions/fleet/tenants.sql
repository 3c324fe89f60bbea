-- Tenants, as their weights are set and shown. queue/03_turns.sql says how they share a pool.

-- The tenants that have a weight or live tasks: {tenants: [{tenant, weight, ready, waiting, running}]}. The tenant of
-- tasks without one is null.
create or replace function public.task_tenants(p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object('tenants', coalesce(jsonb_agg(jsonb_build_object(
               'tenant', a.tenant, 'weight', coalesce(w.weight, 1), 'ready', coalesce(a.ready, 0),
               'waiting', coalesce(a.waiting, 0), 'running', coalesce(a.running, 0))
               order by a.tenant nulls last), '[]'))
      from (select l.tenant, sum(l.ready) as ready, sum(l.waiting) as waiting, sum(l.running) as running
              from (select q.tenant,
                           count(*) filter (where q.state = 'ready'
                                               or q.state = 'waits_for_time' and q.run_after <= v.now) as ready,
                           count(*) filter (where q.state not in ('ready', 'running', 'waits_for_time')
                                              or q.state = 'waits_for_time' and q.run_after > v.now) as waiting,
                           count(*) filter (where q.state = 'running') as running
                      from orchestrator.live q cross join (values (coalesce(task_tenants.p_now, now()))) v (now)
                     group by q.tenant
                    union all
                    select n.tenant, 0, 0, 0 from public.tenants n) l
             group by l.tenant) a
      left join public.tenants w on w.tenant = a.tenant
$$;

-- Sets the weight of a tenant; 1 is that of every other tenant. It applies to queued tasks at once.
create or replace function public.task_tenant_set(p_tenant text, p_weight int, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    if coalesce(length(p_tenant), 0) not between 1 and 200 or p_tenant ~ '[[:cntrl:]]' then
        perform public.internal_refuse('OR007', 'tenant is not valid',
                                       format('got %s', left(to_json(p_tenant)::text, 100)),
            'text of 1 to 200 characters, without control characters');
    elsif p_weight is null or p_weight not between 1 and 1000 then
        perform public.internal_refuse('OR007', 'weight is not valid', format('got %s', p_weight),
            'a whole number from 1 to 1000');
    end if;
    if p_weight = 1 then
        delete from public.tenants n where n.tenant = p_tenant;
    else
        insert into public.tenants (tenant, weight, set_at) values (p_tenant, p_weight, v_now)
        on conflict (tenant) do update set weight = excluded.weight, set_at = excluded.set_at;
    end if;
    perform orchestrator.level_turns();
    return jsonb_build_object('tenant', p_tenant, 'weight', p_weight);
end
$$;
