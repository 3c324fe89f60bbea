"""A development database, from before the first release, is adopted: every row stays, and the schema becomes ours."""

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow, dict_row

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.migrate import migrate, missing_sql, sql_files
from orchestrator.migrate.ledger import BASELINE, DEVELOPMENT_LAST
from orchestrator.ports import SchemaMismatch
from testbed.services.postgres import EmbeddedPostgres
from testbed.services.supabase_roles import create_roles
from tests.db.conformance.builders import Fleet
from tests.db.conformance.conftest import create_database, drop_database
from tests.db.conformance.schema_dump import dump
from tests.db.conformance.test_schema import NOW

FIXTURE = Path(__file__).with_name("development_schema.sql")
ROWS = """
insert into workers (id, status, pool, stage, waiting_on, deadline_at, next_attempt_at, nonce)
values ('w', 'active', 'p', 'promoted', 'worker', now(), now(), 'n');
insert into workers (id, status, exit_cause) values ('x', 'terminated', 'manual');
insert into tasks (task_type, status, pool, max_attempts, attempts, worker_id, lease_expires_at)
values ('t', 'In Progress', 'p', 3, 1, 'w', now() + interval '1 day');
insert into tasks (task_type, status, pool, max_attempts) values ('t', 'Queued', 'p', 3), ('t', 'Complete', 'p', 3);
insert into task_attempts (task_id, attempt, worker_id, nonce, claim_no, started_at)
select id, 1, 'w', 'n', 1, now() from tasks where status = 'In Progress';
insert into task_counts values ('p', 'plain', 1);
insert into costs (worker_id, fleet, kind, from_at, to_at, usd) values ('w', 'default', 'busy', now(), now(), 1.5);
"""
TABLES = ("tasks", "workers", "task_attempts", "costs", "database_identity", "worker_transitions")
# What the queue kept in the rows of tasks, and what it has there now.
QUEUE = [
    *("blocked", "lease_expires_at", "progress_at", "pool_by_type", "uncounted", "queue_gate", "queue_turn"),
    "published",
]


@pytest.fixture
async def url(server: EmbeddedPostgres, empty_database: str) -> str:
    """An empty database with Supabase's roles and default privileges, as the fixture had them."""
    await create_roles(empty_database)
    return empty_database


@pytest.fixture
async def development(url: str) -> AsyncIterator[AsyncConnection[DictRow]]:
    """Its owner, once it is such a database."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True, row_factory=dict_row) as connection:
        await connection.execute(FIXTURE.read_bytes())
        await connection.execute("set check_function_bodies = on")
        await connection.execute(ROWS)
        yield connection


def lacking() -> tuple[str, ...]:
    """What such a database lacks: the current texts, and the table files after the baseline before and after them."""
    files = sql_files()
    later = [file for file in files.tables if file.version > BASELINE]
    before, after = ([file for file in later if file.post_deploy is is_after] for is_after in (False, True))
    return tuple(file.version for file in (*before, *files.current, *after))


async def contents(connection: AsyncConnection[DictRow]) -> dict[str, list[str]]:
    """Every row of every table that has any, without later columns: null ones, and those that triggers keep."""
    row = sql.SQL("(jsonb_strip_nulls(to_jsonb(t)) - %s::text[])::text")
    query = sql.SQL("select {} as it from {} t order by 1")
    found = {}
    for table in TABLES:
        cursor = await connection.execute(query.format(row, sql.Identifier(table)), (QUEUE,))
        found[table] = [row["it"] for row in await cursor.fetchall()]
    return found


async def fresh_dump(server: EmbeddedPostgres) -> str:
    """Of a database that was never anything else."""
    name = await create_database(server, "adoption_fresh")
    try:
        await create_roles(server.url_of(name))
        await migrate(server.url_of(name))
        return await dump(server.url_of(name))
    finally:
        await drop_database(server, name)


async def test_an_adopted_database_equals_a_fresh_one_and_keeps_every_row(
    server: EmbeddedPostgres, url: str, development: AsyncConnection[DictRow]
) -> None:
    """Its tables are not touched: only the current texts and later table files are applied."""
    before = await contents(development)
    report = await migrate(url)
    assert report.applied == lacking()
    assert (report.notes, report.version) == ((), str(sql_files().version))
    assert await contents(development) == before
    assert await dump(url) == await fresh_dump(server)
    assert (await migrate(url)).applied == ()


async def test_an_adopted_database_works(url: str, development: AsyncConnection[DictRow]) -> None:
    """The worker from before completes the task that it holds, and claims the next."""
    await migrate(url)
    db = await PostgresDb.open(url)
    fleet = Fleet(db)
    (row,) = await (
        await development.execute("select id, now() as at from tasks where status = 'In Progress'")
    ).fetchall()
    fleet.now = row["at"]
    done = await fleet.call(
        "worker_complete", p_worker_id="w", p_nonce="n", p_task_id=row["id"], p_attempt=1, p_output_location=None,
        p_result_data={"a": 1},
    )  # fmt: skip
    claimed = await fleet.call("worker_claim", p_worker_id="w", p_nonce="n", p_claim_no=2, p_batch=5, p_wait_s=0)
    await db.close()
    assert (done["outcome"], len(claimed["tasks"])) == ("ok", 1)


async def test_the_printed_sql_adopts_too(url: str, development: AsyncConnection[DictRow]) -> None:
    """The same rows of the ledger."""
    await development.execute((await missing_sql(url, NOW)).encode())
    assert (await migrate(url)).applied == ()


async def test_a_database_that_supabase_db_push_has_made_is_adopted(
    url: str, development: AsyncConnection[DictRow]
) -> None:
    """Its history is Supabase's own."""
    await development.execute("truncate schema_migrations; create schema supabase_migrations")
    await development.execute("create table supabase_migrations.schema_migrations (version text primary key)")
    await development.execute("insert into supabase_migrations.schema_migrations values (%s)", (DEVELOPMENT_LAST,))
    assert (await migrate(url)).applied == lacking()


async def test_an_older_development_database_is_refused_untouched(
    url: str, development: AsyncConnection[DictRow]
) -> None:
    """It says what, why and how to go on."""
    await development.execute("delete from schema_migrations where version = %s", (DEVELOPMENT_LAST,))
    before = await dump(url)
    with pytest.raises(
        SchemaMismatch, match=r"development version: its last migration is 20261202020210; fix: run `mig"
    ):
        await migrate(url)
    assert await dump(url) == before
