"""Users' transactions that stay open hold up nobody's work; in whatever order they end, nothing waits for ever."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.states import State
from orchestrator.ports import PortError
from tests.db.conformance.builders import FLEET, Agent, Fleet, result
from tests.db.conformance.consistency import broken

ROUNDS = 12
WIDTH = 12
WAITERS = 100  # insertions, each of which may wait a moment
PATIENCE_S = 20.0  # for what must not wait for an open transaction at all
INSERT = "insert into tasks (task_type, depends_on) values ('t', array[%s::uuid]) returning id"


@pytest.fixture
async def fleet(direct: PostgresDb) -> Fleet:
    """A fleet that we lead; over one transport, since this is about what the database does."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    return fleet


@pytest.fixture
async def other(database: str) -> AsyncIterator[AsyncConnection[DictRow]]:
    """A user's session, whose transactions stay open until it says so."""
    async with await psycopg.AsyncConnection.connect(database, row_factory=dict_row) as connection:
        yield connection
        await connection.rollback()
        await connection.execute("drop table if exists counted")
        await connection.commit()


async def state(fleet: Fleet, task_id: Any) -> tuple[str, bool]:
    """A task's status, and whether it waits for another."""
    row = await fleet.task(str(task_id))
    return row["status"], row["state"] == "waits_for_tasks"


async def end(agent: Agent, task: Any, how: str) -> None:
    """End a running task well or badly."""
    if how == "complete":
        assert await agent.complete(task) == "ok"
    else:
        assert await agent.fail(task, retryable=False) == "failed"


@pytest.mark.parametrize(
    "change",
    [
        "update tasks set status = 'Complete' where task_type = 'own'",
        "update tasks set worker_id = 'x' where task_type = 'own'",
    ],
)
async def test_an_open_change_of_a_programs_task_does_not_hold_up_the_leader(
    fleet: Fleet, hand: AsyncConnection[DictRow], other: AsyncConnection[DictRow], change: str
) -> None:
    """A task that needs it waits, and all others go on."""
    insert = "insert into tasks (task_type, status, worker_id) values ('own', 'In Progress', 'a program') returning id"
    (own,) = await (await hand.execute(insert)).fetchall()
    await hand.execute(INSERT, (own["id"],))
    await hand.execute("insert into orchestrator.rechecks (kind, name) values ('unmet', %s)", (str(own["id"]),))
    await other.execute(change.encode())
    await fleet.submit(run_after=(fleet.now + timedelta(seconds=1)).isoformat())
    fleet.wait(5)
    await fleet.maintain()
    assert len(await (await fleet.agent()).claim(batch=9)) == 1
    await other.commit()
    await fleet.maintain()
    assert await broken(hand) == {}


@pytest.mark.parametrize("how", ["complete", "fail"])
async def test_an_open_insertion_of_a_dependant_holds_up_neither_heartbeat_nor_end(
    fleet: Fleet, other: AsyncConnection[DictRow], how: str
) -> None:
    """And the dependant, of which the end saw nothing, is settled when its transaction commits."""
    agent = await fleet.agent()
    (first,) = await fleet.submit()
    (task,) = await agent.claim()
    await other.execute(INSERT, (first,))
    async with asyncio.timeout(PATIENCE_S):
        await agent.beat({"id": task["id"], "attempt": task["attempt"]})
        await end(agent, task, how)
    (row,) = await (await other.execute("select id from tasks where depends_on <> '{}'")).fetchall()
    await other.commit()
    await fleet.maintain()
    assert await state(fleet, row["id"]) == (("Queued", False) if how == "complete" else ("Failed", False))


async def test_a_task_that_is_inserted_again_has_no_dependency_of_the_deleted_one(
    fleet: Fleet, hand: AsyncConnection[DictRow], other: AsyncConnection[DictRow]
) -> None:
    """Another transaction had locked what the deleted one needed."""
    agent = await fleet.agent()
    (first,) = await fleet.submit()
    (task,) = await agent.claim()
    assert await agent.complete(task) == "ok"
    (second,) = await fleet.submit(depends_on=[first])
    assert len(await agent.claim()) == 1
    await hand.execute("update tasks set status = 'Queued' where id = %s", (first,))
    await fleet.maintain()
    await other.execute("update tasks set status = 'Complete' where id = %s", (first,))
    await hand.execute("delete from tasks where id = %s", (second,))
    await hand.execute("insert into tasks (id, task_type) values (%s, 't')", (second,))
    await other.rollback()
    await fleet.maintain()
    assert await broken(hand) == {}
    (task,) = await agent.claim(batch=1)
    assert task["id"] == first
    await agent.fail(task, retryable=False)
    assert (await fleet.task(second))["status"] == "Queued"


