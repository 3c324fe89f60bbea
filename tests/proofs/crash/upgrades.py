"""Cuts a migration at every message that its client sends, before it arrives and after it was carried out.

Every cut is made on a database of its own: an empty one, or one with a user's tables. After any cut, a second migration
must end with the schema of a migration that was never cut.
"""

import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql

from orchestrator.migrate import migrate
from orchestrator.ports import Unavailable
from testbed.services.postgres import EmbeddedPostgres
from testbed.services.supabase_roles import create_roles
from tests.proofs.crash.cuts import Line

CONNECTING = 4  # messages, SSLRequest and startup of two connections: the migration has not begun
USERS_TABLES = """
create table tasks (id uuid primary key default gen_random_uuid(), task_type text, params jsonb, status text,
                    attempts int, created_at timestamptz, dependant_on uuid);
insert into tasks (task_type, status) select 't', 'In Progress' from generate_series(1, 500);
create table workers (id text primary key, status text);
insert into workers values ('old', 'active');
"""
BEFORE = {"empty": "", "users": USERS_TABLES}
LEDGER = "select version from public.schema_migrations order by 1"
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
ROWS = """
select count(*) from public.tasks t join orchestrator.live q on q.task_id = t.id
 where q.state = 'running' and q.lease_expires_at > now()
"""


@dataclass
class Upgrades:
    """All cuts on one server. `every`: one message in so many is cut."""

    server: EmbeddedPostgres
    every: int = 1
    cuts: int = field(default=0, init=False)

    async def cut_everywhere(self, before: str) -> None:
        """Cut the migration of such a database at every message."""
        await self._create(before, "template0")
        async with Line(self.server.url_of(await self._create("whole", before))) as line:
            await migrate(line.url)
            messages = line.messages
        whole = await self._state("whole")
        for message in range(CONNECTING + 1, messages, self.every):
            for after in (False, True):
                await self._cut(before, message, after=after)
                assert await self._state("cut") == whole, f"{before}: message {message}, after: {after}"
        await self._drop("whole")

    async def _cut(self, before: str, message: int, *, after: bool) -> None:
        """Cut at this message, then migrate again."""
        await self._drop("cut")
        url = self.server.url_of(await self._create("cut", before))
        async with Line(url) as line:
            line.arm(after=after, message=message)
            with suppress(Unavailable):
                await migrate(line.url)
            self.cuts += line.cuts
        await migrate(url)

    async def _state(self, name: str) -> list[object]:
        """A digest of the schema, the ledger, and how many of the user's tasks are in the queue."""
        async with await psycopg.AsyncConnection.connect(self.server.url_of(name)) as connection:
            return [await (await connection.execute(query)).fetchall() for query in (SCHEMA, LEDGER, ROWS)]

    async def _create(self, name: str, template: str) -> str:
        await self._say("create database {} template {}", name, template)
        if name in BEFORE:
            async with await psycopg.AsyncConnection.connect(self.server.url_of(name), autocommit=True) as connection:
                await connection.execute(BEFORE[name].encode())
        return name

    async def _drop(self, name: str) -> None:
        await self._say("drop database if exists {} with (force)", name)

    async def _say(self, statement: str, *names: str) -> None:
        async with await psycopg.AsyncConnection.connect(self.server.url_of("postgres"), autocommit=True) as owner:
            await owner.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


@asynccontextmanager
async def _server() -> AsyncIterator[EmbeddedPostgres]:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedPostgres(Path(directory) / "data", durable=False, keep=False) as server:
            await create_roles(server.url)
            yield server


async def cut_migrations(befores: Iterable[str] = BEFORE, *, every: int = 1) -> int:
    """A cut at every message of these migrations, or at one in so many, on a server of its own; how many that were."""
    async with _server() as server:
        upgrades = Upgrades(server, every)
        for before in befores:
            await upgrades.cut_everywhere(before)
        return upgrades.cuts
