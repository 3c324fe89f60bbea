"""One PostgreSQL server for all, and for each test a migrated database without rows, or one with nothing at all."""

import itertools
from collections.abc import AsyncIterator, Mapping
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow, dict_row

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.supabase import SupabaseDb
from orchestrator.ports import Db
from testbed.services.postgres import EmbeddedPostgres
from testbed.services.postgrest import EmbeddedPostgrest
from testbed.shared_services import SharedServices
from tests.db.conformance.builders import Fleet

JWT_SECRET = "a-secret-of-the-project-of-forty-characters"
NUMBERS = itertools.count(1)
TABLES = (
    "tasks",
    "workers",
    "worker_events",
    "worker_attempts",
    "alerts",
    "api_tokens",
    "api_submissions",
    "audit_log",
    "schedules",
    "schedule_runs",
    "webhooks",
    "webhook_messages",
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
    "task_results",
    "tenants",
    "concurrency_limits",
    "cluster_apps",
)
LARGE = """select from unnest(array['tasks', 'orchestrator.live', 'orchestrator.edges']::regclass[]) r (rel)
            where pg_relation_size(r.rel) > 30 * current_setting('block_size')::int"""
QUEUE = (
    "attempts", "live", "edges", "publications", "rechecks", "marks", "audits", "launches", "slow_calls", "usage",
    "unrun_failures", "pool_minutes", "worker_minutes", "task_names", "worker_totals", "bulk_changes",
    "scaling_statistics", "scaling_reviews",
)  # fmt: skip


@pytest.fixture(scope="session")
async def server(shared: SharedServices) -> EmbeddedPostgres:
    """The server."""
    return await shared.postgres()


@pytest.fixture(scope="session")
async def migrated(shared: SharedServices) -> AsyncIterator[tuple[str, AsyncConnection[Any]]]:
    """The URL of a migrated database, and a connection of its owner."""
    url = (await shared.database()).url
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as owner:
        yield url, owner


@pytest.fixture
async def database(migrated: tuple[str, AsyncConnection[Any]]) -> str:
    """The URL of a migrated database without rows: deleting a few is much quicker than a copy, or than truncating."""
    deletes = [sql.SQL("delete from {}").format(sql.Identifier(name)) for name in TABLES]
    deletes += [sql.SQL("delete from orchestrator.{}").format(sql.Identifier(name)) for name in QUEUE]
    url, owner = migrated
    await owner.execute(sql.SQL("; ").join(deletes))
    if await (await owner.execute(LARGE)).fetchall():  # the pages of rows that are gone: an audit would read them
        await owner.execute("vacuum tasks, orchestrator.live, orchestrator.edges")
    return url


@pytest.fixture
async def empty_database(server: EmbeddedPostgres) -> AsyncIterator[str]:
    """The URL of a database with nothing in it."""
    name = await create_database(server, f"test_{next(NUMBERS)}")
    yield server.url_of(name)
    await drop_database(server, name)


@pytest.fixture(scope="session")
async def postgrest(migrated: tuple[str, AsyncConnection[Any]]) -> AsyncIterator[EmbeddedPostgrest]:
    """A real PostgREST over the migrated database, behind Supabase's key check."""
    async with EmbeddedPostgrest(migrated[0], JWT_SECRET) as postgrest:
        yield postgrest


@pytest.fixture(scope="session")
async def transports(
    migrated: tuple[str, AsyncConnection[Any]], postgrest: EmbeddedPostgrest
) -> AsyncIterator[Mapping[str, Db]]:
    """Both, open for all tests: a new connection compiles each SQL function again."""
    direct = await PostgresDb.open(migrated[0], call_timeout_s=30)
    supabase = await SupabaseDb.open(postgrest.project_url, postgrest.secret_key, poll_s=0.1)
    yield {"direct": direct, "supabase": supabase}
    await direct.close()
    await supabase.close()


@pytest.fixture(params=["direct", "supabase"])
async def db(request: pytest.FixtureRequest, database: str, transports: Mapping[str, Db]) -> Db:
    """The transport: what holds for one holds for the other."""
    return transports[request.param]


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
    """Remove it, also with open connections."""
    await _as_owner(server, sql.SQL("drop database {} with (force)"), name)


async def _as_owner(server: EmbeddedPostgres, statement: sql.SQL, name: str) -> None:
    connection: AsyncConnection[Any]
    async with await psycopg.AsyncConnection.connect(server.url_of("postgres"), autocommit=True) as connection:
        await connection.execute(statement.format(sql.Identifier(name)))
