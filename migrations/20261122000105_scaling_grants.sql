-- The new tables are for their owner and service_role alone, the new functions too; a pod may call neither.

do $$
declare
    v_function record;
    v_table regclass;
    v_role name;
begin
    for v_function in
        select p.oid::regprocedure as signature, p.proname as name from pg_catalog.pg_proc p
         where p.pronamespace = 'public'::regnamespace and p.proconfig @> array['search_path=""']
           and p.proname in ('internal_worker_climbed', 'internal_task_routed', 'internal_spent', 'internal_check_budget',
                             'internal_pauses', 'fleet_declare_pools', 'fleet_pause')
    loop
        execute format('revoke all on function %s from public', v_function.signature);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function %s from %I', v_function.signature, v_role);
        end loop;
        if v_function.name !~ '^internal_' and exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
            execute format('grant execute on function %s to service_role', v_function.signature);
        end if;
    end loop;
    foreach v_table in array array['public.releases', 'public.task_types']::regclass[] loop
        execute format('alter table %s enable row level security', v_table);
        execute format('revoke all on %s from public', v_table);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated') loop
            execute format('revoke all on %s from %I', v_table, v_role);
        end loop;
        if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
            execute format('grant all on %s to service_role', v_table);
        end if;
    end loop;
end
$$;
