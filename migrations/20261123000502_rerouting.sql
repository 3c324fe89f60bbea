-- A task whose pool was filled in by its type follows its type when POOLS_FILE changes; one that named a pool stays.

alter table public.tasks add column pool_by_type boolean not null default false;
comment on column public.tasks.pool_by_type is 'Its pool was not named by whoever submitted it, but filled in';

create or replace function public.internal_task_routed() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
    v_type public.task_types;
begin
    if new.pool is null or new.max_attempts is null or new.timeout_s is null then
        select * into v_type from public.task_types d where d.task_type = new.task_type;
        new.pool_by_type := new.pool is null;
        new.pool := coalesce(new.pool, v_type.pool, 'default');
        new.max_attempts := coalesce(new.max_attempts, v_type.max_attempts, 3);
        new.timeout_s := coalesce(new.timeout_s, v_type.timeout_s);
    end if;
    return new;
end
$$;

create or replace function public.fleet_declare_pools(p_fleet text, p_term bigint, p_pools jsonb,
                                                      p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_type jsonb;
    v_moved bigint;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_declare_pools');
    for v_type in select value from jsonb_array_elements(coalesce(p_pools, '[]')) loop
        perform public.internal_check_keys(v_type, array['task_type', 'pool', 'timeout_s', 'max_attempts'], 'p_pools');
    end loop;
    delete from public.task_types t
     where t.fleet = p_fleet
       and t.task_type not in (select d->>'task_type' from jsonb_array_elements(coalesce(p_pools, '[]')) d);
    insert into public.task_types (task_type, fleet, pool, timeout_s, max_attempts, declared_at)
    select d->>'task_type', p_fleet, d->>'pool', (d->>'timeout_s')::numeric, (d->>'max_attempts')::int, v_now
      from jsonb_array_elements(coalesce(p_pools, '[]')) d
    on conflict (task_type) do update
       set fleet = excluded.fleet, pool = excluded.pool, timeout_s = excluded.timeout_s,
           max_attempts = excluded.max_attempts, declared_at = excluded.declared_at;
    update public.tasks t
       set pool = coalesce((select d.pool from public.task_types d where d.task_type = t.task_type), 'default')
     where t.status = 'Queued' and t.pool_by_type
       and t.pool <> coalesce((select d.pool from public.task_types d where d.task_type = t.task_type), 'default');
    get diagnostics v_moved = row_count;
    return jsonb_build_object('declared', jsonb_array_length(coalesce(p_pools, '[]')), 'rerouted', v_moved);
end
$$;
