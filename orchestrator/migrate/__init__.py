"""Bring a database to this version's schema.

`migrations/tables/` has numbered files that are applied once, in order, and never change. All other files are current
text: `functions/`, `views.sql`, `triggers.sql`, `grants.sql`. If a checksum differs from the ledger
`schema_migrations`, they are applied again, in one transaction.

Several migrators may start at once: one works, the others wait and find nothing to do. A database that was made from
other files is refused without a change. A database that a newer release has migrated is left as it is, without an
error, because a rollback migrates too. Functions keep their names and arguments, so processes of an earlier version go
on.

What an owner has dropped of the schema `orchestrator` is made again. Each run brings the open tasks into the queue that
are missing there.

A user's live `tasks` and `workers` are adopted without long locks, and without an update of a row: each statement that
locks them is short and gives up after LOCK_TIMEOUT_S, the open tasks come into the queue in batches, and indexes are
built while others write.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.resources.abc import Traversable

import psycopg

from orchestrator.migrate.files import SchemaVersion, SqlFile, SqlFiles, sql_files
from orchestrator.migrate.fit import check_fit, check_tables
from orchestrator.migrate.ledger import Connection, Ledger, check, lost, read_ledger
from orchestrator.migrate.plan import plan
from orchestrator.migrate.remove import remove
from orchestrator.migrate.rights import check_pods, check_rights, pods_can_call, pods_lack, without_role
from orchestrator.migrate.run import adopt, alone, apply, connected, enter_missing
from orchestrator.migrate.steps import grants, script, steps
from orchestrator.migrate.trigger_trial import failing_triggers
from orchestrator.migrate.unheld import note_unheld
from orchestrator.ports import SchemaMismatch

__all__ = [
    "MigrationReport",
    "SchemaVersion",
    "SqlFile",
    "SqlFiles",
    "looked_at",
    "lost_of",
    "migrate",
    "missing_sql",
    "planned",
    "removed",
    "sql_files",
]

NOTE = "OR100"  # the SQLSTATE of notices for the operator
OF_OLD_TABLES = "row level security"  # needed for a table only if clients may have read it earlier
RECORD_PATH = "public.internal_record_path()"
NEW = "select to_regclass('public.tasks') is null and to_regclass('public.workers') is null"


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """The result of a run: the applied versions (none if the schema was current), and notes for the operator."""

    applied: tuple[str, ...]
    notes: tuple[str, ...]
    version: str  # the schema's version after the run
    plan: tuple[str, ...] = ()  # of a run that is only planned: its steps, and what changes for others


async def migrate(
    url: str,
    *,
    directory: Traversable | None = None,
    requeue_held: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> MigrationReport:
    """Apply the missing files. SchemaMismatch if the database does not fit the files; Unavailable without a connection.

    MissingRight if this login may not apply them, before the first change; or, after the last one, if pods cannot call.
    The notes name tasks In Progress without a worker. With `requeue_held`, these tasks are queued again.
    `tell` gets the progress, a line at a time.
    """
    files = sql_files(directory)
    async with alone(url) as lock, connected(url) as connection:
        ledger = await _checked(connection, files)
        newer = files.version.standing(ledger.version) == "newer"
        applied, notes = ((), ()) if newer else await _apply(connection, lock, files, ledger, tell)
        if not newer and (ledger.is_adopted or ledger.lost):  # else the adoption has just read all of them
            notes += await enter_missing(connection, tell)
        notes += await note_unheld(connection, requeue=requeue_held)
        if applied:
            notes += await failing_triggers(connection, files)
        now = (await read_ledger(connection)).version
        if not newer:
            notes += await check_pods(connection)
    return MigrationReport(applied, (*notes, *_of_a_newer(now, files)), now)


async def planned(url: str, *, directory: Traversable | None = None) -> MigrationReport:
    """Return what `migrate` would apply now. It changes nothing.

    The plan has its steps with locks and rows, and what changes for others; the notes have the user's triggers that
    would fail, and what else would trouble the system. SchemaMismatch, MissingRight, Unavailable.
    """
    files = sql_files(directory)
    async with connected(url) as connection:
        ledger = await _checked(connection, files)
        newer = files.version.standing(ledger.version) == "newer"
        notes: tuple[str, ...] = ()
        told: tuple[str, ...] = ()
        if not newer and steps(files, ledger):
            notes = (_made_again(ledger),) if ledger.lost else ()
            notes += await _before(connection, files, ledger) + await failing_triggers(connection, files)
            told = await plan(connection, files, ledger)
            if lacking := await pods_lack(connection):
                notes += (without_role(lacking),)
        elif not newer:
            notes = await check_pods(connection)
    versions = () if newer else tuple(version for step in steps(files, ledger) for version in step.versions)
    return MigrationReport(versions, (*notes, *_of_a_newer(ledger.version, files)), ledger.version, told)


async def removed(url: str, *, directory: Traversable | None = None) -> tuple[str, ...]:
    """Drop everything that `migrate` added, and keep the user's rows. Return notes.

    SchemaMismatch if the schema is not this version's or is in use; MissingRight, Unavailable.
    """
    files = sql_files(directory)
    async with alone(url), connected(url) as connection:
        ledger = await read_ledger(connection)
        if files.version.standing(ledger.version) != "current":
            if not ledger.version:
                raise SchemaMismatch("migrate has added nothing to this database; fix: compare DATABASE_URL")
            raise SchemaMismatch(f"the schema is {ledger.version}, not {files.version}")
        await check_rights(connection)
        return await remove(connection, files)


async def missing_sql(url: str | None, now: datetime, *, directory: Traversable | None = None) -> str:
    """Return the SQL that this database lacks, or without a database the whole schema. `now` (UTC) names the file."""
    files = sql_files(directory)
    if url is None:
        return script(files, Ledger(), now)
    async with connected(url) as connection:
        ledger = await _checked(connection, files)
    newer = files.version.standing(ledger.version) == "newer"
    return f"-- {_of_a_newer(ledger.version, files)[0]}\n" if newer else script(files, ledger, now)


async def lost_of(connection: Connection, *, directory: Traversable | None = None) -> str:
    """Name what an owner has dropped of what these files have made; empty if nothing. SchemaMismatch."""
    files = sql_files(directory)
    ledger = await read_ledger(connection)
    return replace(ledger, lost=await lost(connection, ledger, files)).named_lost


def looked_at(version: str, *, directory: Traversable | None = None) -> MigrationReport:
    """Return the report on a schema that cannot be changed here. SchemaMismatch if it is older than the files."""
    files = sql_files(directory)
    if files.version.standing(version) == "older":
        there = version if SchemaVersion.parse(version) or version.isdigit() else "none that it names"
        raise SchemaMismatch(f"its version is {there}, this program's is {files.version}")
    note = "nothing can be made over SUPABASE_URL's API: the schema there was only looked at, and will do"
    return MigrationReport((), (note, *_of_a_newer(version, files)), version)


async def _checked(connection: Connection, files: SqlFiles) -> Ledger:
    """Return the state of a database that can take these files. SchemaMismatch if it cannot."""
    ledger = await read_ledger(connection)
    if not ledger.exists:
        await check_fit(connection)
    await check(connection, ledger, files)
    return replace(ledger, lost=await lost(connection, ledger, files))


async def _before(connection: Connection, files: SqlFiles, ledger: Ledger) -> tuple[str, ...]:
    """Return notes on what of the user's will trouble the system. MissingRight or SchemaMismatch if it cannot work."""
    await check_rights(connection)
    return () if ledger.tables else await check_tables(connection, files)


