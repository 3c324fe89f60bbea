"""One PostgreSQL server for all, and for each test a migrated database without rows, or one with nothing at all."""

import itertools
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow, dict_row

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.supabase import SupabaseDb
from orchestrator.migrate import migrate
from orchestrator.ports import Db
from testbed.services.postgres import EmbeddedPostgres
from testbed.services.postgrest import EmbeddedPostgrest
from testbed.services.supabase_roles import create_roles
from tests.db.conformance.builders import Fleet

JWT_SECRET = "a-secret-of-the-project-of-forty-characters"
NUMBERS = itertools.count(1)
TABLES = (
    "tasks",
    "task_attempts",
    "workers",
    "worker_events",
    "worker_attempts",
    "costs",
    "fleet_lease",
    "decisions",
    "offers",
    "hosts",
    "fleet_chores",
    "log_objects",
    "fleet_settings",
    "releases",
    "task_types",
    "task_marks",
    "task_results",
    "tasks_unsettled",
    "task_refusals",
    "task_floors",
)


@pytest.fixture(scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedPostgres]:
    """The server."""
    async with EmbeddedPostgres(tmp_path_factory.mktemp("postgres") / "data", durable=False, keep=False) as postgres:
        yield postgres


@pytest.fixture(scope="session")
async def migrated(server: EmbeddedPostgres) -> AsyncIterator[AsyncConnection[Any]]:
    """A connection of the owner to the one migrated database."""
    await create_roles(server.url)
    await migrate(server.url)
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as owner:
        yield owner


@pytest.fixture
async def database(server: EmbeddedPostgres, migrated: AsyncConnection[Any]) -> str:
    """The URL of a migrated database without rows: deleting a few is much quicker than a copy, or than truncating."""
    deletes = [sql.SQL("delete from {}").format(sql.Identifier(name)) for name in TABLES]
    await migrated.execute(sql.SQL("; ").join(deletes))
    return server.url


@pytest.fixture
async def empty_database(server: EmbeddedPostgres) -> AsyncIterator[str]:
    """The URL of a database with nothing in it."""
    name = await create_database(server, f"test_{next(NUMBERS)}")
    yield server.url_of(name)
    await drop_database(server, name)


@pytest.fixture(scope="session")
async def postgrest(server: EmbeddedPostgres, migrated: AsyncConnection[Any]) -> AsyncIterator[EmbeddedPostgrest]:
    """A real PostgREST over the migrated database, behind Supabase's door."""
    async with EmbeddedPostgrest(server.url, JWT_SECRET) as postgrest:
        yield postgrest


@pytest.fixture(params=["direct", "supabase"])
async def db(request: pytest.FixtureRequest, database: str, postgrest: EmbeddedPostgrest) -> AsyncIterator[Db]:
    """The transport: what holds for one holds for the other."""
    db: Db
    if request.param == "direct":
        db = await PostgresDb.open(database, call_timeout_s=30)
    else:
        db = await SupabaseDb.open(postgrest.project_url, postgrest.secret_key, poll_s=0.1)
    yield db
    await db.close()


@pytest.fixture
async def direct(database: str) -> AsyncIterator[PostgresDb]:
    """The direct transport, for what only it can do."""
    db = await PostgresDb.open(database, call_timeout_s=30)
    yield db
    await db.close()


@pytest.fixture
async def fleet(db: Db) -> Fleet:
    """A fleet that we lead."""
    fleet = Fleet(db)
    fleet.term = (await fleet.lead())["term"]
    return fleet


@pytest.fixture
async def hand(database: str) -> AsyncIterator[AsyncConnection[DictRow]]:
    """Somebody in a SQL editor."""
    async with await psycopg.AsyncConnection.connect(database, autocommit=True, row_factory=dict_row) as connection:
        yield connection


async def create_database(server: EmbeddedPostgres, name: str) -> str:
    """Make a database with nothing in it; its name."""
    await _as_owner(server, sql.SQL("create database {} template template0 strategy file_copy"), name)
    return name


async def drop_database(server: EmbeddedPostgres, name: str) -> None:
    """Remove it, whoever is still connected."""
    await _as_owner(server, sql.SQL("drop database {} with (force)"), name)


async def _as_owner(server: EmbeddedPostgres, statement: sql.SQL, name: str) -> None:
    connection: AsyncConnection[Any]
    async with await psycopg.AsyncConnection.connect(server.url_of("postgres"), autocommit=True) as connection:
        await connection.execute(statement.format(sql.Identifier(name)))
