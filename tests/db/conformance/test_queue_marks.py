"""The mark at which claims begin never hides a claimable task, also during concurrent changes of the queue."""

import random
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.errors import DeadlockDetected, LockNotAvailable, SerializationFailure
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from tests.db.conformance.builders import Fleet
from tests.db.conformance.consistency import LAWS

SESSIONS = 4
STEPS = 250
ISOLATIONS = ("read committed", "repeatable read", "serializable")
HIDDEN = LAWS["a claim begins behind a ready task"]
ONE = "(select id from tasks where status = '{}' order by md5(id::text || {}) limit 1 for update skip locked)"
# What may happen to a queue, besides what the functions do.
CHANGES = (
    "insert into tasks (task_type, pool, priority) values ('t', '{pool}', {priority})",
    "insert into tasks (task_type, pool, created_at) values ('t', '{pool}', now() - interval '{s} s')",
    "insert into tasks (task_type, pool, run_after) values ('t', '{pool}', now() + interval '0.02 s')",
    "insert into tasks (task_type, depends_on) select 't', array[id] from tasks order by random() limit 1",
    "insert into tasks (task_type, pool, priority) select 't', '{pool}', p from generate_series({priority}, 3) p",
    "update tasks set status = 'In Progress', attempts = attempts + 1 where id = {queued}",
    "update tasks set status = 'In Progress', attempts = attempts + 1 where id = {queued}",
    "update tasks set status = 'Queued' where id = {running}",
    "update tasks set status = 'Complete' where id = {running}",
    "update tasks set status = 'Queued', run_after = null where id = {complete}",
    "update tasks set pool = '{pool}', priority = {priority} where id = {queued}",
    "update tasks set created_at = now() - interval '{s} s' where id = {queued}",
    "delete from tasks where id = {queued}",
    "insert into tasks (task_type, pool, tenant) select 't', '{pool}', 'x' from generate_series(1, 3)",
    "insert into tasks (task_type, pool, tenant, priority) values ('t', '{pool}', 'y', {priority})",
    "update tasks set tenant = 'y' where id = {queued}",
    "update tasks set tenant = null where id = {queued}",
    "select orchestrator.advance_due('{pool}', 10)",
    "select orchestrator.give_turns('{pool}', ~({priority}), 3)",
    "select orchestrator.level_turns()",
)


@pytest.fixture
async def fleet(direct: PostgresDb) -> Fleet:
    """A fleet that we lead; over one transport, since this is about what the database does."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    return fleet


@pytest.mark.parametrize("seed", range(3))
async def test_no_mark_hides_a_claimable_task_whatever_else_is_going_on(
    database: str, hand: AsyncConnection[DictRow], seed: int
) -> None:
    """Several sessions with open transactions of any isolation add, claim, give back, edit, commit and roll back."""
    draw = random.Random(f"marks {seed}")
    sessions = [await psycopg.AsyncConnection.connect(database, autocommit=True) for _ in range(SESSIONS)]
    raised = 0
    try:
        for session in sessions:
            await session.execute("set lock_timeout = '20ms'")
        for _ in range(STEPS):
            session, pool = draw.choice(sessions), draw.choice("ab")
            inside = session.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
            act = draw.random()
            try:
                if inside and act < 0.25:
                    await session.execute("commit" if draw.random() < 0.7 else "rollback")
                elif not inside and act < 0.3:
                    await session.execute(f"begin isolation level {draw.choice(ISOLATIONS)}".encode())
                elif act < 0.55:
                    await session.execute("select orchestrator.raise_mark(%s, %s)", (pool, draw.random() < 0.1))
                else:
                    await session.execute(_change(draw, pool))
            except (SerializationFailure, DeadlockDetected, LockNotAvailable):
                await session.execute("rollback")
            assert await (await hand.execute(HIDDEN)).fetchall() == []
            raised += (await _one(hand, "select count(*) as n from orchestrator.marks where seen is not null"))["n"]
    finally:
        for session in sessions:
            await session.close()
    assert raised > STEPS / 2, "the walk had marks to look at"


async def test_an_old_snapshot_raises_no_mark(fleet: Fleet, database: str, hand: AsyncConnection[DictRow]) -> None:
    """What became claimable after it is no longer marked by itself once somebody else has raised the mark."""
    agent = await fleet.agent()
    await fleet.submit(count=40)
    await agent.claim(batch=40)
    async with await psycopg.AsyncConnection.connect(database) as reader:
        await reader.execute("set default_transaction_isolation = 'repeatable read'")
        await reader.commit()
        await reader.execute("select count(*) from tasks")
        await fleet.submit(count=1)
        await hand.execute("select orchestrator.raise_mark('default', false)")
        await reader.execute("select orchestrator.raise_mark('default', false)")
        await reader.commit()
    assert await (await hand.execute(HIDDEN)).fetchall() == []


async def test_every_task_is_claimed_in_order_while_others_add_and_give_back(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Through the functions: each claim takes what a claim without marks would have taken."""
    draw = random.Random("in order")
    agent = await fleet.agent()
    expected = """select id::text from tasks where status = 'Queued' and (run_after is null or run_after <= %s)
                   order by priority desc, created_at, id limit %s"""
    held: list[Any] = []
    for number in range(80):
        fleet.wait(draw.choice((0, 1, 40)))
        later = (fleet.now + timedelta(seconds=60)).isoformat()
        await fleet.submit(
            *({"priority": draw.randint(0, 2)} for _ in range(draw.randint(0, 40))), {"run_after": later}
        )
        batch = draw.randint(1, 40)
        await fleet.maintain(1)  # what is due becomes ready
        wanted = [row["id"] for row in await (await hand.execute(expected.encode(), (fleet.now, batch))).fetchall()]
        claimed = await agent.claim(batch=batch)
        assert [task["id"] for task in claimed] == wanted, f"claim {number}"
        held += claimed
        for _ in range(draw.randint(0, len(held))):
            task = held.pop(draw.randrange(len(held)))
            await draw.choice((agent.complete, agent.complete, agent.fail, agent.release))(task)
    assert (await _one(hand, "select count(*) as n from orchestrator.marks where seen is not null"))["n"] == 1