@pytest.mark.parametrize("status", ["Complete", "Failed"])
async def test_an_open_end_does_not_hide_the_dependant_that_was_inserted_meanwhile(
    fleet: Fleet, hand: AsyncConnection[DictRow], other: AsyncConnection[DictRow], status: str
) -> None:
    """The insertion commits first: it saw the dependency running, and the end did not see the dependant."""
    (first,) = await fleet.submit()
    await other.execute("update tasks set status = %s where id = %s", (status, first))
    async with asyncio.timeout(PATIENCE_S):
        (row,) = await (await hand.execute(INSERT, (first,))).fetchall()
        await fleet.snapshot()
    assert await state(fleet, row["id"]) == ("Queued", True)
    await other.commit()
    await fleet.snapshot()
    assert await state(fleet, row["id"]) == ("Queued" if status == "Complete" else "Failed", False)
    assert await broken(hand) == {}


@pytest.mark.parametrize("status", ["Queued", "Failed"])
async def test_a_dependant_inserted_while_a_user_reopens_a_complete_task_waits_for_it(
    fleet: Fleet, hand: AsyncConnection[DictRow], other: AsyncConnection[DictRow], status: str
) -> None:
    """Inserted, or given back by its worker: neither of the two transactions sees the other's change."""
    agent = await fleet.agent()
    first, second = await fleet.submit({}, {"depends_on": ["#0"]})
    (task,) = await agent.claim()
    await agent.complete(task)
    (task,) = await agent.claim()
    await other.execute("update tasks set status = %s where id = %s", (status, first))
    async with asyncio.timeout(PATIENCE_S):
        (row,) = await (await hand.execute(INSERT, (first,))).fetchall()
        assert await agent.release(task) == "ok"
        await fleet.snapshot()
    await other.commit()
    await fleet.snapshot()
    expected = [("Queued", True)] * 2 if status == "Queued" else [("Failed", False)] * 2
    assert [await state(fleet, task_id) for task_id in (second, row["id"])] == expected
    assert await broken(hand) == {}


async def test_a_dependant_whose_insertion_is_open_waits_for_a_task_that_is_reopened_meanwhile(
    fleet: Fleet, hand: AsyncConnection[DictRow], other: AsyncConnection[DictRow]
) -> None:
    """Neither transaction waits for the other one."""
    (first,) = await fleet.submit()
    await hand.execute("update tasks set status = 'Complete' where id = %s", (first,))
    (row,) = await (await other.execute(INSERT, (first,))).fetchall()
    async with asyncio.timeout(PATIENCE_S):
        await hand.execute("update tasks set status = 'Queued' where id = %s", (first,))
    await other.commit()
    await fleet.maintain()
    assert await state(fleet, row["id"]) == ("Queued", True)
    assert await broken(hand) == {}


async def test_an_open_change_of_a_dependant_does_not_hold_up_the_end_of_its_dependency(
    fleet: Fleet, hand: AsyncConnection[DictRow], other: AsyncConnection[DictRow]
) -> None:
    """It is settled afterwards."""
    agent = await fleet.agent()
    _, second = await fleet.submit({}, {"depends_on": ["#0"]})
    (task,) = await agent.claim()
    await other.execute("update tasks set priority = 7 where id = %s", (second,))
    async with asyncio.timeout(PATIENCE_S):
        assert await agent.complete(task) == "ok"
        await fleet.snapshot()
    await other.commit()
    await fleet.snapshot()
    assert await state(fleet, second) == ("Queued", False)
    assert await broken(hand) == {}


