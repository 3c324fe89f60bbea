"""Take away what `migrate` added, and keep the user's tables: `tasks` with its rows, and `workers` if the user made it.

The first migration records what the user's tables looked like, so that a column of the user's with the name of one of
ours stays.
"""

import re

import psycopg

from orchestrator.migrate.files import TABLE, SqlFiles, array
from orchestrator.migrate.fit import VIEWS
from orchestrator.migrate.ledger import Connection
from orchestrator.migrate.run import INDEX, LOCK_TIMEOUT_S, NO_TIMEOUTS
from orchestrator.migrate.steps import RELOAD, SETTINGS
from orchestrator.ports import SchemaMismatch

CONSTRAINT = re.compile(r"\badd constraint ((?:tasks|workers)_\w+)")
# Workers that may still have a pod, and who leads: both must have ended, or pods would cost money without end.
IN_USE = """select (select count(*) from public.workers w where w.status <> 'terminated'),
       (select string_agg(l.holder, ', ') from public.fleet_lease l where l.expires_at > now())"""
TAKE_AWAY = """do $do$
declare
    v_found constant jsonb := (select m.found from public.schema_migrations m where m.version = '0001');
    v_functions constant regprocedure[] := (
        select array_agg(distinct p.oid::regprocedure)
          from public.schema_migrations m cross join unnest(m.functions) f (signature)
          join pg_catalog.pg_proc p on p.oid = to_regprocedure(f.signature));
    v_columns constant jsonb := (  -- ours, of both tables
        select jsonb_object_agg(c.rel, (select jsonb_agg(split_part(l.item, ' ', 1)) from unnest(c.columns) l (item)))
          from public.internal_columns() c);
    c_guide constant jsonb := '["id", "task_type", "params", "status", "worker_id", "attempts", "output_location",
        "result_data", "error_message", "created_at", "updated_at", "generation_started_at",
        "generation_processed_at"]';
    v_one record;
    v_nulls bigint;
begin
    for v_one in select g.tgname, g.tgrelid::regclass as rel from pg_catalog.pg_trigger g
                  where g.tgfoid = any (v_functions::oid[]) loop
        execute format('drop trigger %I on %s', v_one.tgname, v_one.rel);
    end loop;
    execute 'drop view if exists <views>';
    drop schema orchestrator cascade;
    for v_one in select c.conname, c.conrelid::regclass as rel from pg_catalog.pg_constraint c
                  where c.conrelid in ('public.tasks'::regclass, 'public.workers'::regclass) and c.contype = 'c'
                    and c.conname = any (<constraints>) loop
        execute format('alter table %s drop constraint %I', v_one.rel, v_one.conname);
    end loop;
    for v_one in select i.indexrelid::regclass as name from pg_catalog.pg_index i
                   join pg_catalog.pg_class c on c.oid = i.indexrelid
                  where i.indrelid in ('public.tasks'::regclass, 'public.workers'::regclass)
                    and c.relname = any (<indexes>) loop
        execute format('drop index %s', v_one.name);
    end loop;
    execute 'drop function ' || (select string_agg(p.oid::regprocedure::text, ', ') from pg_catalog.pg_proc p
                                  where p.oid = any (v_functions::oid[]));
    execute 'drop table if exists <tables>';
    if v_found is not null and not v_found ? 'workers' then
        drop table public.workers;
    end if;
    for v_one in  -- a user's columns under which the first migration has put its own
        select a.attname as was, substr(a.attname, 8) as name, format_type(a.atttypid, a.atttypmod) as type,
               t.typtype <> 'e' or exists (select from pg_catalog.pg_enum e
                                            where e.enumtypid = t.oid and e.enumlabel = 'terminated') as fits
          from pg_catalog.pg_attribute a join pg_catalog.pg_type t on t.oid = a.atttypid
         where a.attrelid = to_regclass('public.workers') and not a.attisdropped
           and a.attname in ('legacy_status', 'legacy_exit_cause', 'legacy_terminated_at', 'legacy_state_reason')
           and not v_found->'workers'->'columns' ? a.attname::text
    loop
        if v_one.name = 'status' and v_one.fits then  -- of our workers, all of which have ended
            execute format('alter table public.workers alter column %1$I type %2$s '
                           'using coalesce(%1$I, ''terminated'')', v_one.was, v_one.type);
        end if;
        execute format('alter table public.workers drop column %I', v_one.name);
        execute format('alter table public.workers rename column %I to %I', v_one.was, v_one.name);
    end loop;
    for v_one in
        select t.rel, a.attname, a.attnotnull, f.key is not null as is_users, f.value as was,
               pg_get_expr(d.adbin, d.adrelid) as now_default
          from unnest(array['tasks', 'workers']) t (rel)
          join pg_catalog.pg_attribute a on a.attrelid = to_regclass('public.' || t.rel) and a.attnum > 0
                                        and not a.attisdropped
          left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
          left join lateral jsonb_each(v_found->t.rel->'columns') f on f.key = a.attname
         where v_columns->t.rel ? a.attname::text and v_found is not null loop
        if not v_one.is_users and (v_found ? v_one.rel or not c_guide ? v_one.attname::text) then
            execute format('alter table public.%I drop column %I', v_one.rel, v_one.attname);
        elsif v_one.is_users then
            if v_one.attnotnull and not (v_one.was->>'not_null')::boolean then
                execute format('alter table public.%I alter column %I drop not null', v_one.rel, v_one.attname);
            elsif (v_one.was->>'not_null')::boolean and not v_one.attnotnull then
                execute format('select count(*) from public.%I where %I is null', v_one.rel, v_one.attname)
                   into v_nulls;
                if v_nulls = 0 then
                    execute format('alter table public.%I alter column %I set not null', v_one.rel, v_one.attname);
                end if;
            end if;
            execute format('comment on column public.%I.%I is %L', v_one.rel, v_one.attname, v_one.was->>'comment');
            if v_one.was->>'default' is distinct from v_one.now_default then
                execute format('alter table public.%I alter column %I %s', v_one.rel, v_one.attname,
                               coalesce('set default ' || (v_one.was->>'default'), 'drop default'));
            end if;
        end if;
    end loop;
    for v_one in select t.key as rel, c.key as name, c.value #>> '{}' as definition
                   from jsonb_each(coalesce(v_found, '{}')) t cross join jsonb_each(t.value->'checks') c
                  where not exists (select from pg_catalog.pg_constraint o
                                     where o.conrelid = to_regclass('public.' || t.key) and o.conname = c.key) loop
        execute format('alter table public.%I add constraint %I %s not valid', v_one.rel, v_one.name,
                       regexp_replace(v_one.definition, ' NOT VALID$', ''));
    end loop;
    for v_one in select t.key as rel, (t.value->>'row_security')::boolean as row_security
                   from jsonb_each(coalesce(v_found, '{}')) t loop
        execute format('alter table public.%I reset (fillfactor, autovacuum_vacuum_scale_factor, '
                       'autovacuum_vacuum_threshold, autovacuum_vacuum_cost_delay)', v_one.rel);
        if not v_one.row_security then
            execute format('alter table public.%I disable row level security', v_one.rel);
        end if;
    end loop;
    if exists (select from pg_catalog.pg_roles where rolname = 'gpu_worker') then
        revoke usage on schema public from gpu_worker;
    end if;
end
$do$"""


