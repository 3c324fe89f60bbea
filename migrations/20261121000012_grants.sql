-- Who may call what. Tables are for their owner and service_role alone; a pod may call worker_* and nothing else.

do $$
declare
    v_function record;
    v_table regclass;
    v_role name;
begin
    if not exists (select from pg_catalog.pg_roles where rolname = 'gpu_worker') then
        begin
            create role gpu_worker nologin;
        exception when duplicate_object or unique_violation then
            null;  -- roles belong to the whole server: another database's migration was quicker
        end;
    end if;
    if exists (select from pg_catalog.pg_roles where rolname = 'authenticator') then
        grant gpu_worker to authenticator;  -- PostgREST's login
    end if;
    begin
        execute format('grant gpu_worker to %I', current_user);  -- the gateway takes the role on
    exception when insufficient_privilege then
        raise notice 'this login may not take the role gpu_worker on: the worker gateway needs it' using errcode = 'OR100';
    end;
    grant usage on schema public to gpu_worker;

    for v_function in
        select p.oid::regprocedure as signature, p.proname as name from pg_catalog.pg_proc p
         where p.pronamespace = 'public'::regnamespace and p.proname ~ '^(task|worker|fleet|internal)_'
           and p.proconfig @> array['search_path=""']
    loop
        execute format('revoke all on function %s from public', v_function.signature);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function %s from %I', v_function.signature, v_role);
        end loop;
        if v_function.name ~ '^worker_' then
            execute format('grant execute on function %s to gpu_worker', v_function.signature);
        end if;
        if v_function.name !~ '^internal_'
           and exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
            execute format('grant execute on function %s to service_role', v_function.signature);
        end if;
    end loop;

    foreach v_table in array array['public.tasks', 'public.workers', 'public.task_attempts', 'public.worker_transitions',
                                   'public.worker_events', 'public.worker_attempts', 'public.costs',
                                   'public.fleet_lease', 'public.decisions', 'public.offers', 'public.log_objects',
                                   'public.fleet_settings', 'public.schema_migrations']::regclass[] loop
        if v_table in ('public.tasks'::regclass, 'public.workers'::regclass) and exists (
               select from pg_catalog.pg_class c where c.oid = v_table and not c.relrowsecurity)
           and exists (select from pg_catalog.pg_roles r
                        where r.rolname in ('anon', 'authenticated') and has_table_privilege(r.oid, v_table, 'select')) then
            raise notice '% now has row level security: who reads it as anon or authenticated needs a policy', v_table
                using errcode = 'OR100';
        end if;
        execute format('alter table %s enable row level security', v_table);
        execute format('revoke all on %s from public', v_table);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated') loop
            if v_table not in ('public.tasks'::regclass, 'public.workers'::regclass) then
                execute format('revoke all on %s from %I', v_table, v_role);
            end if;
        end loop;
        if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
            execute format('grant all on %s to service_role', v_table);
        end if;
    end loop;
end
$$;