async def test_an_open_insertion_holds_up_no_claim_of_its_dependency(
    fleet: Fleet, other: AsyncConnection[DictRow]
) -> None:
    """Nor a rescue or a cancellation of it."""
    agent = await fleet.agent()
    first, second = await fleet.submit(count=2)
    await other.execute(INSERT, (first,))
    await other.execute(INSERT, (second,))
    async with asyncio.timeout(PATIENCE_S):
        assert len(await agent.claim(batch=2)) == 2
        fleet.wait(100)
        await fleet.fleet("rescue", p_worker_id=agent.id)
        assert (await fleet.call("task_cancel", p_id=first))["outcome"] == "cancelled"


async def test_concurrent_cancellations_in_a_diamond_end_all_of_it(
    fleet: Fleet, database: str, hand: AsyncConnection[DictRow]
) -> None:
    """Each of two roots has dependants that are dependencies of the other's: no deadlock, and nothing is left."""
    async with AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(await psycopg.AsyncConnection.connect(database, autocommit=True))
            for _ in range(2)
        ]
        for _ in range(ROUNDS):
            left, right, *_ = await fleet.submit(
                {},
                {},
                *({"depends_on": [f"#{n % 2}"]} for n in range(WIDTH)),
                *({"depends_on": [f"#{2 + n}", f"#{2 + (n + 1) % WIDTH}"]} for n in range(WIDTH)),
                *({"depends_on": [f"#{2 + WIDTH + n}", f"#{(n + 1) % 2}"]} for n in range(WIDTH)),
            )
            await asyncio.gather(
                *(s.execute("select task_cancel(%s)", (i,)) for s, i in zip(sessions, (left, right), strict=True))
            )
            await fleet.maintain(6)
            (row,) = await (await hand.execute("select count(*) as n from tasks where status = 'Queued'")).fetchall()
            assert row["n"] == 0
        assert await broken(hand) == {}


async def test_a_chain_of_which_a_user_changes_one_task_fails_up_to_that_one(
    fleet: Fleet, hand: AsyncConnection[DictRow], other: AsyncConnection[DictRow]
) -> None:
    """The rest follows when the user's transaction has ended, with the causes that it has anyway."""
    ids = await fleet.submit({}, *({"depends_on": [f"#{n}"]} for n in range(9)))
    await other.execute("update tasks set priority = 7 where id = %s", (ids[5],))
    async with asyncio.timeout(PATIENCE_S):
        await fleet.call("task_cancel", p_id=ids[0])
    assert [(await state(fleet, i))[0] for i in ids] == ["Cancelled"] + ["Failed"] * 4 + ["Queued"] * 5
    await other.commit()
    await fleet.maintain(6)
    rows = [await fleet.task(i) for i in ids]
    first = f"Dependency {ids[0]} (t) ended as Cancelled"
    assert [row["error_message"] for row in rows[1:]] == [
        first, *(f"Dependency {i} (t) ended as Failed: {first}" for i in ids[1:9])
    ]  # fmt: skip
    assert await broken(hand) == {}


async def test_transactions_that_cancel_in_opposite_orders_do_not_wait_for_each_others_dependants(
    fleet: Fleet, database: str, hand: AsyncConnection[DictRow]
) -> None:
    """Each holds what the other one's cascade needs; neither fails, and the rest follows when both have ended."""
    left, right, *_ = await fleet.submit(
        {}, {}, {"depends_on": ["#0"]}, {"depends_on": ["#1"]}, {"depends_on": ["#2", "#3"]}
    )
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(await psycopg.AsyncConnection.connect(database)) for _ in range(2)]
        cancel = "update tasks set status = 'Cancelled' where id = %s"
        async with asyncio.timeout(PATIENCE_S):
            await one.execute(cancel, (left,))
            await two.execute(cancel, (right,))
            await one.commit()
            await two.commit()
    await fleet.maintain(6)
    (row,) = await (await hand.execute("select count(*) as n from tasks where status = 'Queued'")).fetchall()
    assert row["n"] == 0
    assert await broken(hand) == {}


