"""The direct transport: every answer is the function's or a port's error, in time, through restarts of the server."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.functions import refusal
from orchestrator.adapters.notifications import BACKLOG
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.migrate import migrate
from orchestrator.ports import (
    BadArgument,
    BadToken,
    DatabaseAuth,
    LostRace,
    NotLeader,
    OverBudget,
    PortError,
    SchemaMismatch,
    Unavailable,
    UnknownWorker,
)
from testbed.services.postgres import EmbeddedPostgres
from tests.db.conformance.builders import SOON_S, Ear, Fleet


@pytest.fixture
def db(direct: PostgresDb) -> PostgresDb:
    """The transport of this file."""
    return direct


@asynccontextmanager
async def own_server(tmp_path: Path) -> AsyncIterator[EmbeddedPostgres]:
    """A migrated server that the test stops."""
    async with EmbeddedPostgres(tmp_path / "data", durable=False, keep=False) as server:
        await migrate(server.url)
        yield server


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("OR001", NotLeader),
        ("OR002", LostRace),
        ("OR003", OverBudget),
        ("OR005", UnknownWorker),
        ("OR006", BadToken),
        ("OR007", BadArgument),
        ("42501", DatabaseAuth),
        ("42883", SchemaMismatch),
        ("PGRST202", SchemaMismatch),
        ("22P02", BadArgument),
        ("23505", BadArgument),
        ("57014", Unavailable),
        ("53300", Unavailable),
        ("XX000", Unavailable),
        ("", Unavailable),
        (None, Unavailable),
    ],
)
def test_a_refusals_code_is_a_port_error(code: str | None, kind: type[PortError]) -> None:
    """One table, for this transport and any other; a hint is a fix only where it is ours."""
    error = refusal(code, "what", "why", "do that")
    assert type(error) is kind
    assert str(error).endswith("what: why; fix: do that" if (code or "").startswith("OR") else "what: why")


async def test_a_call_has_a_deadline_and_the_pool_recovers(database: str) -> None:
    """The server gives up first, so that it is known to be undone; the connection serves the next call."""
    db = await PostgresDb.open(database, pool_size=1, call_timeout_s=1)
    await until_answered(db)
    async with await psycopg.AsyncConnection.connect(database) as blocker:
        await blocker.execute("lock table offers, fleet_lease")
        async with asyncio.timeout(SOON_S):
            with pytest.raises(Unavailable, match=r"57014|no answer"):
                await db.call("fleet_lead", p_fleet="default", p_holder="us", p_ttl_s=15)
        await blocker.rollback()
    assert (await until_answered(db, "fleet_lead", p_fleet="default", p_holder="us", p_ttl_s=15))["leader"]
    await db.close()


async def test_more_callers_than_connections_wait_their_turn(database: str) -> None:
    """And each gets its answer."""
    db = await PostgresDb.open(database, pool_size=2)
    answers = await asyncio.gather(*(db.call("fleet_decisions", p_fleet="f", p_limit=n) for n in range(50)))
    assert answers == [{"decisions": []}] * 50
    await db.close()


CLASH = """
    create table one (id int); insert into one values (1);
    create table other (id int); insert into other values (1);
    create sequence tries;
    create function fleet_clash() returns jsonb language plpgsql as $$ begin
        if nextval('public.tries') = 1 then  -- a second try could be faster than the other side, and clash again
            perform from public.one for update;
            perform from public.other for update;
        end if;
        return '{}';
    end $$"""


async def test_a_deadlock_is_tried_again(db: PostgresDb, database: str, hand: AsyncConnection[DictRow]) -> None:
    """The server undid the whole of it, so that saying it again is safe."""
    await hand.execute(CLASH)
    try:
        async with await psycopg.AsyncConnection.connect(database) as other:
            await other.execute("set deadlock_timeout = '60s'")  # so that the victim is the other side
            await other.execute("select from other for update")
            clash = asyncio.create_task(db.call("fleet_clash"))
            waits = "select from pg_stat_activity where wait_event_type = 'Lock' and query like '%fleet_clash%'"
            async with asyncio.timeout(SOON_S):
                while not await (await hand.execute(waits)).fetchall():
                    await asyncio.sleep(0.01)
            await other.execute("select from one for update")
            await other.rollback()
        assert await clash == {}
        (tries,) = await (await hand.execute("select last_value from tries")).fetchall()
        assert tries["last_value"] == 2
    finally:
        await hand.execute("drop function fleet_clash(); drop table one, other; drop sequence tries")


async def test_a_server_that_restarts_is_found_again(tmp_path: Path) -> None:
    """Calls fail as Unavailable meanwhile; listeners are told that they may have missed something."""
    async with own_server(tmp_path) as server:
        db = await PostgresDb.open(server.url, pool_size=3, call_timeout_s=10)
        ear = Ear(db)
        assert await ear.next() == ("connected", "")
        await asyncio.gather(*(db.call("fleet_describe") for _ in range(3)))
        await server.stop("immediate")
        with pytest.raises(Unavailable):
            await db.call("fleet_describe")
        await server.start()
        await until_answered(db)
        await ear.until(("connected", ""))
        await SqlStore(db, "default").submit([{"task_type": "t", "pool": "after"}])
        await ear.until(("orchestrator_tasks", "after"))
        await ear.close()
        await db.close()


@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_a_restart_costs_a_call_and_not_one_for_each_connection(
    tmp_path: Path, how: Literal["fast", "immediate"]
) -> None:
    """The first that meets a dead connection has all others looked at; a lease would be lost before eight calls."""
    async with own_server(tmp_path) as server:
        db = await PostgresDb.open(server.url, pool_size=8, call_timeout_s=5)
        while db._pool.get_stats()["pool_size"] < 8:
            await asyncio.gather(*(db.call("fleet_describe") for _ in range(40)))
        await server.stop(how)
        await server.start()
        failed = 0
        for _ in range(20):
            try:
                await db.call("fleet_describe")
            except Unavailable:
                failed += 1
        await db.close()
    assert failed <= 2  # the second: a call that was quicker than the look


async def test_a_caller_waiting_for_a_connection_gets_one_when_the_server_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after an outage longer than the pool tries by itself; the lease would be lost before the next call."""
    monkeypatch.setattr("orchestrator.adapters.postgres.RECONNECT_TIMEOUT_S", 0.5)
    async with own_server(tmp_path) as server:
        db = await PostgresDb.open(server.url, pool_size=2, call_timeout_s=30)
        await until_answered(db)
        await server.stop("immediate")
        with pytest.raises(Unavailable):
            await db.call("fleet_describe")
        waiting = asyncio.create_task(db.call("fleet_describe"))
        # Until it has given up, more than once.
        while db._pool.get_stats().get("connections_errors", 0) < 8 and not waiting.done():
            await asyncio.sleep(0.05)
        await server.start()
        assert await waiting
        await db.close()


