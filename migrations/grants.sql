-- The current rights: everything is revoked, then allowed. Applied after any other change.
--
-- The prefix of a function says who calls it. gpu_worker, the role of pods, may call worker_* and nothing else.
-- service_role may call worker_*, fleet_* and task_*, and use the tables. internal_* is for the owner. anon and
-- authenticated have no rights; a user's own grants and policies on `tasks` and `workers` stay as they are (see
-- tables/0001_baseline.sql).

-- Roles belong to the whole server. A login that may not make or grant this one does everything else; `migrate` then
-- tries the call of a pod, and says what an administrator must run.
do $$
begin
    begin
        if not exists (select from pg_catalog.pg_roles where rolname = 'gpu_worker') then
            create role gpu_worker nologin;
        end if;
    exception
        when duplicate_object or unique_violation then null;  -- another database's migration was faster
        when insufficient_privilege then
            raise warning 'pods can call through the gateway only: this login may not create the role gpu_worker'
                using hint = format(
                    'An administrator runs: create role gpu_worker nologin; grant gpu_worker to %I', current_user);
            return;
    end;
    begin
        if exists (select from pg_catalog.pg_roles where rolname = 'authenticator')
           and not pg_has_role('authenticator', 'gpu_worker', 'member') then
            grant gpu_worker to authenticator;  -- PostgREST's login
        end if;
    exception when insufficient_privilege then
        raise warning 'pods cannot use PostgREST: this login may not grant the role gpu_worker'
            using hint = 'An administrator runs: grant gpu_worker to authenticator';
    end;
    begin
        execute format('grant gpu_worker to %I', current_user);  -- the gateway takes this role
    exception when insufficient_privilege then
        null;  -- it may have been granted by an administrator
    end;
    grant usage on schema public to gpu_worker;
end
$$;

do $$
declare
    c_views constant text[] := array['orchestrator_status', 'active_workers_health', 'recent_task_activity',
                                     'worker_performance', 'task_queue_analysis', 'recent_errors'];
    c_tables constant text[] := array[
        'alerts', 'api_submissions', 'api_tokens', 'audit_log', 'cluster_apps', 'cluster_events', 'cluster_members',
        'cluster_transitions', 'concurrency_limits', 'costs', 'decisions', 'fleet_chores',
        'fleet_lease', 'fleet_settings', 'hosts', 'log_objects', 'member_operations', 'node_tasks', 'offers',
        'releases', 'schedule_runs', 'schedules', 'schema_migrations', 'task_attempts', 'task_results', 'task_types',
        'tenants', 'webhook_messages', 'webhooks', 'worker_asks', 'worker_attempts', 'worker_events',
        'worker_transitions'];
    v_others constant text := (
        select string_agg(r, ', ') from (
            select 'public' as r
            union all
            select quote_ident(rolname) from pg_catalog.pg_roles
             where rolname in ('anon', 'authenticated', 'gpu_worker')) r);
    v_pod constant boolean := exists (select from pg_catalog.pg_roles where rolname = 'gpu_worker');
    v_service constant boolean := exists (select from pg_catalog.pg_roles where rolname = 'service_role');
    v_owner constant oid := (select c.relowner from pg_catalog.pg_class c
                              where c.oid = 'public.schema_migrations'::regclass);
    v_name text;
    v_function record;
begin
    -- Another login may bring the schema up to date, such as a superuser. Our functions call each other and use our
    -- tables with the rights of their owner, so everything belongs to the login that made the ledger.
    for v_name in
        select distinct format('function %s', p.oid::regprocedure)
          from public.schema_migrations m cross join unnest(m.functions) f (signature)
          join pg_catalog.pg_proc p on p.oid = to_regprocedure(f.signature) where p.proowner <> v_owner
        union all
        select format('%s %s', case c.relkind when 'v' then 'view' else 'table' end, c.oid::regclass)
          from pg_catalog.pg_class c
         where c.relkind in ('r', 'v') and c.relowner <> v_owner
           and (c.relnamespace = 'orchestrator'::regnamespace or c.relnamespace = 'public'::regnamespace
                and c.relname = any (c_tables || c_views || array['database_identity']))
        union all
        select 'schema orchestrator' from pg_catalog.pg_namespace n
         where n.nspname = 'orchestrator' and n.nspowner <> v_owner
    loop
        execute format('alter %s owner to %I', v_name, pg_get_userbyid(v_owner));
    end loop;
    select pg_get_userbyid(c.relowner) into v_name from pg_catalog.pg_class c
      join pg_catalog.pg_roles r on r.oid = c.relowner and not r.rolsuper
      join pg_catalog.pg_roles o on o.oid = v_owner and o.rolsuper
     where c.oid = 'public.tasks'::regclass;
    if found then
        raise notice '%', format(
            'tasks belongs to %1$s, whose triggers on it now run as the superuser %2$s; to prevent it: '
            'migrate --remove, then migrate as %1$s', v_name, pg_get_userbyid(v_owner)) using errcode = 'OR100';
    end if;
    foreach v_name in array c_tables || c_views || array['database_identity'] loop
        execute format('revoke all on public.%I from %s', v_name, v_others);
    end loop;
    for v_name in  -- Supabase grants new sequences to every role
        select s.relname from pg_catalog.pg_class s
          join pg_catalog.pg_depend d on d.objid = s.oid and d.deptype = 'i'
                                     and d.classid = 'pg_catalog.pg_class'::regclass
          join pg_catalog.pg_class t on t.oid = d.refobjid
         where s.relkind = 'S' and t.relnamespace = 'public'::regnamespace and t.relname = any (c_tables)
    loop
        execute format('revoke all on sequence public.%I from %s', v_name, v_others);
    end loop;
    if v_service then
        foreach v_name in array c_tables || array['tasks', 'workers'] loop
            execute format('grant all on public.%I to service_role', v_name);
        end loop;
        grant select on public.database_identity to service_role;
        foreach v_name in array c_views loop
            execute format('revoke all on public.%I from service_role', v_name);
            execute format('grant select on public.%I to service_role', v_name);
        end loop;
    end if;

    for v_function in
        select distinct p.oid::regprocedure as signature,
               case when p.pronamespace = 'public'::regnamespace then split_part(p.proname, '_', 1) end as prefix
          from public.schema_migrations m cross join unnest(m.functions) f (signature)
          join pg_catalog.pg_proc p on p.oid = to_regprocedure(f.signature)
    loop
        execute format('revoke all on function %s from %s', v_function.signature, v_others);
        if v_service then
            execute format('revoke all on function %s from service_role', v_function.signature);
        end if;
        if v_function.prefix in ('worker', 'fleet', 'task') then
            -- A row that a policy hides from the functions is an error, and not a worker or task that does not exist.
            execute format('alter function %s set row_security to off', v_function.signature);
        end if;
        if v_pod and v_function.prefix = 'worker' then
            execute format('grant execute on function %s to gpu_worker', v_function.signature);
        end if;
        if v_service and v_function.prefix in ('worker', 'fleet', 'task') then
            execute format('grant execute on function %s to service_role', v_function.signature);
        end if;
    end loop;
end
$$;

select public.internal_record_path();