@pytest.mark.parametrize(
    ("write", "outcome"),
    [
        ("update tasks set status = 'Cancelled' where id = %s", "cancelled"),
        ("update tasks set status = 'Queued', worker_id = null where id = %s", "lost"),
        ("update tasks set status = 'Complete' where id = %s", "complete"),
        ("update tasks set status = 'Failed' where id = %s", "failed"),
        ("update tasks set worker_id = 'somebody' where id = %s", "lost"),
        ("delete from tasks where id = %s", "lost"),
        ("with all_of_them as (select %s) select from all_of_them", None),
    ],
)
async def test_a_users_write_closes_the_attempt_of_the_worker_that_held_the_task(
    fleet: Fleet, hand: AsyncConnection[DictRow], write: str, outcome: str | None
) -> None:
    """And says so; a write that leaves the worker its task leaves it open."""
    agent = await fleet.agent()
    (task_id,) = await fleet.submit()
    await agent.claim()
    await hand.execute(write.encode(), (task_id,))
    query = "select outcome, ended_at, message from task_attempts where task_id = %s"
    (row,) = await (await hand.execute(query, (task_id,))).fetchall()
    assert (row["outcome"], row["ended_at"] is None) == (outcome, outcome is None)
    assert bool(row["message"]) == bool(outcome)


