-- Whether the database still is what the functions were written for.

-- Raises each sequence that is behind the rows of its table, as in a database that was filled by logical replication or
-- by a dump of the data only. Until then an insert of a row, such as that of an event of a worker, fails with a
-- duplicate key. The new value is ahead of the rows, for transactions that insert at the same time.
create or replace function public.internal_raise_sequences() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    c_ahead constant int := 1000;
    v_sequence record;
    v_highest bigint;
begin
    for v_sequence in select * from public.internal_sequences() loop
        execute format('select max(%I) from %s', v_sequence.filled, v_sequence.rows_of) into v_highest;
        if v_highest > coalesce(pg_sequence_last_value(v_sequence.name), 0) then
            perform setval(v_sequence.name, v_highest + c_ahead);
        end if;
    end loop;
end
$$;

-- The sequences of our tables, each with the table and the primary key that it fills. Those of the queue's tables are
-- among them: an insert with a duplicate key would fail in users' statements.
create or replace function public.internal_sequences() returns table (name regclass, rows_of regclass, filled name)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select d.objid::regclass, a.attrelid::regclass, a.attname
      from pg_catalog.pg_attribute a
      join pg_catalog.pg_class c on c.oid = a.attrelid
      join pg_catalog.pg_depend d on d.refobjid = a.attrelid and d.refobjsubid = a.attnum and d.deptype = 'i'
                                 and d.classid = 'pg_catalog.pg_class'::regclass
     where a.attidentity <> '' and not a.attisdropped
       and (c.relnamespace = to_regnamespace('orchestrator')
            or a.attrelid = any (array(
               select to_regclass('public.' || n.name) from unnest(array[
                   'audit_log', 'cluster_events', 'costs', 'decisions', 'member_operations', 'node_tasks',
                   'worker_asks', 'worker_attempts', 'worker_events']) n (name))))
$$;

-- What in the database differs from what the functions need: [{what, why, fix}], the worst first. It runs with the
-- rights of the functions, so it also finds what is hidden from them.
create or replace function public.fleet_schema_problems(p_now timestamptz default null) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    return jsonb_build_object('problems', coalesce((
        select jsonb_agg(jsonb_build_object('what', f.what, 'why', f.why, 'fix', f.fix) order by f.place, f.what)
          from (select 1 as place, p.* from public.internal_right_problems() p
                union all
                select 1, 'it is a copy of the one in which the fleet was led',
                       'nobody leads here, because the orchestrator of the original may still use its pods',
                       public.internal_copy_fix()
                 where public.internal_is_copy()
                union all
                select 2, p.* from public.internal_column_problems(true) p
                union all
                select 2, p.* from public.internal_column_problems(false) p
                union all
                select 2, p.* from public.internal_overload_problems() p
                union all
                select 3, p.* from public.internal_trigger_problems() p
                union all
                select 4, p.* from public.internal_insert_problems() p) f), '[]'));
end
$$;

