"""Bring a database to this version's schema.

`migrations/tables/` has numbered files that are applied once, in order, and never change. Everything else is current
text: `functions/`, `views.sql`, `triggers.sql`, `grants.sql`. It is applied again, in one transaction, when a checksum
differs from the ledger `schema_migrations`.

Any number of migrators may start at once: one works, the others wait and find nothing to do. A database that was made
from other files is refused untouched. A database that a newer release has migrated is left as it is, and that is no
error: a roll-back migrates too. Functions keep their names and arguments, so processes of an earlier version go on.

A user's live `tasks` and `workers` are adopted without long locks: each statement that locks them is short and gives up
after LOCK_TIMEOUT_S, rows are changed a few pages at a time, and indexes are built while others write.
"""

from dataclasses import dataclass
from datetime import datetime
from importlib.resources.abc import Traversable

import psycopg

from orchestrator.migrate.files import SchemaVersion, SqlFile, SqlFiles, sql_files
from orchestrator.migrate.ledger import Connection, Ledger, check, read_ledger
from orchestrator.migrate.run import alone, apply, connected
from orchestrator.migrate.steps import script, steps
from orchestrator.migrate.unheld import note_unheld
from orchestrator.ports import SchemaMismatch

__all__ = [
    "MigrationReport",
    "SchemaVersion",
    "SqlFile",
    "SqlFiles",
    "looked_at",
    "migrate",
    "missing_sql",
    "sql_files",
]

NOTE = "OR100"  # the SQLSTATE of notices that are meant for the operator
OF_OLD_TABLES = "row level security"  # in the one that a table calls for only if somebody may have been reading it
NEW = "select to_regclass('public.tasks') is null and to_regclass('public.workers') is null"


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What a run did: the versions it applied (none: the schema was current) and what an operator should know."""

    applied: tuple[str, ...]
    notes: tuple[str, ...]
    version: str  # the schema's version now


async def migrate(url: str, *, directory: Traversable | None = None, requeue_held: bool = False) -> MigrationReport:
    """Apply what is missing. SchemaMismatch if the database does not fit the files; Unavailable if it is away.

    Tasks In Progress that no worker holds are noted, and with `requeue_held` queued again.
    """
    files = sql_files(directory)
    async with alone(url) as lock, connected(url) as connection:
        ledger = await read_ledger(connection)
        await check(connection, ledger, files)
        newer = files.version.standing(ledger.version) == "newer"
        applied, notes = ((), ()) if newer else await _apply(connection, lock, files, ledger)
        notes += await note_unheld(connection, requeue=requeue_held)
        now = (await read_ledger(connection)).version
    return MigrationReport(applied, (*notes, *_of_a_newer(now, files)), now)


async def missing_sql(url: str | None, now: datetime, *, directory: Traversable | None = None) -> str:
    """What this database lacks, or without a database everything, as one SQL file. `now` (UTC) names it."""
    files = sql_files(directory)
    if url is None:
        return script(files, Ledger(), now)
    async with connected(url) as connection:
        ledger = await read_ledger(connection)
        await check(connection, ledger, files)
    newer = files.version.standing(ledger.version) == "newer"
    return f"-- {_of_a_newer(ledger.version, files)[0]}\n" if newer else script(files, ledger, now)


def looked_at(version: str, *, directory: Traversable | None = None) -> MigrationReport:
    """The report on a schema that cannot be changed from here. SchemaMismatch where it is older than the files."""
    files = sql_files(directory)
    if files.version.standing(version) == "older":
        there = version if SchemaVersion.parse(version) or version.isdigit() else "none that it tells of"
        raise SchemaMismatch(f"its version is {there}, this program's is {files.version}")
    note = "nothing can be made over SUPABASE_URL's API: the schema there was only looked at, and will do"
    return MigrationReport((), (note, *_of_a_newer(version, files)), version)


async def _apply(
    connection: Connection, lock: Connection, files: SqlFiles, ledger: Ledger
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All steps; what they applied and noted."""
    notes: list[str] = []
    new = await (await connection.execute(NEW)).fetchone() == (True,)

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        said = diagnostic.message_primary
        if diagnostic.sqlstate == NOTE and said and not (new and OF_OLD_TABLES in said):
            notes.append(said)

    connection.add_notice_handler(note)
    applied: list[str] = []
    for step in steps(files, ledger):
        await lock.execute("select 1")  # still alone
        await apply(connection, step)
        applied += step.versions
    return tuple(applied), tuple(notes)


def _of_a_newer(version: str, files: SqlFiles) -> tuple[str, ...]:
    if files.version.standing(version) != "newer":
        return ()
    return (f"the database is newer than this version: it has schema {version}, and is left as it is",)