async def test_a_truncation_closes_all_attempts(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Nothing is held any more."""
    agent = await fleet.agent()
    await fleet.submit(count=3)
    await agent.claim(batch=3)
    await hand.execute("truncate tasks")
    rows = await (await hand.execute("select outcome from task_attempts")).fetchall()
    assert [row["outcome"] for row in rows] == ["lost"] * 3


async def test_a_transaction_of_many_insertions_does_not_wait_for_each(
    fleet: Fleet, hand: AsyncConnection[DictRow], other: AsyncConnection[DictRow]
) -> None:
    """Another transaction holds what they depend on. Neither does each of many transactions wait."""
    (first,) = await fleet.submit()
    await other.execute("select from tasks where id = %s for no key update", (first,))
    async with asyncio.timeout(PATIENCE_S):
        async with hand.transaction():
            for _ in range(WAITERS):
                await hand.execute(INSERT, (first,))
        for _ in range(WAITERS):
            await hand.execute(INSERT, (first,))
    await other.execute("update tasks set status = 'Complete' where id = %s", (first,))
    await other.commit()
    for _ in range(ROUNDS):
        await fleet.snapshot()
    assert (await fleet.snapshot())["demand"][0]["claimable"] == 2 * WAITERS
    assert await broken(hand) == {}


async def test_an_open_change_of_a_running_task_makes_its_worker_neither_silent_nor_fenced(
    fleet: Fleet, other: AsyncConnection[DictRow]
) -> None:
    """Somebody forgets to commit. The task is not given to another worker when its lease ends, and not when they do."""
    agent = await fleet.agent()
    await fleet.submit(count=2)
    held, free = await agent.claim(batch=2)
    await other.execute("update tasks set priority = 5 where id = %s", (held["id"],))
    for _ in range(4):
        fleet.wait(20)
        beat = await asyncio.wait_for(agent.beat(held, free), PATIENCE_S)
        assert (beat["outcome"], beat["fenced"]) == ("ok", [])
        assert await fleet.fleet("rescue_overdue", p_over_s=0) == {"tasks": []}
    row = (await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=agent.id))["worker"]
    assert datetime.fromisoformat(row["last_heartbeat"]) == fleet.now
    assert [await asyncio.wait_for(agent.complete(task), PATIENCE_S) for task in (held, free)] == ["pending", "ok"]
    await agent.beat(held)
    await other.commit()
    assert await agent.complete(held) == "ok"


async def test_a_locked_task_of_a_worker_that_falls_silent_is_rescued(
    fleet: Fleet, other: AsyncConnection[DictRow]
) -> None:
    """One lease after its last heartbeat, once the other transaction has ended."""
    agent = await fleet.agent()
    await fleet.submit()
    (held,) = await agent.claim()
    await other.execute("update tasks set priority = 5")
    fleet.wait(50)
    await agent.beat(held)
    await other.commit()
    fleet.wait(59)
    assert await fleet.fleet("rescue_overdue", p_over_s=0) == {"tasks": []}
    fleet.wait(2)
    (rescued,) = (await fleet.fleet("rescue_overdue", p_over_s=0))["tasks"]
    assert rescued["outcome"] == "requeued"


@pytest.mark.parametrize("how", ["move", "rescue"])
async def test_a_locked_task_of_a_worker_that_is_gone_holds_up_neither_its_end_nor_its_other_tasks(
    fleet: Fleet, other: AsyncConnection[DictRow], hand: AsyncConnection[DictRow], how: str
) -> None:
    """Somebody forgets to commit. The task is rescued as any other one without a lease, once they have."""
    agent = await fleet.agent()
    await fleet.submit(count=3)
    tasks = await agent.claim(batch=3)
    await agent.beat(*tasks)
    _, held, _ = sorted(task["id"] for task in tasks)
    await other.execute("update tasks set priority = 5 where id = %s", (held,))
    fleet.wait(61)
    await fleet.end(agent.id, State.ACTIVE, ExitCause.HEARTBEAT_LOST)
    async with asyncio.timeout(PATIENCE_S):
        if how == "move":
            await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
        else:
            assert len((await fleet.fleet("rescue", p_worker_id=agent.id))["tasks"]) == 2
    found = {task["id"]: (await fleet.task(task["id"]))["status"] for task in tasks}
    assert found == {task["id"]: "In Progress" if task["id"] == held else "Queued" for task in tasks}
    assert await fleet.fleet("rescue_overdue", p_over_s=0) == {"tasks": []}
    await other.commit()
    (rescued,) = (await fleet.fleet("rescue_overdue", p_over_s=0))["tasks"]
    assert (rescued["id"], rescued["outcome"]) == (held, "requeued")
    assert await broken(hand) == {}


async def test_a_locked_task_keeps_no_other_one_from_moving_to_another_pool(
    fleet: Fleet, other: AsyncConnection[DictRow]
) -> None:
    """A forgotten transaction holds one of many tasks of a type whose pool has changed."""
    ids = await fleet.submit(count=64)
    await other.execute("update tasks set priority = 1 where id = %s", (ids[20],))
    types = [{"task_type": "t", "pool": "large"}]
    answer = await asyncio.wait_for(fleet.fleet("declare_pools", p_pools=types), PATIENCE_S)
    assert answer["declared"] == 1
    await other.rollback()
    await fleet.maintain()
    assert [(await fleet.task(one))["pool"] for one in ids] == ["large"] * 64


async def test_a_users_row_that_names_a_worker_holds_up_no_call_of_it(
    fleet: Fleet, hand: AsyncConnection[DictRow], other: AsyncConnection[DictRow]
) -> None:
    """A foreign key of an open transaction locks the worker's key, which no call changes."""
    agent = await fleet.agent()
    await fleet.submit()
    await hand.execute("create table counted (worker_id text references workers (id))")
    await other.execute("insert into counted values (%s)", (agent.id,))
    async with asyncio.timeout(PATIENCE_S):
        (task,) = await agent.claim()
        await agent.beat(task)
        assert await agent.complete(task) == "ok"
        await fleet.move(agent.id, State.ACTIVE, metadata={"a": "b"})


async def test_a_claim_and_a_change_of_its_worker_do_not_wait_for_each_other(
    fleet: Fleet, other: AsyncConnection[DictRow], hand: AsyncConnection[DictRow]
) -> None:
    """A change of a worker locks it, and then its launch. So does a claim that makes an idle worker active."""
    agent = await fleet.agent()
    await agent.claim()
    await fleet.submit()
    assert await fleet.status(agent.id) == "idle"
    await other.execute("select from workers where id = %s for no key update", (agent.id,))
    claim = asyncio.create_task(agent.claim())
    waiting = "select from pg_stat_activity where wait_event_type = 'Lock'"
    async with asyncio.timeout(PATIENCE_S):
        while not await (await hand.execute(waiting)).fetchall():
            await asyncio.sleep(0.01)
        await other.execute("update workers set log_bytes = jsonb_build_object(nonce, '{}'::jsonb)")
        await other.commit()
        assert len(await claim) == 1


async def test_a_claim_that_finds_nothing_does_not_wait_for_a_change_of_its_worker(
    fleet: Fleet, other: AsyncConnection[DictRow]
) -> None:
    """It leaves the worker active; the next one makes it idle."""
    agent = await fleet.agent()
    await fleet.submit()
    (task,) = await agent.claim()
    await agent.complete(task)
    await other.execute("select from workers where id = %s for no key update", (agent.id,))
    async with asyncio.timeout(PATIENCE_S):
        assert await agent.claim() == []
        await other.commit()
        assert await fleet.status(agent.id) == "active"
        assert await agent.claim() == []
    assert await fleet.status(agent.id) == "idle"


ENDS = {
    "complete": lambda agent, task: agent.complete(task),
    "complete_many": lambda agent, task: agent.complete_many(result(task)),
    "fail": lambda agent, task: agent.fail(task, retryable=False),
    "release": lambda agent, task: agent.release(task),
}
ENDED = ("ok", ["ok"], "failed")


@pytest.mark.parametrize("how", ENDS)
async def test_a_dependency_that_an_open_transaction_takes_back_holds_up_no_end(
    fleet: Fleet, hand: AsyncConnection[DictRow], other: AsyncConnection[DictRow], how: str
) -> None:
    """The dependant that runs ends, and nothing is left of what it needed."""
    agent = await fleet.agent()
    (first,) = await fleet.submit()
    (task,) = await agent.claim()
    assert await agent.complete(task) == "ok"
    await fleet.submit({"depends_on": [first]})
    (dependant,) = await agent.claim()
    await other.execute("update tasks set status = 'Queued' where id = %s", (first,))
    async with asyncio.timeout(PATIENCE_S):
        assert await ENDS[how](agent, dependant) in ENDED
    await other.commit()
    await fleet.maintain()
    edges = await (await hand.execute("select from orchestrator.edges")).fetchall()
    assert len(edges) == (how == "release")
    assert await broken(hand) == {}


TABLE_LOCKS = {"it is locked": "lock table tasks in access exclusive mode", "it is emptied": "truncate tasks"}


@pytest.mark.parametrize("why", TABLE_LOCKS)
@pytest.mark.parametrize("how", ENDS)
async def test_a_table_that_an_open_transaction_locks_stops_no_call(
    fleet: Fleet, hand: AsyncConnection[DictRow], other: AsyncConnection[DictRow], how: str, why: str
) -> None:
    """Heartbeats go on, and no call waits for long. An end counts, or its agent repeats it: nothing is lost."""
    agent = await fleet.agent()
    await fleet.submit(count=2)
    (task,) = await agent.claim()
    await other.execute(TABLE_LOCKS[why].encode())
    async with asyncio.timeout(PATIENCE_S):
        answer = await agent.beat({"id": task["id"], "attempt": task["attempt"]})
        assert (answer["outcome"], answer["fenced"]) == ("ok", [])
        with contextlib.suppress(PortError):
            await ENDS[how](agent, task)
        with contextlib.suppress(PortError):
            await agent.claim()
        with contextlib.suppress(PortError):
            await fleet.maintain()
    await other.rollback()
    fleet.wait(5)
    await fleet.maintain()
    if await state(fleet, task["id"]) == ("In Progress", False):
        assert await ENDS[how](agent, task) in ENDED
    wanted = {"fail": "Failed", "release": "Queued"}.get(how, "Complete")
    assert await state(fleet, task["id"]) == (wanted, False)
    assert await broken(hand) == {}


async def test_a_locked_table_holds_up_no_heartbeat_of_a_fleet_without_a_leader(
    fleet: Fleet, other: AsyncConnection[DictRow]
) -> None:
    """Which does the leader's work on the queue."""
    agent = await fleet.agent()
    await fleet.submit(count=2)
    (task,) = await agent.claim()
    await fleet.submit(run_after="2000-01-01T00:00:00Z")
    await fleet.call("fleet_lead", p_fleet=FLEET, p_holder="us", p_ttl_s=1)
    fleet.wait(5)
    await other.execute("lock table tasks in access exclusive mode")
    async with asyncio.timeout(PATIENCE_S):
        answer = await agent.beat({"id": task["id"], "attempt": task["attempt"]})
    assert (answer["outcome"], answer["led"], answer["fenced"]) == ("ok", False, [])
