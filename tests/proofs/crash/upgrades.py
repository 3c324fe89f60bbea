"""Cuts a migration at every message that its client sends, before it arrives and after it was carried out.

For each file a template database stands at the version before it; every cut is made on a copy, which must then be at
that version or at the next, with exactly the schema of either, and be brought to the next by migrating again.
"""

import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from orchestrator.migrate import DIRECTORY, migrate, read_migrations
from orchestrator.ports import Unavailable
from testbed.services.postgres import EmbeddedPostgres
from tests.proofs.crash.cuts import Line

CONNECTING = 2  # messages, SSLRequest and startup: nothing of a migration has been said yet
NUMBERS = itertools.count(1)
VERSIONS = "select array_agg(version order by version) from public.schema_migrations"
SCHEMA = """
select md5(string_agg(line, E'\\n' order by line)) from (
    select 'function ' || p.oid::regprocedure || md5(p.prosrc) || coalesce(array_to_string(p.proacl, ','), '') as line
      from pg_proc p where p.pronamespace = 'public'::regnamespace
    union all
    select 'column ' || c.table_name || '.' || c.column_name || c.data_type || c.is_nullable
           || coalesce(c.column_default, '')
      from information_schema.columns c where c.table_schema = 'public' and c.table_name <> 'schema_migrations'
    union all select 'index ' || indexdef
      from pg_indexes where schemaname = 'public' and tablename <> 'schema_migrations'
    union all select 'constraint ' || conrelid::regclass || conname || pg_get_constraintdef(oid)
      from pg_constraint
     where connamespace = 'public'::regnamespace and conrelid <> to_regclass('public.schema_migrations')
    union all select 'trigger ' || pg_get_triggerdef(oid) from pg_trigger where not tgisinternal
) s
"""


State = tuple[list[str], str]  # the versions in the ledger, and a digest of the schema


class Upgrades:
    """All steps of one server from nothing to the newest schema."""

    def __init__(self, server: EmbeddedPostgres, directory: Path) -> None:
        self._server, self._directory = server, directory
        self.cuts = 0

    async def cut_everywhere(self, *, files: int | None = None) -> int:
        """Cut the first `files` migrations, or all, at every message; how many cuts that were."""
        template = await self._create("template0")
        for migration in read_migrations()[:files]:
            shutil.copy(next(DIRECTORY.glob(f"{migration.version}_*.sql")), self._directory)
            whole = await self._create(template)
            async with Line(self._server.url_of(whole)) as line:
                await migrate(line.url, directory=self._directory)
                messages = line.messages
            known = [await self._state(self._server.url_of(name)) for name in (template, whole)]
            for message, after in itertools.product(range(CONNECTING + 1, messages), (False, True)):
                await self._cut(template, known, message, after=after)
            template = whole
        return self.cuts

    async def _cut(self, template: str, known: Sequence[State], message: int, *, after: bool) -> None:
        """At this message; `known` is what the database may be then: as before, or as wanted."""
        async with self._copy(template) as url:
            async with Line(url) as line:
                line.arm(after=after, message=message)
                try:
                    await migrate(line.url, directory=self._directory)
                except Unavailable:
                    self.cuts += 1
            found = await self._state(url)
            assert found in known, f"message {message}, after: {after}: {found[0]}"
            await migrate(url, directory=self._directory)
            assert await self._state(url) == known[-1], f"message {message}, after: {after}, migrated again"

    async def _state(self, url: str) -> State:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:

            async def first(question: str) -> Any:
                return (await (await connection.execute(question)).fetchall())[0][0]

            has_ledger = await first("select to_regclass('public.schema_migrations') is not null")
            return (await first(VERSIONS) or []) if has_ledger else [], await first(SCHEMA)

    async def _create(self, template: str) -> str:
        name = f"upgrade_{next(NUMBERS)}"
        await self._say("create database {} template {}", name, template)
        return name

    @asynccontextmanager
    async def _copy(self, template: str) -> AsyncIterator[str]:
        name = await self._create(template)
        yield self._server.url_of(name)
        await self._say("drop database {} with (force)", name)

    async def _say(self, statement: str, *names: str) -> None:
        async with await psycopg.AsyncConnection.connect(self._server.url_of("postgres"), autocommit=True) as owner:
            await owner.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


async def cut_migrations(*, files: int | None = None) -> int:
    """Every cut of every migration, or of the first ones, on a server of its own."""
    with tempfile.TemporaryDirectory() as directory:
        own = Path(directory)
        (own / "migrations").mkdir()
        async with EmbeddedPostgres(own / "data", durable=False, keep=False) as server:
            return await Upgrades(server, own / "migrations").cut_everywhere(files=files)