async def test_a_claim_passes_little_of_what_was_claimed_before_it(
    hand: AsyncConnection[DictRow], fleet: Fleet
) -> None:
    """While another session holds a snapshot, so that nothing dead can be cleared away."""
    agent = await fleet.agent()
    await hand.execute("insert into tasks (task_type) select 't' from generate_series(1, 4000)")
    async with await psycopg.AsyncConnection.connect(hand.info.dsn, password=hand.info.password) as reader:
        await reader.execute("begin isolation level repeatable read")
        await reader.execute("select count(*) from tasks")
        for _ in range(35):
            await agent.claim(batch=100)
        passed = """
            select count(*) as n from orchestrator.live q cross join lateral orchestrator.claim_start('default') m
             where q.state <> 'ready' and (q.place, q.turn, q.created_at, q.task_id)
                                          >= (m.place, m.turn, m.created_at, m.task_id)"""
        assert (await _one(hand, passed))["n"] <= 400


async def test_a_mark_that_is_wrong_costs_a_look_and_no_task(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """A worker is not sent away while a task is ready; the mark is right after it."""
    agent = await fleet.agent()
    await fleet.submit(count=40)
    await agent.claim(batch=40)
    await fleet.submit(count=2)
    await hand.execute(
        """insert into orchestrator.marks (pool, seen, place, turn, created_at, task_id)
           values ('default', pg_current_snapshot(), 2147483647, 0, 'infinity',
                   'ffffffff-ffff-ffff-ffff-ffffffffffff')"""
    )
    assert len(await (await hand.execute(HIDDEN)).fetchall()) == 2
    assert len(await agent.claim()) == 1
    assert await (await hand.execute(HIDDEN)).fetchall() == []
    assert len(await agent.claim()) == 1


async def test_marks_restored_from_another_server_hide_nothing(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Its transactions had other numbers, higher ones perhaps."""
    agent = await fleet.agent()
    await fleet.submit(count=40)
    await agent.claim(batch=40)
    await hand.execute("update orchestrator.marks set seen = '4000000000:4000000000:', xid = '4000000000'")
    await fleet.submit({"priority": 5}, *[{}] * 40)
    assert await (await hand.execute(HIDDEN)).fetchall() == []
    for _ in range(41):
        assert len(await agent.claim()) == 1
    raised = "select min(xid) < '4000000000' as here, count(*) as n from orchestrator.marks where seen is not null"
    assert await _one(hand, raised) == {"here": True, "n": 1}


def _change(draw: random.Random, pool: str) -> bytes:
    of = {"queued": "Queued", "running": "In Progress", "complete": "Complete"}
    ones = {name: ONE.format(status, draw.randrange(1000)) for name, status in of.items()}
    change = draw.choice(CHANGES)
    return change.format(pool=pool, priority=draw.randint(-1, 2), s=draw.randint(0, 50), **ones).encode()


async def _one(hand: AsyncConnection[DictRow], query: str) -> DictRow:
    row = await (await hand.execute(query.encode())).fetchone()
    assert row is not None
    return row
