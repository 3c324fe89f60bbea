"""Bring a database to this version's schema.

Migrations are the files `migrations/<14 digits>_<name>.sql`: append-only, applied in order, each in a transaction of
its own under one advisory lock, so that any number of migrators may start at once. What was applied is a row of
`schema_migrations` with the file's checksum. A database that was made from other files is refused untouched. One that
is newer than the files is left as it is, and that is no error: a roll-back migrates too, and migrations only add.
"""

import hashlib
import importlib.resources
import re
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.rows import TupleRow
from psycopg.types.json import Jsonb

from orchestrator.ports import SchemaMismatch, Unavailable

PACKAGE = Path(str(importlib.resources.files("orchestrator")))
# The wheel has the migrations inside the package; in a checkout they are beside it.
DIRECTORY = PACKAGE / "migrations" if (PACKAGE / "migrations").is_dir() else PACKAGE.parent / "migrations"
FILE_NAME = re.compile(r"(\d{14})_([a-z0-9_]+)\.sql")
LOCK_KEY = 0x6F72_6368_6573_7472  # "orchestr": pg_advisory_xact_lock(bigint)
LOCK_TIMEOUT_S = 60  # how long to wait for another migrator, or for a table that somebody is using
CONNECT_TIMEOUT_S = 15
NOTE = "OR100"  # the SQLSTATE of notices that are meant for the operator
OF_OLD_TABLES = "row level security"  # in the one that a table calls for only if somebody may have been reading it

