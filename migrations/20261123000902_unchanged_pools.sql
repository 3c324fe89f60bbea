-- Whoever takes the lead declares the pools. Queued tasks are looked through only for the types that go elsewhere now, and
-- a task that comes back to the queue follows its type as it is by then, so that none is left where nobody works.

create function public.internal_task_rerouted() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
    new.pool := coalesce((select d.pool from public.task_types d where d.task_type = new.task_type), 'default');
    return new;
end
$$;
create trigger tasks_rerouted before update on public.tasks
    for each row when (new.status = 'Queued' and old.status <> 'Queued' and new.pool_by_type)
    execute function public.internal_task_rerouted();

create or replace function public.fleet_declare_pools(p_fleet text, p_term bigint, p_pools jsonb,
                                                      p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_type jsonb;
    v_before jsonb;
    v_after jsonb;
    v_elsewhere text[];
    v_moved bigint := 0;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_declare_pools');
    for v_type in select value from jsonb_array_elements(coalesce(p_pools, '[]')) loop
        perform public.internal_check_keys(v_type, array['task_type', 'pool', 'timeout_s', 'max_attempts'], 'p_pools');
    end loop;
    select coalesce(jsonb_object_agg(d.task_type, coalesce(d.pool, 'default')), '{}') into v_before from public.task_types d;
    delete from public.task_types t
     where t.fleet = p_fleet
       and t.task_type not in (select d->>'task_type' from jsonb_array_elements(coalesce(p_pools, '[]')) d);
    insert into public.task_types (task_type, fleet, pool, timeout_s, max_attempts, declared_at)
    select d->>'task_type', p_fleet, d->>'pool', (d->>'timeout_s')::numeric, (d->>'max_attempts')::int, v_now
      from jsonb_array_elements(coalesce(p_pools, '[]')) d
    on conflict (task_type) do update
       set fleet = excluded.fleet, pool = excluded.pool, timeout_s = excluded.timeout_s,
           max_attempts = excluded.max_attempts, declared_at = excluded.declared_at;
    select coalesce(jsonb_object_agg(d.task_type, coalesce(d.pool, 'default')), '{}') into v_after from public.task_types d;
    select array_agg(n.name) into v_elsewhere
      from (select jsonb_object_keys(v_before || v_after) as name) n
     where coalesce(v_before->>n.name, 'default') <> coalesce(v_after->>n.name, 'default');
    if v_elsewhere is not null then
        update public.tasks t
           set pool = coalesce(v_after->>t.task_type, 'default')
         where t.status = 'Queued' and t.pool_by_type and t.task_type = any (v_elsewhere)
           and t.pool <> coalesce(v_after->>t.task_type, 'default');
        get diagnostics v_moved = row_count;
    end if;
    return jsonb_build_object('declared', jsonb_array_length(coalesce(p_pools, '[]')), 'rerouted', v_moved);
end
$$;

do $$
declare
    v_role name;
begin
    revoke all on function public.internal_task_rerouted() from public;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
        execute format('revoke all on function public.internal_task_rerouted() from %I', v_role);
    end loop;
end
$$;