-- Tables whose rows the functions cannot read or write: their owner has lost a right, or row level security is forced.
create or replace function public.internal_right_problems() returns table (what text, why text, fix text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select format('the functions may not %s the table %s', r.name, replace(c.oid::regclass::text, 'public.', '')),
           format('they run as %s, which has lost this right', current_user),
           format('grant all on %s to %I', c.oid::regclass, current_user)
      from pg_catalog.pg_class c cross join unnest(array['select', 'insert', 'update', 'delete']) r (name)
     where c.oid = any (public.internal_tables() || public.internal_queue_tables())
       and not has_table_privilege(c.oid, r.name)
    union all
    select format('policies hide rows of the table %s from the functions',
                  replace(c.oid::regclass::text, 'public.', '')),
           format('row level security is forced, and they run as %s, which does not bypass it', current_user),
           format('alter table %s no force row level security; or alter role %I bypassrls', c.oid::regclass,
                  current_user)
      from pg_catalog.pg_class c
     where c.oid = any (public.internal_tables() || public.internal_queue_tables()) and c.relforcerowsecurity
       and row_security_active(c.oid)
$$;

create or replace function public.internal_tables() returns oid[]
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select array_agg(to_regclass('public.' || n.name)::oid) from unnest(array[
        'alerts', 'api_submissions', 'api_tokens', 'audit_log', 'cluster_apps', 'cluster_events', 'cluster_members',
        'cluster_transitions', 'concurrency_limits', 'costs', 'database_identity', 'decisions',
        'fleet_chores', 'fleet_lease', 'fleet_settings', 'hosts', 'log_objects', 'member_operations', 'node_tasks',
        'offers', 'releases', 'schedule_runs', 'schedules', 'schema_migrations', 'task_results', 'task_types', 'tasks',
        'tenants', 'webhook_messages', 'webhooks', 'worker_asks', 'worker_attempts', 'worker_events',
        'worker_transitions', 'workers']) n (name)
$$;

-- The tables of the queue.
create or replace function public.internal_queue_tables() returns oid[]
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select array_agg(c.oid) from pg_catalog.pg_class c
     where c.relnamespace = to_regnamespace('orchestrator') and c.relkind = 'r'
$$;

-- Columns of the tables that users change too (columns.sql has the list): those that are gone, or those of a type that
-- cannot be used, or that are generated. A type of the same kind can be: varchar for text, timestamp for timestamptz. A
-- status may be an enum.
create or replace function public.internal_column_problems(p_gone boolean) returns table (what text, why text, fix text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select format('the column %s.%s %s', n.rel, n.name,
                  case when a.attname is null then 'is missing' when a.attgenerated <> '' then 'is generated'
                       else 'has the type ' || format_type(a.atttypid, null) end),
           case when a.attgenerated <> '' then 'the functions write it'
                else format('the functions need it with the type %s', n.type) end,
           case when a.attname is null
                then format('rename it back, or: alter table public.%I add column %I %s', n.rel, n.name, n.type)
                when a.attgenerated <> ''
                then format('alter table public.%I rename column %I to …', n.rel, n.name)
                else format('alter table public.%1$I alter column %2$I drop default, alter column %2$I type %3$s using '
                            '%2$I::text::%3$s', n.rel, n.name, n.type)
                     || case when f.adbin is null then ''
                             else format(', alter column %I set default (%s)::text::%s', n.name,
                                                                      pg_get_expr(f.adbin, f.adrelid), n.type) end end
      from (select c.rel, split_part(l.item, ' ', 1) as name, substr(l.item, strpos(l.item, ' ') + 1) as type
              from public.internal_columns() c cross join unnest(c.columns) l (item)) n
      left join pg_catalog.pg_attribute a
        on a.attrelid = to_regclass('public.' || n.rel) and a.attname = n.name and a.attnum > 0 and not a.attisdropped
      left join pg_catalog.pg_attrdef f on f.adrelid = a.attrelid and f.adnum = a.attnum
      left join pg_catalog.pg_type h on h.oid = a.atttypid
      left join pg_catalog.pg_type w on w.oid = to_regtype(n.type)
     where case when internal_column_problems.p_gone then a.attname is null
                else a.attgenerated <> '' or h.oid <> w.oid
                     and (w.typcategory in ('U', 'A') or h.typcategory <> w.typcategory)
                     and not (h.typcategory = 'E' and n.name = 'status') end
$$;

-- Triggers of ours that are missing or disabled, and rules.
create or replace function public.internal_trigger_problems() returns table (what text, why text, fix text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select format('triggers of %s are %s: %s', t.rel, case when t.gone then 'missing' else 'disabled' end,
                  string_agg(t.name, ', ' order by t.name)),
           'without them the queue does not follow changes of tasks, or changes of workers are not recorded',
           case when t.gone
                then 'delete from public.schema_migrations where version = ''triggers.sql''; '
                     'then python -m orchestrator migrate'
                else string_agg(
                         format('alter table public.%I enable trigger %I', t.rel, t.name), '; ' order by t.name) end
      from (select n.rel, n.name, g.oid is null as gone
              from (select split_part(i.item, ' ', 1) as rel, split_part(i.item, ' ', 2) as name
                      from unnest(public.internal_triggers()) i (item)) n
              left join pg_catalog.pg_trigger g on g.tgrelid = to_regclass('public.' || n.rel) and g.tgname = n.name
             where g.oid is null or g.tgenabled not in ('O', 'A')) t
     group by t.rel, t.gone
    union all
    select r.what, r.why, r.fix from public.internal_rule_problems() r
$$;

create or replace function public.internal_rule_problems() returns table (what text, why text, fix text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select format('the table %s has the rule %s', w.ev_class::regclass, w.rulename),
           'PostgreSQL does not allow some statements of the functions on a table with rules',
           format('drop rule %I on %s; a trigger can do the same', w.rulename, w.ev_class::regclass)
      from pg_catalog.pg_rewrite w where w.ev_class in (to_regclass('public.tasks'), to_regclass('public.workers'))
$$;

create or replace function public.internal_triggers() returns text[]
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select array['cluster_apps cluster_apps_added', 'cluster_apps cluster_apps_changed',
                 'cluster_apps cluster_apps_changing', 'cluster_apps cluster_apps_new',
                 'cluster_events cluster_events_final', 'cluster_members cluster_members_added',
                 'cluster_members cluster_members_changed', 'cluster_members cluster_members_changing',
                 'cluster_members cluster_members_new', 'costs costs_booking',
                 'member_operations member_operations_added', 'member_operations member_operations_changed',
                 'member_operations member_operations_changing', 'member_operations member_operations_new',
                 'node_tasks node_tasks_added', 'node_tasks node_tasks_changed',
                 'node_tasks node_tasks_changing', 'node_tasks node_tasks_new', 'schedules schedules_changed',
                 'tasks tasks_deleted', 'tasks tasks_inserted', 'tasks tasks_truncated', 'tasks tasks_updated',
                 'worker_events worker_events_final',
                 'workers !enter_users_path', 'workers ~leave_users_path', 'workers workers_added',
                 'workers workers_billing', 'workers workers_changed', 'workers workers_changing',
                 'workers workers_ended_bringup', 'workers workers_launched',
                 'workers workers_removed', 'workers workers_sick']
$$;

-- Columns of a user that no insert of the functions fills.
create or replace function public.internal_insert_problems() returns table (what text, why text, fix text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select format('the column %s.%s is required and has no default', c.rel, a.attname),
           case c.rel when 'tasks' then 'task_submit, the API and schedules cannot insert a task'
                      else 'no worker can be started' end,
           format('alter table public.%I alter column %I set default …, or drop not null', c.rel, a.attname)
      from public.internal_columns() c
      join pg_catalog.pg_attribute a on a.attrelid = to_regclass('public.' || c.rel)
     where a.attnum > 0 and not a.attisdropped and a.attnotnull and not a.atthasdef and a.attidentity = ''
       and not exists (select from unnest(c.columns) l (item) where split_part(l.item, ' ', 1) = a.attname)
$$;

-- Functions of a user with the name of one of ours, which a call with as many arguments may mean.
create or replace function public.internal_overload_problems() returns table (what text, why text, fix text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    with named as (
        select p.oid, p.proname, p.pronargs, p.pronargs - p.pronargdefaults as least_args,
               p.provariadic <> 0 as any_more,
               p.prosecdef and coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false) as is_ours
          from pg_catalog.pg_proc p
         where p.pronamespace = 'public'::regnamespace and p.prokind = 'f'
           and p.proname ~ '^(internal|task|worker|fleet)_' and p.prorettype <> 'trigger'::regtype
    )
    select format('there is a second function %s', n.oid::regprocedure),
           format('a call of %s may mean either: PostgreSQL refuses it, or calls the wrong one', n.proname),
           format('drop function %s', n.oid::regprocedure)
      from named n
     where not n.is_ours
       and exists (select from named o where o.is_ours and o.proname = n.proname and n.least_args <= o.pronargs
                                         and (n.any_more or n.pronargs >= o.least_args))
$$;

-- Whether this is a copy of the database in which the fleets were led. Its rows name pods that the original's
-- orchestrator may still use.
create or replace function public.internal_is_copy() returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select coalesce((select i.led_in <> public.internal_place() from public.database_identity i), false)
$$;

create or replace function public.internal_copy_fix() returns text
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select 'if the original is gone and this database takes its place: python -m orchestrator sync database_moved; '
        || 'if the original is still used: python -m orchestrator sync database_copied'
$$;

-- The server and the database of this session. Null if the server does not tell; then copies are not recognised.
create or replace function public.internal_place() returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    return (select c.system_identifier || '/' || d.oid from pg_catalog.pg_control_system() c, pg_catalog.pg_database d
             where d.datname = current_database());
exception when insufficient_privilege or undefined_function or feature_not_supported then
    return null;
end
$$;
