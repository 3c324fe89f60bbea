-- The new table and functions are for their owner and service_role alone. And where nothing that existed before gives
-- anon or authenticated a way to the queue (a policy), they lose what Supabase grants on every new table: row level
-- security does not hold TRUNCATE, and "no rows" is no refusal.

do $$
declare
    v_function record;
    v_table regclass;
    v_role name;
begin
    for v_function in
        select p.oid::regprocedure as signature, p.proname as name from pg_catalog.pg_proc p
         where p.pronamespace = 'public'::regnamespace
           and p.proname in ('internal_is_over_postgrest', 'internal_ask', 'fleet_asks', 'fleet_answer')
    loop
        execute format('revoke all on function %s from public', v_function.signature);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function %s from %I', v_function.signature, v_role);
        end loop;
        if v_function.name !~ '^internal_' and exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
            execute format('grant execute on function %s to service_role', v_function.signature);
        end if;
    end loop;

    execute 'alter table public.worker_asks enable row level security';
    execute 'revoke all on public.worker_asks from public';
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        execute 'grant all on public.worker_asks to service_role';
    end if;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated') loop
        execute format('revoke all on public.worker_asks from %I', v_role);
        foreach v_table in array array['public.tasks', 'public.workers']::regclass[] loop
            if not exists (select from pg_catalog.pg_policy p where p.polrelid = v_table) then
                execute format('revoke all on %s from %I', v_table, v_role);
            end if;
        end loop;
        for v_table in
            select s.oid::regclass from pg_catalog.pg_class s
              join pg_catalog.pg_depend d on d.objid = s.oid and d.deptype = 'i' and d.classid = 'pg_catalog.pg_class'::regclass
              join pg_catalog.pg_class t on t.oid = d.refobjid
             where s.relkind = 'S' and t.relnamespace = 'public'::regnamespace
               and t.relname in ('worker_events', 'worker_attempts', 'task_attempts', 'decisions', 'costs', 'worker_asks')
        loop
            execute format('revoke all on sequence %s from %I', v_table, v_role);
        end loop;
    end loop;
end
$$;