SUPABASES_LEDGER = "supabase_migrations.schema_migrations"
NEW = "select to_regclass('public.tasks') is null and to_regclass('public.workers') is null"
MADE = re.compile(r"^create table public\.(\w+)", re.MULTILINE)  # not "if not exists": those may be a project's own
KNOWN_BY = {"tasks": ("id", "task_type", "params", "status"), "workers": ("id", "status")}  # columns of a project's own
OF_OTHERS = """
select c.relname || ' is there already' from pg_catalog.pg_class c
 where c.relnamespace = 'public'::regnamespace and c.relname = any (%(made)s)
union all
select format('%%s has no %%s', k.name, string_agg(w.name, ', ' order by w.name))
  from jsonb_each(%(known_by)s) k (name, columns) cross join lateral jsonb_array_elements_text(k.columns) w (name)
 where to_regclass('public.' || k.name) is not null
   and not exists (select from pg_catalog.pg_attribute a
                    where a.attrelid = to_regclass('public.' || k.name) and a.attname = w.name)
 group by k.name
"""
# Tasks In Progress of nobody: without the lease of a claim, and not with a worker that lives.
UNHELD = """
from public.tasks t
 where t.status = 'In Progress'
   and (t.lease_expires_at is null or t.lease_expires_at = 'infinity'
        or not exists (select from public.task_attempts a where a.task_id = t.id and a.attempt = t.attempts))
   and not exists (select from public.workers w where w.id = t.worker_id and w.status <> 'terminated')
"""
LIST_UNHELD = f"select t.id::text, t.task_type, t.pool, count(*) over () {UNHELD} order by t.updated_at, t.id limit %s"
REQUEUE_UNHELD = f"""
with unheld as (select t.id {UNHELD} for update)
update public.tasks t set status = 'Queued', worker_id = null, lease_expires_at = null from unheld u where t.id = u.id
"""  # noqa: S608
NAMED = 20  # tasks in a note; the others are counted
LEDGER = """
create table if not exists public.schema_migrations (
    version text primary key,
    name text not null,
    checksum text not null,
    applied_at timestamptz not null default now()
)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file."""

    version: str
    name: str
    sql: str
    checksum: str  # sha256 of the text with Unix line ends


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What a run did: the versions it applied (none: the schema was current) and what an operator should know."""

    applied: tuple[str, ...]
    notes: tuple[str, ...]
    version: str  # the schema's version now


def read_migrations(directory: Path = DIRECTORY) -> tuple[Migration, ...]:
    """All migrations in a directory, in order; files of other names are no migrations."""
    found = []
    for path in sorted(directory.glob("*.sql")):
        match = FILE_NAME.fullmatch(path.name)
        if match:
            sql = path.read_bytes().decode("utf-8").replace("\r\n", "\n")
            found.append(Migration(match[1], match[2], sql, hashlib.sha256(sql.encode()).hexdigest()))
    if not found:
        raise SchemaMismatch(f"no migrations in {directory}")
    if len({migration.version for migration in found}) != len(found):
        raise SchemaMismatch(f"two migrations in {directory} have the same version")
    return tuple(found)


async def migrate(url: str, *, directory: Path = DIRECTORY, requeue_held: bool = False) -> MigrationReport:
    """Apply what is missing. SchemaMismatch if the database is not a prefix of the files; Unavailable if it is away.

    Tasks In Progress that no worker holds are noted, and with `requeue_held` queued again.
    """
    migrations = read_migrations(directory)
    applied: list[str] = []
    notes: list[str] = []
    new = False

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        said = diagnostic.message_primary
        if diagnostic.sqlstate == NOTE and said and not (new and OF_OLD_TABLES in said):
            notes.append(said)

    try:
        async with await psycopg.AsyncConnection.connect(
            url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, prepare_threshold=None
        ) as connection:
            new = (await (await connection.execute(NEW)).fetchone()) == (True,)
            connection.add_notice_handler(note)
            while await _apply_next(connection, migrations, applied):
                pass
            newest = max(await _ledger(connection))
            notes += await _note_unheld(connection, requeue=requeue_held)
    except psycopg.OperationalError as error:
        raise Unavailable(f"the database cannot be migrated now: {error}") from error
    return MigrationReport(tuple(applied), (*notes, *_of_a_newer(newest, migrations)), newest)


async def _note_unheld(connection: psycopg.AsyncConnection[TupleRow], *, requeue: bool) -> tuple[str, ...]:
    """What to say of the tasks In Progress that no worker holds; they are queued again if `requeue`."""
    found = await (await connection.execute(LIST_UNHELD, (NAMED,))).fetchall()
    if not found:
        return ()
    total = found[0][3]
    named = ", ".join(f"{task_id} ({task_type}, pool {pool})" for task_id, task_type, pool, _ in found)
    listed = named + (f", and {total - len(found)} more" if total > len(found) else "")
    if requeue:
        done = await connection.execute(REQUEUE_UNHELD.encode())
        return (f"{done.rowcount} tasks that no worker held are queued again: {listed}",)
    then = "They are queued again TASK_STUCK_TIMEOUT_SEC after a change, except in pools with WORKER_START_COMMAND"
    now = "now: python -m orchestrator migrate --requeue-held"
    return (f"{total} tasks are In Progress and no worker holds them: {listed}. {then}; {now}",)


def looked_at(version: str, *, directory: Path = DIRECTORY) -> MigrationReport:
    """The report on a schema that cannot be changed from here. SchemaMismatch where it is older than the files."""
    migrations = read_migrations(directory)
    ours = migrations[-1].version
    if not version.isdigit() or version < ours:
        there = version if version.isdigit() else "none that it tells of"
        raise SchemaMismatch(f"its last migration is {there}, this program's is {ours}")
    note = "nothing can be made over SUPABASE_URL's API: the schema there was only looked at, and will do"
    return MigrationReport((), (note, *_of_a_newer(version, migrations)), version)


def _of_a_newer(version: str, migrations: tuple[Migration, ...]) -> tuple[str, ...]:
    if version <= migrations[-1].version:
        return ()
    return (f"the database is newer than this version: it has migration {version}, and is left as it is",)


async def _apply_next(
    connection: psycopg.AsyncConnection[TupleRow], migrations: tuple[Migration, ...], applied: list[str]
) -> bool:
    """Apply the first migration that is missing, in one transaction; False when none is."""
    async with connection.transaction():
        await connection.execute(f"set local lock_timeout = '{LOCK_TIMEOUT_S}s'")
        await connection.execute("set local statement_timeout = 0")
        await connection.execute("set local search_path = public, pg_catalog")
        await connection.execute("select pg_advisory_xact_lock(%s)", (LOCK_KEY,))
        await connection.execute(LEDGER)
        await _adopt(connection, migrations)
        ledger = await _ledger(connection)
        missing = _missing(migrations, ledger)
        if not missing:
            return False
        if not ledger:
            await _check_strangers(connection, migrations)
        migration = missing[0]
        try:
            await connection.execute(migration.sql.encode())
        except psycopg.errors.OperationalError:
            raise
        except psycopg.Error as error:
            hint = f"; fix: {error.diag.message_hint}" if error.diag.message_hint else ""
            raise SchemaMismatch(
                f"migration {migration.version}_{migration.name} does not fit this database, which stays as it was: "
                f"{error.diag.message_primary}: {error.diag.message_detail or ''}{hint}"
            ) from error
        await connection.execute(
            "insert into public.schema_migrations (version, name, checksum) values (%s, %s, %s)",
            (migration.version, migration.name, migration.checksum),
        )
        await connection.execute("notify pgrst, 'reload schema'")  # a PostgREST in front learns of the new functions
    applied.append(migration.version)
    return True


async def _adopt(connection: psycopg.AsyncConnection[TupleRow], migrations: tuple[Migration, ...]) -> None:
    """Take over what `supabase db push` has applied, from its own history."""
    if (await (await connection.execute("select to_regclass(%s)", (SUPABASES_LEDGER,))).fetchone()) == (None,):
        return
    pushed = await (await connection.execute(f"select version::text from {SUPABASES_LEDGER}")).fetchall()  # noqa: S608
    rows = [(m.version, m.name, m.checksum) for m in migrations if (m.version,) in pushed]
    await connection.cursor().executemany(
        "insert into public.schema_migrations (version, name, checksum) values (%s, %s, %s) on conflict do nothing",
        rows,
    )


async def _check_strangers(connection: psycopg.AsyncConnection[TupleRow], migrations: tuple[Migration, ...]) -> None:
    """SchemaMismatch where another program's tables have our names: before the first migration, not at the tenth."""
    made = sorted({name for migration in migrations for name in MADE.findall(migration.sql)})
    found = await (await connection.execute(OF_OTHERS, {"made": made, "known_by": Jsonb(KNOWN_BY)})).fetchall()
    if found:
        raise SchemaMismatch(
            f"the database has tables of another program under names that are needed here, and stays as it was: "
            f"{'; '.join(str(what) for (what,) in found)}; fix: rename them, or use a database of its own"
        )


async def _ledger(connection: psycopg.AsyncConnection[TupleRow]) -> dict[str, str]:
    try:
        rows = await (await connection.execute("select version, checksum from public.schema_migrations")).fetchall()
    except psycopg.errors.UndefinedColumn as error:
        raise SchemaMismatch(
            "the database has a table schema_migrations that is another tool's; rename it, or use another database"
        ) from error
    return {str(version): str(checksum) for version, checksum in rows}


def _missing(migrations: tuple[Migration, ...], ledger: dict[str, str]) -> list[Migration]:
    known = {migration.version: migration for migration in migrations}
    missing = [migration for migration in migrations if migration.version not in ledger]
    for stranger in sorted(ledger.keys() - known.keys()):
        if missing or stranger < migrations[-1].version:  # not this version's future: another's past
            raise SchemaMismatch(
                f"the database was made from other files: it has migration {stranger}, which is not known here; "
                "fix: run the version that migrated it, or use another database"
            )
    for version, checksum in sorted(ledger.items()):
        if version in known and known[version].checksum != checksum:
            raise SchemaMismatch(
                f"migration {version}_{known[version].name} was applied with another text; fix: restore the file: "
                "migrations are append-only"
            )
    return missing
