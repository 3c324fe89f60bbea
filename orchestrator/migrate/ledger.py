"""The state of a database: its table `schema_migrations`, or the state of a database without one."""

from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import TupleRow
from psycopg.types.json import Jsonb

from orchestrator.migrate.files import TABLE, SchemaVersion, SqlFile, SqlFiles, digest
from orchestrator.ports import SchemaMismatch

Connection = psycopg.AsyncConnection[TupleRow]

# `version` is the number of a table file, or the path of a file that is applied again when its text has changed.
# `functions` are the signatures of the functions that such a file has made. Functions that it no longer makes are
# dropped, and nothing else is.
LEDGER = """create table if not exists public.schema_migrations (
    version text primary key,
    name text not null,
    checksum text not null,
    applied_at timestamptz not null default now()
);
alter table public.schema_migrations
    add column if not exists release text,
    add column if not exists functions text[],
    add column if not exists found jsonb;"""  # of 0001: what the user's tables were like before
READ = "select to_jsonb(m) from public.schema_migrations m"
EXISTS = "select to_regclass(%s) is not null"

# A database from before the first release has the files 0001 to 0028, or to 0030, with this text of the first one. The
# present files up to these contain the same tables.
EARLIER_BASELINE = "2913891ec40ff3f8f24275b252601fa59fe87330f75bf53bda70044f701ff2e3"
EARLIER = {"0028": "0001", "0030": "0031"}
ADOPTED = "select true from orchestrator.audits a where a.rel = 'adoption' and a.ended_at is not null"

# Of the queue's schema: names of tables, types and views. A login that may not use it sees nothing of it.
LOST = """select case when has_schema_privilege(n.oid, 'usage') is not false then array(
       select m.name from unnest(%s::text[]) m (name)
        where not exists (select from pg_catalog.pg_type t
                           where t.typnamespace = n.oid and 'orchestrator.' || t.typname = m.name)) end
  from (select to_regnamespace('orchestrator')::oid as oid) n"""
# Signatures. PostgreSQL 15 cannot look for one whose types are lost.
LOST_FUNCTIONS = """select case when has_schema_privilege('orchestrator', 'usage') then array(
       select f.signature from public.schema_migrations m cross join unnest(m.functions) f (signature)
        where to_regprocedure(f.signature) is null order by 1) end"""

NAMED = 8  # of what is lost; the others are counted
KNOWN_BY = {
    "tasks": ("id", "task_type", "params", "status"),
    "workers": ("id", "status"),
}  # of a project's table
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