async def _apply(
    connection: Connection, lock: Connection, files: SqlFiles, ledger: Ledger, tell: Callable[[str], None]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Apply all steps. Return the applied versions and the notes."""
    notes = [_made_again(ledger)] if ledger.lost else []
    new = await (await connection.execute(NEW)).fetchone() == (True,)

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        message = diagnostic.message_primary
        if diagnostic.sqlstate == NOTE and message and not (new and OF_OLD_TABLES in message):
            notes.append(message)

    connection.add_notice_handler(note)
    applied: list[str] = []
    todo = steps(files, ledger)
    if todo:
        notes += await _before(connection, files, ledger)
    for step in todo:
        await lock.execute("select 1")  # while no other migrator runs
        if step.adopts:
            notes += await adopt(connection, step, tell)
            continue
        await apply(connection, step)
        applied += step.versions
    if not todo and await _may(connection, RECORD_PATH):
        await connection.execute(f"select {RECORD_PATH}".encode())
        if await pods_can_call(connection):  # an administrator may have made the role since then
            await apply(connection, grants(files))
    return tuple(applied), tuple(notes)


def _made_again(ledger: Ledger) -> str:
    return f"missing in the database, and made again: {ledger.named_lost}"


async def _may(connection: Connection, function: str) -> bool:
    row = await (await connection.execute("select has_function_privilege(%s, 'execute')", (function,))).fetchone()
    return row == (True,)


def _of_a_newer(version: str, files: SqlFiles) -> tuple[str, ...]:
    if files.version.standing(version) != "newer":
        return ()
    return (f"the database is newer than this version: it has schema {version}, and is left as it is",)