async def remove(connection: Connection, files: SqlFiles) -> tuple[str, ...]:
    """Drop everything of ours in one transaction. Return notes.

    SchemaMismatch if it is in use, or if something depends on it.
    """
    live, leaders = await (await connection.execute(IN_USE)).fetchone() or (0, None)
    if live or leaders:
        what = f"{live} workers may still have pods" if live else f"an orchestrator leads ({leaders})"
        raise SchemaMismatch(
            f"the schema is in use: {what}; fix: python -m orchestrator shutdown, then stop the orchestrator"
        )
    try:
        async with connection.transaction():
            await connection.execute(f"set local lock_timeout = '{LOCK_TIMEOUT_S * 1000:g}ms'")
            await connection.execute(NO_TIMEOUTS)
            for setting in SETTINGS:
                await connection.execute(setting.encode())
            await connection.execute(_take_away(files).encode())
            await connection.execute(RELOAD)
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        why = f"{error.diag.message_primary}: {error.diag.message_detail or ''}"
        raise SchemaMismatch(
            f"the schema cannot be removed, and stays as it was: {why}; fix: drop what depends on it, and repeat this"
        ) from error
    return ("the role gpu_worker belongs to the whole server: drop role gpu_worker, if no other database uses it",)


def _take_away(files: SqlFiles) -> str:
    tables = sorted({name for file in files.tables for name in TABLE.findall(file.sql)} | {"schema_migrations"})
    indexes = {name for file in files.tables for name in INDEX.findall(file.sql)}
    constraints = {name for file in files.tables for name in CONSTRAINT.findall(file.sql)}
    return (
        TAKE_AWAY.replace("<views>", ", ".join(f"public.{name}" for name in (*VIEWS, "task_attempts")))
        .replace("<tables>", ", ".join(f"public.{name}" for name in tables))
        .replace("<indexes>", array(indexes))
        .replace("<constraints>", array(constraints))
    )