async def test_a_frozen_server_is_unavailable_in_time(tmp_path: Path) -> None:
    """It neither answers nor closes its connections; and when it thaws, it serves again."""
    async with own_server(tmp_path) as server:
        db = await PostgresDb.open(server.url, pool_size=1, call_timeout_s=1)
        await until_answered(db)
        async with await psycopg.AsyncConnection.connect(server.url) as connection:
            rows = await (await connection.execute("select pid from pg_stat_activity")).fetchall()
        pids = [server.pid, *(pid for (pid,) in rows)]
        stopped = [pid for pid in pids if pid and sent(pid, signal.SIGSTOP)]
        async with asyncio.timeout(SOON_S):
            with pytest.raises(Unavailable):
                await db.call("fleet_describe")
        for pid in stopped:
            sent(pid, signal.SIGCONT)
        await until_answered(db)
        await db.close()


async def test_a_database_that_never_was_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening does not wait; calling says so in time."""
    monkeypatch.setattr("orchestrator.adapters.postgres.POOL_SHARE", 0.1)  # the rest is for the look at the cause
    db = await PostgresDb.open("postgresql://postgres@127.0.0.1:1/none", call_timeout_s=5)
    with pytest.raises(Unavailable, match=r"fleet_describe: no connection within 5 s: .*refused"):
        await db.call("fleet_describe")
    await db.close()


async def test_all_listeners_of_a_process_share_one_connection(db: PostgresDb, fleet: Fleet, database: str) -> None:
    """Each hears everything; who comes later is told to look first."""
    ears = [Ear(db) for _ in range(3)]
    for ear in ears:
        assert await ear.next() == ("connected", "")
    late = Ear(db)
    assert await late.next() == ("connected", "")
    await fleet.submit({"pool": "all"})
    for ear in (*ears, late):
        await ear.until(("orchestrator_tasks", "all"))
    async with await psycopg.AsyncConnection.connect(database) as connection:
        query = """select count(*) from pg_stat_activity
                    where datname = current_database() and query ~ 'listen|select 1' and application_name <> ''"""
        assert await (await connection.execute(query)).fetchone() == (1,)
    for ear in (*ears, late):
        await ear.close()


async def test_a_slow_listener_must_query_for_itself(db: PostgresDb) -> None:
    """Its backlog is bounded."""
    stream = db.notifications()
    assert await anext(stream) == ("connected", "")
    for n in range(BACKLOG + 10):
        db._listeners.publish(("orchestrator_tasks", str(n)))
    heard = [await anext(stream) for _ in range(11)]
    assert heard[0] == ("connected", "")
    assert heard[-1] == ("orchestrator_tasks", str(BACKLOG + 9))


async def test_changes_of_workers_are_notified(db: PostgresDb, fleet: Fleet) -> None:
    """A spawn, a stage, a state, an agent's first sign of life, a request to end, and what the worker ends after it."""
    ear = Ear(db)
    assert await ear.next() == ("connected", "")
    agent = await fleet.agent()
    for _ in ("spawned", "registered", "promoted"):
        assert await ear.next() == ("orchestrator_fleet", agent.id)
    await agent.beat()
    await fleet.submit()
    assert await ear.next() == ("orchestrator_tasks", "default")
    (task,) = await agent.claim()
    args = {"p_fleet": "default", "p_worker_id": agent.id, "p_reason": "r", "p_now_not_drain": False}
    await fleet.call("fleet_request_termination", **args)
    assert await ear.next() == ("orchestrator_fleet", agent.id)
    await agent.complete(task)
    assert await ear.next() == ("orchestrator_fleet", agent.id)
    await ear.close()


async def test_closing_leaves_nothing_open(database: str) -> None:
    """Neither a connection nor a task."""
    db = await PostgresDb.open(database, application_name="to_be_closed")
    ear = Ear(db)
    await ear.next()
    await db.call("fleet_describe")
    await ear.close()
    await db.close()
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        query = "select count(*) from pg_stat_activity where application_name = 'to_be_closed'"
        async with asyncio.timeout(SOON_S):
            while await (await connection.execute(query)).fetchone() != (0,):
                await asyncio.sleep(0.01)


def sent(pid: int, what: signal.Signals) -> bool:
    """Whether the process was there to get the signal."""
    try:
        os.kill(pid, what)
    except ProcessLookupError:
        return False
    return True


async def until_answered(db: PostgresDb, function: str = "fleet_describe", **args: Any) -> Any:
    """Wait until the database answers a call that may be repeated; the answer."""
    async with asyncio.timeout(SOON_S * 2):
        while True:
            try:
                return await db.call(function, **args)
            except Unavailable:
                await asyncio.sleep(0.05)
