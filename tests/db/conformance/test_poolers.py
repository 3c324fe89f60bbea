"""What a connection does decides how it is used, not the number of its port: PgBouncer in each mode, and no pooler."""

import asyncio

import psycopg
import pytest

from orchestrator.adapters.postgres import PREPARE_AFTER, PostgresDb
from orchestrator.adapters.session_test import is_direct, keeps_session
from orchestrator.migrate import migrate
from orchestrator.ports import Unavailable
from testbed.services.pgbouncer import PROGRAM, Mode, PgBouncer
from tests.db.conformance.builders import Ear, Fleet

pytestmark = pytest.mark.needs_program(PROGRAM, PROGRAM)
CLIENTS = 12
LISTENING = "select array_agg(pid) from pg_stat_activity where query ~* '^listen' and datname = current_database()"


async def listening(database: str) -> set[int]:
    """The sessions that listen for notifications."""
    async with await psycopg.AsyncConnection.connect(database) as connection:
        (found,) = await (await connection.execute(LISTENING)).fetchone() or (None,)
        return set(found or ())


@pytest.mark.parametrize(("mode", "size"), [("statement", 4), ("transaction", 1), ("transaction", 4), ("session", 8)])
async def test_a_fleet_works_behind_it(database: str, mode: Mode, size: int) -> None:
    """More calls than a statement needs to be prepared, from many callers at once; and events arrive."""
    before = await listening(database)  # a test before this one may still disconnect
    async with PgBouncer(database, mode, size=size) as pooler:
        db = await PostgresDb.open(pooler.url, pool_size=4, call_timeout_s=30)
        fleet = Fleet(db)
        fleet.term = (await fleet.lead())["term"]
        ear = Ear(db)
        await ear.until(("connected", ""))
        agents = [await fleet.agent() for _ in range(CLIENTS)]
        ids = await fleet.submit(*({"pool": "default"} for _ in range(CLIENTS * 2 * PREPARE_AFTER)))
        await ear.until(("orchestrator_tasks", "default"))

        async def work(number: int) -> None:
            for _ in range(2 * PREPARE_AFTER):
                (task,) = await agents[number].claim()
                assert await agents[number].complete(task) == "ok"

        await asyncio.gather(*(work(number) for number in range(CLIENTS)))
        counts = (await fleet.call("task_list", p_status=None, p_task_type=None, p_limit=1))["counts"]
        assert counts["Complete"] == len(ids)
        assert len(await listening(database) - before) == (mode == "session")
        await ear.close()
        await db.close()


@pytest.mark.parametrize(("mode", "kept"), [("statement", False), ("transaction", False), ("session", True)])
async def test_a_pooler_is_found_out_by_what_it_does(database: str, mode: Mode, *, kept: bool) -> None:
    """Also while it is idle, when a transaction pooler would give the same session twice in a row."""
    async with PgBouncer(database, mode) as pooler:

        async def connect() -> psycopg.AsyncConnection:
            return await psycopg.AsyncConnection.connect(pooler.url, autocommit=True, prepare_threshold=None)

        for _ in range(3):
            async with await connect() as connection:
                assert not await is_direct(connection)
                assert await keeps_session(connection, connect, 10) is kept
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        assert await is_direct(connection)


async def test_a_database_is_migrated_through_a_transaction_pooler(empty_database: str) -> None:
    """Each transaction may have another session."""
    async with PgBouncer(empty_database, "transaction", size=4) as pooler:
        assert (await migrate(pooler.url)).applied
        assert (await migrate(pooler.url)).applied == ()


async def test_a_pooler_without_transactions_is_named_before_anything_is_changed(empty_database: str) -> None:
    """With the kind of connection that a migration needs."""
    async with PgBouncer(empty_database, "statement") as pooler:
        with pytest.raises(Unavailable, match=r"statement pooling mode; fix: use .*session pooler"):
            await migrate(pooler.url)
