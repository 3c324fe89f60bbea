"""A slow write of the leader: it holds up neither the renewal of its lease nor its resignation, but the next term."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.core.states import Stage, State
from orchestrator.ports import NotLeader
from testbed.tasks import ended
from tests.db.conformance.builders import FLEET, SOON_S, Fleet, Row

TTL_S = 15


@pytest.fixture
async def fleet(direct: PostgresDb) -> Fleet:
    """A fleet that we lead; over one transport, since this is about what the database does."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead(ttl_s=TTL_S))["term"]
    return fleet


@pytest.fixture
async def other(database: str) -> AsyncIterator[AsyncConnection[DictRow]]:
    """A session whose transactions stay open until it says so."""
    async with await psycopg.AsyncConnection.connect(database, row_factory=dict_row) as connection:
        yield connection
        await connection.rollback()


async def until_waiting(hand: AsyncConnection[DictRow], count: int) -> None:
    """Until so many sessions of this database wait for a lock."""
    query = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    async with asyncio.timeout(SOON_S):
        while len(await (await hand.execute(query)).fetchall()) < count:
            pass


@asynccontextmanager
async def blocked_write(
    fleet: Fleet, hand: AsyncConnection[DictRow], other: AsyncConnection[DictRow]
) -> AsyncIterator[asyncio.Task[Row]]:
    """A write of our term that has passed the check of the term, and waits for a row that another session holds."""
    worker_id = await fleet.spawn()
    await other.execute("select from workers where id = %s for update", (worker_id,))
    write = asyncio.create_task(fleet.move(worker_id, State.SPAWNING, stage=Stage.TCP))
    try:
        await until_waiting(hand, 1)
        yield write
    finally:
        await ended(write)


async def change(fleet: Fleet, what: str) -> None:
    """What the holder does to its lease."""
    if what == "renew":
        answer = await fleet.lead(ttl_s=TTL_S)
        assert (answer["leader"], answer["term"]) == (True, fleet.term)
    elif what == "resign":
        answer = await fleet.call("fleet_resign", p_fleet=FLEET, p_holder="us", p_term=fleet.term)
        assert answer == {"resigned": True}


@pytest.mark.parametrize("what", ["renew", "resign"])
async def test_a_write_that_waits_holds_up_no_change_of_the_lease_by_its_holder(
    fleet: Fleet, hand: AsyncConnection[DictRow], other: AsyncConnection[DictRow], what: str
) -> None:
    """Several such writes, one after the other, would outlast the lease."""
    async with blocked_write(fleet, hand, other) as write:
        fleet.wait(TTL_S - 1)
        await asyncio.wait_for(change(fleet, what), SOON_S / 2)
        assert not write.done()
        await other.commit()
        assert (await write)["stage"] == Stage.TCP


@pytest.mark.parametrize("before", ["nothing", "renew", "resign"])
async def test_a_new_term_begins_when_the_writes_of_the_old_one_have_ended(
    fleet: Fleet, hand: AsyncConnection[DictRow], other: AsyncConnection[DictRow], before: str
) -> None:
    """Whatever the old leader did to its lease while a write of it waited."""
    async with blocked_write(fleet, hand, other) as write:
        await change(fleet, before)
        fleet.wait(TTL_S)
        takeover = asyncio.create_task(fleet.lead("them", TTL_S))
        try:
            await until_waiting(hand, 2)
            assert not takeover.done()
            await other.commit()
            assert (await write)["stage"] == Stage.TCP
            answer = await takeover
        finally:
            await ended(takeover)
    assert (answer["leader"], answer["term"]) == (True, fleet.term + 1)


@pytest.mark.parametrize("before", ["nothing", "renew"])
async def test_a_write_of_the_old_term_that_comes_during_a_takeover_is_refused(
    fleet: Fleet, hand: AsyncConnection[DictRow], other: AsyncConnection[DictRow], before: str
) -> None:
    """It waits until the new term is there; also if the row of the lease had been locked and changed by others."""
    async with blocked_write(fleet, hand, other) as write:
        await change(fleet, before)
        await other.commit()
        await write
    worker_id = await fleet.spawn()
    fleet.wait(TTL_S)
    await other.execute("select fleet_lead(%s, 'them', %s, %s)", (FLEET, TTL_S, fleet.now))
    late = asyncio.create_task(fleet.move(worker_id, State.SPAWNING, stage=Stage.TCP))
    try:
        await until_waiting(hand, 1)
        await other.commit()
        with pytest.raises(NotLeader):
            await late
    finally:
        await ended(late)


async def test_a_takeover_that_waited_begins_its_lease_after_the_wait(
    fleet: Fleet, hand: AsyncConnection[DictRow], other: AsyncConnection[DictRow]
) -> None:
    """By the clock of the database: the lease must not be over before its holder hears of it."""
    await hand.execute("update fleet_lease set expires_at = 'epoch'")
    async with blocked_write(fleet, hand, other) as write:
        takeover = asyncio.create_task(fleet.db.call("fleet_lead", p_fleet=FLEET, p_holder="them", p_ttl_s=TTL_S))
        try:
            await until_waiting(hand, 2)
            (row,) = await (await hand.execute("select clock_timestamp()::text as at")).fetchall()
            await other.commit()
            await write
            answer: Any = await takeover
        finally:
            await ended(takeover)
    query = "select %s::timestamptz > %s::timestamptz as later"
    (compared,) = await (await hand.execute(query, (answer["since"], row["at"]))).fetchall()
    assert compared["later"]
