"""What a migration will do, before it does it: its steps with their locks, and what changes for others."""

from orchestrator.migrate.files import SqlFiles
from orchestrator.migrate.ledger import Connection, Ledger
from orchestrator.migrate.run import LOCK_TIMEOUT_S
from orchestrator.migrate.steps import BATCH, Step, steps

READ_BYTES_PER_S = 200e6  # a guess, for the estimate only
ADOPTED_PER_S = 15_000
BRIEFLY = f"an exclusive lock for milliseconds, tried for {LOCK_TIMEOUT_S:g} s at a time"
TABLES = """
select c.relname, greatest(c.reltuples, 0)::bigint, pg_relation_size(c.oid), c.relrowsecurity,
       (select sum(f.frequency) from pg_catalog.pg_stats s
         cross join unnest(s.most_common_vals::text::text[], s.most_common_freqs) f (value, frequency)
         where s.schemaname = 'public' and s.tablename = c.relname and s.attname = 'status'
           and f.value in ('Queued', 'In Progress'))::float
  from pg_catalog.pg_class c where c.oid in (to_regclass('public.tasks'), to_regclass('public.workers')) order by 1"""
# Row level security and grants: tables/0001_baseline.sql.
CLOSED = """
select c.relname, string_agg(r.rolname, ', ' order by r.rolname),
       exists (select from pg_catalog.pg_policy p where p.polrelid = c.oid)
  from pg_catalog.pg_class c join pg_catalog.pg_roles r on r.rolname in ('anon', 'authenticated')
 where c.oid in (to_regclass('public.tasks'), to_regclass('public.workers'))
   and has_table_privilege(r.oid, c.oid, 'select, insert, update, delete') group by c.oid, c.relname order by 1"""
OF_PUBLIC = """
select c.relname, string_agg(distinct lower(a.privilege_type), ', ')
  from pg_catalog.pg_class c cross join aclexplode(c.relacl) a
 where c.oid in (to_regclass('public.tasks'), to_regclass('public.workers')) and a.grantee = 0
 group by 1 order by 1"""
TRIGGERS = """
select c.relname, string_agg(g.tgname, ', ' order by g.tgname)
  from pg_catalog.pg_trigger g
  join pg_catalog.pg_class c on c.oid = g.tgrelid join pg_catalog.pg_proc p on p.oid = g.tgfoid
 where c.oid in (to_regclass('public.tasks'), to_regclass('public.workers'))
   and not g.tgisinternal and g.tgenabled <> 'D'
   and g.tgtype & 20 <> 0 and p.pronamespace is distinct from to_regnamespace('orchestrator')
   and not (p.pronamespace = 'public'::regnamespace and p.proname like 'internal\\_%')
 group by 1 order by 1"""
# Views and functions of the user's go on with the renamed column.
READERS = """
select string_agg(distinct v.oid::regclass::text, ', ')
  from pg_catalog.pg_depend d join pg_catalog.pg_rewrite w on w.oid = d.objid and d.classid = 'pg_rewrite'::regclass
  join pg_catalog.pg_class v on v.oid = w.ev_class
  join pg_catalog.pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
 where d.refobjid = to_regclass('public.workers') and a.attname = 'status'"""


async def plan(connection: Connection, files: SqlFiles, ledger: Ledger) -> tuple[str, ...]:
    """Return the steps of a migration, with locks and rows, and what changes for others who use the tables."""
    rows = await (await connection.execute(TABLES)).fetchall()
    sizes = {name: (count, size, share) for name, count, size, _, share in rows}
    told = [f"step {number}: {text}" for number, text in enumerate(_steps(files, ledger, sizes), 1)]
    if not ledger.tables and sizes:
        told += await _for_others(connection, {name: secured for name, _, _, secured, _ in rows})
    return tuple(told)


def _steps(files: SqlFiles, ledger: Ledger, sizes: dict[str, tuple[int, int, float | None]]) -> list[str]:
    return [text for step in steps(files, ledger)[1:] if (text := _step(step, files, sizes))]


def _step(step: Step, files: SqlFiles, sizes: dict[str, tuple[int, int, float | None]]) -> str:
    if step.adopts:
        return _adoption(*sizes.get("tasks", (0, 0, None)))
    if len(step.versions) > 1:
        return (
            f"{len(step.versions)} files of functions, views, triggers and grants in one transaction; tasks and "
            f"workers: {BRIEFLY}; no row is read or written"
        )
    (file,) = (file for file in (*files.tables, *files.current) if file.version == step.versions[0])
    if step.in_transaction:
        return f"{file.path} in one transaction; existing tables: {BRIEFLY}; no row is read or written"
    return f"{file.path}, one by one; indexes are built and dropped while others write; other locks: {BRIEFLY}"


def _adoption(rows: int, size: int, share: float | None) -> str:
    open_tasks = "an unknown number of" if share is None else f"about {rows * share:.0f}"
    seconds = size / READ_BYTES_PER_S + rows * (share or 0) / ADOPTED_PER_S
    return (
        f"tasks is read once (about {rows} rows, {size / 1e6:.0f} MB) and {open_tasks} open tasks come into the queue, "
        f"{BATCH} in a transaction: about {seconds:.0f} s; a write to a task of the present batch waits for its end, "
        "and no row is updated"
    )


async def _for_others(connection: Connection, secured: dict[str, bool]) -> list[str]:
    told = []
    for name, roles, has_policy in await (await connection.execute(CLOSED)).fetchall():
        if not secured[name]:
            told.append(f"{name} gets row level security: {roles} see only rows that a policy of yours allows")
        if not has_policy:
            told.append(f"{roles} lose their grants on {name}, because no policy gives them a row")
    for name, rights in await (await connection.execute(OF_PUBLIC)).fetchall():
        told.append(f"PUBLIC loses its rights on {name}: {rights}; grants to named roles stay")
    if "tasks" in secured:
        told.append(
            "each statement that writes tasks also runs orchestrator.tasks_inserted, _updated, _deleted or _truncated, "
            f"with the rights of {connection.info.user}; it fails for an unknown status, pool or number of attempts"
        )
    for name, triggers in await (await connection.execute(TRIGGERS)).fetchall():
        told.append(f"the orchestrator's changes of {name} run your triggers: {triggers}")
    if "workers" in secured:
        told.append("your column workers.status becomes legacy_status, if the table has rows: they count as terminated")
        (views,) = await (await connection.execute(READERS)).fetchone() or (None,)
        if views:
            told.append(f"these views go on with legacy_status, which has no value for new workers: {views}")
    return told