@dataclass(frozen=True)
class Ledger:
    """The rows of the ledger: checksums by version, and more."""

    checksums: dict[str, str] = field(default_factory=dict)
    release: str = ""  # the release that made the last change
    exists: bool = False
    is_adopted: bool = False  # every task that was there before is in the queue
    lost: tuple[str, ...] = ()  # what an owner has dropped of the schema `orchestrator`, and functions

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the versions of the applied table files."""
        return tuple(sorted(version for version in self.checksums if version.isdigit()))

    @property
    def version(self) -> str:
        """Return the version as fleet_describe does; empty if no release made the database."""
        last = self.tables[-1] if self.tables else ""
        return str(SchemaVersion(last, self.release, digest(self.checksums.items()))) if last else ""

    @property
    def named_lost(self) -> str:
        """Name what is lost: a few, and how many more."""
        more = len(self.lost) - NAMED
        return ", ".join(self.lost[:NAMED]) + (f" and {more} more" if more > 0 else "")

    @property
    def contained(self) -> str:
        """Return the last table file whose tables a database from before the first release has; else an empty text."""
        is_earlier = self.checksums.get("0001") == EARLIER_BASELINE
        return EARLIER.get(self.tables[-1], "") if is_earlier else ""

    def missing(self, files: SqlFiles) -> tuple[SqlFile, ...]:
        """Return the table files that are not applied yet, and those from the first one on that made what is lost.

        Later files have indexes and settings of such a table.
        """
        if self.contained:
            return tuple(file for file in files.tables if file.version > self.contained)
        damaged = next((file.version for file in files.tables if not file.made.isdisjoint(self.lost)), None)
        return tuple(
            file
            for file in files.tables
            if file.version not in self.tables or (damaged is not None and file.version >= damaged)
        )

    def changed(self, files: SqlFiles) -> tuple[SqlFile, ...]:
        """Return the current texts that differ from the database's. With any change, the grants are applied again.

        If something is lost, all are: what depended on it may be gone too, and sessions know functions with its types.
        """
        if self.lost:
            return files.current
        changed = [file for file in files.current if self.checksums.get(file.version) != file.checksum]
        grants = files.current[-1]
        return tuple(changed) if not changed or grants in changed else (*changed, grants)

    def removed(self, files: SqlFiles) -> tuple[str, ...]:
        """Return files that made functions of the database and no longer exist."""
        known = {file.version for file in files.current}
        return tuple(sorted(v for v in self.checksums if not v.isdigit() and v not in known))


async def read_ledger(connection: Connection) -> Ledger:
    """Read the ledger of this database. SchemaMismatch if the table belongs to another tool."""
    if not await _first(connection, EXISTS, "public.schema_migrations"):
        return Ledger()
    rows: list[dict[str, Any]] = [row for (row,) in await (await connection.execute(READ)).fetchall()]
    columns = {name for row in rows for name in row} or await _columns(connection)
    if not {"version", "checksum"} <= columns:
        raise SchemaMismatch(
            "the database has a table schema_migrations that is another tool's; rename it, or use another database"
        )
    rows.sort(key=lambda row: row["applied_at"])
    releases = [row["release"] for row in rows if row.get("release")]
    is_adopted = await _first(connection, EXISTS, "orchestrator.audits") and await _first(connection, ADOPTED)
    return Ledger(
        {row["version"]: row["checksum"] for row in rows}, releases[-1] if releases else "", True, bool(is_adopted)
    )


async def lost(connection: Connection, ledger: Ledger, files: SqlFiles) -> tuple[str, ...]:
    """Return what the files have made in the schema `orchestrator`, or as functions, and is no longer there."""
    applied = [file for file in (*files.tables, *files.current) if ledger.checksums.get(file.version) == file.checksum]
    made = sorted({name for file in applied for name in file.made})
    if not made:
        return ()
    return tuple(await _first(connection, LOST, made) or await _first(connection, LOST_FUNCTIONS) or ())


async def check(connection: Connection, ledger: Ledger, files: SqlFiles) -> None:
    """Raise SchemaMismatch if these files cannot bring the database up to date."""
    if not ledger.tables:
        await _check_other_tables(connection, files)
    if ledger.contained:
        return
    known = {file.version: file for file in files.tables}
    missing = ledger.missing(files)
    for unknown in (version for version in ledger.tables if version not in known):
        if missing or unknown < files.tables[-1].version:  # a number of another program, not of a later version
            raise SchemaMismatch(
                f"the database was made from other files: it has migration {unknown}, which is not known here; "
                "fix: run the version that migrated it, or use another database"
            )
    for version in ledger.tables:
        if version in known and known[version].checksum != ledger.checksums[version]:
            raise SchemaMismatch(
                f"migration {known[version].path} was applied with another text; fix: restore the file: "
                "table files are append-only"
            )


async def _check_other_tables(connection: Connection, files: SqlFiles) -> None:
    """Check for tables of another program before the first statement, so that no foreign table is changed in part."""
    made = sorted({name for file in files.tables for name in TABLE.findall(file.sql)})
    found = await (await connection.execute(OF_OTHERS, {"made": made, "known_by": Jsonb(KNOWN_BY)})).fetchall()
    if found:
        raise SchemaMismatch(
            f"the database has tables of another program under names that are needed here, and stays as it was: "
            f"{'; '.join(str(what) for (what,) in found)}; fix: rename them, or use a database of its own"
        )


async def _columns(connection: Connection) -> set[str]:
    names = "select attname from pg_catalog.pg_attribute where attrelid = to_regclass(%s)"
    rows = await (await connection.execute(names, ("public.schema_migrations",))).fetchall()
    return {name for (name,) in rows}


async def _first(connection: Connection, query: str, *values: object) -> Any:
    row = await (await connection.execute(query.encode(), values)).fetchone()
    return row and row[0]
