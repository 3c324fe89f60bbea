"""What a migration needs of a database that has nothing of ours: looked at before the first change."""

import psycopg

from orchestrator.migrate.files import SqlFiles, array
from orchestrator.migrate.ledger import Connection
from orchestrator.migrate.run import of_function
from orchestrator.ports import SchemaMismatch

ENCODING = "UTF8"
NO_SCHEMA = "select 'there is no schema public', 'create schema public' where to_regnamespace('public') is null"
# Of the user's own tables.
UNFIT = """
select format('%s is a %s, not a table', c.relname, case c.relkind when 'v' then 'view'
                  when 'm' then 'materialized view' when 'p' then 'partitioned table' else 'foreign table' end),
       'rename it, or use a database of its own'
  from pg_catalog.pg_class c
 where c.oid in (to_regclass('public.tasks'), to_regclass('public.workers')) and c.relkind <> 'r'
union all
select format('other tables inherit from %s', i.inhparent::regclass), 'move their rows, and drop them or: no inherit'
  from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhparent and c.relkind = 'r'
 where c.oid in (to_regclass('public.tasks'), to_regclass('public.workers')) group by i.inhparent
union all
select format('row level security of %s binds its owner', c.relname),
       format('alter table public.%I no force row level security', c.relname)
  from pg_catalog.pg_class c
 where c.oid in (to_regclass('public.tasks'), to_regclass('public.workers')) and c.relkind = 'r'
   and pg_has_role(c.relowner, 'usage') and row_security_active(c.oid)
union all
select format('%s.id is %s, not %s', c.relname, format_type(a.atttypid, null), k.needs), 'convert the column first'
  from (values ('tasks', 'uuid'), ('workers', 'text')) k (name, needs)
  join pg_catalog.pg_class c on c.oid = to_regclass('public.' || k.name) and c.relkind = 'r'
  join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attname = 'id' and not a.attisdropped
  join pg_catalog.pg_type t on t.oid = a.atttypid
 where case k.name when 'tasks' then t.oid <> 'uuid'::regtype else t.typcategory <> 'S' end
"""

TRIAL = """set local lock_timeout = '1s'; set local statement_timeout = '20s'; set local search_path = '';
set local check_function_bodies = off"""
# What a migration does, so that event triggers fire.
CHANGES = """create table public.orchestrator_trial (n int primary key);
alter table public.orchestrator_trial add column m int; create index on public.orchestrator_trial (m);
drop table public.orchestrator_trial"""
TEXTS = ("functions/base/columns.sql", "functions/base/integrity.sql")
UNUSABLE = """select format('%s: %s', p.what, p.why),
       p.fix || case when p.what like '% has the type %' then ' /* or rename your column */' else '' end
  from (select * from public.internal_column_problems(false)
        union all select * from public.internal_rule_problems()) p"""
DOUBTFUL = """select format('%s: %s; fix: %s', p.what, p.why, p.fix) from public.internal_insert_problems() p
union all
select format('the view %s of yours is dropped, or renamed if something depends on it: this system has a view of this '
              'name', c.relname)
  from pg_catalog.pg_class c
 where c.relnamespace = 'public'::regnamespace and c.relkind = 'v' and c.relname = any (<views>)"""
VIEWS = ("orchestrator_status", "active_workers_health", "recent_task_activity", "worker_performance",
         "task_queue_analysis", "recent_errors")  # fmt: skip


async def check_tables(connection: Connection, files: SqlFiles) -> tuple[str, ...]:
    """Return what of the user's will trouble the system, found in a transaction that is rolled back.

    SchemaMismatch if the functions could not work with the user's tables, or if an event trigger refuses changes.
    """
    try:
        async with connection.transaction(force_rollback=True):
            await connection.execute(TRIAL)
            for file in files.current:
                if file.path in TEXTS:
                    await connection.execute(file.sql.encode())
            await connection.execute(CHANGES)
            found = await (await connection.execute(UNUSABLE)).fetchall()
            doubts = await (await connection.execute(DOUBTFUL.replace("<views>", array(VIEWS)).encode())).fetchall()
    except psycopg.errors.OperationalError:
        raise
    except psycopg.Error as error:
        what = f"the database refuses changes of its schema, and stays as it was: {error.diag.message_primary or error}"
        raise SchemaMismatch(f"{what}{of_function(error)}") from error
    if found:
        raise _refused(found)
    return tuple(doubt for (doubt,) in doubts)


async def check_fit(connection: Connection) -> None:
    """Raise SchemaMismatch if this database cannot take the schema."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in (ENCODING, None):  # such a database refuses or distorts most characters
        fix = f"use another database: create database … encoding '{ENCODING}' locale 'C' template template0"
        raise _refused([(f"its encoding is {encoding}, not {ENCODING}", fix)])
    for query in (NO_SCHEMA, UNFIT):
        if found := await (await connection.execute(query)).fetchall():
            raise _refused(found)


def _refused(found: list[tuple[str, ...]]) -> SchemaMismatch:
    whats, fixes = ("; ".join(dict.fromkeys(texts)) for texts in zip(*found, strict=True))
    return SchemaMismatch(f"the database cannot take the schema, and stays as it was: {whats}; fix: {fixes}")
