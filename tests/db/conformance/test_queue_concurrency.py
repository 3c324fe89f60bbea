"""Concurrency keys and limits of types: never more valid leases than allowed, and no fewer than there is work for."""

import asyncio
import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.ports import BadArgument, NotLeader
from tests.db.conformance.builders import Agent, Ear, Fleet, limit
from tests.db.conformance.consistency import consistent

Hand = AsyncConnection[DictRow]
LEASE_S = 60


async def demand(fleet: Fleet) -> tuple[int, int]:
    """Ready tasks, and those that wait for a limit."""
    (row,) = (await fleet.snapshot())["demand"]
    return row["claimable"], row["blocked"]["concurrency"]


async def ids(agent: Agent, batch: int = 100) -> list[str]:
    """What a claim brings."""
    return [task["id"] for task in await agent.claim(batch=batch)]


async def test_a_key_runs_once_at_a_time_unless_its_limit_says_otherwise(fleet: Fleet, hand: Hand) -> None:
    """In the order of priority and age; the others are not demand."""
    sent = await fleet.submit(count=5, concurrency_key="k")
    agent = await fleet.agent()
    assert await demand(fleet) == (1, 4)
    (first,) = await agent.claim(batch=100)
    assert first["id"] == sent[0]
    assert await demand(fleet) == (0, 4)
    assert await agent.claim(batch=100) == []
    assert await agent.complete(first) == "ok"
    assert await demand(fleet) == (1, 3)
    await limit(fleet, "k", 3)
    assert await ids(agent) == sent[1:4]
    await limit(fleet, "k", 0)
    assert await demand(fleet) == (0, 1)
    await limit(fleet, "k", None)
    assert await demand(fleet) == (0, 1)
    await consistent(hand)


async def test_a_type_has_no_limit_until_one_is_set(fleet: Fleet, hand: Hand) -> None:
    """And it counts all tasks of the type, those with a key as well."""
    await fleet.submit(count=6)
    fleet.wait(1)
    await fleet.submit(count=6, task_type="other", concurrency_key="k")
    agent = await fleet.agent()
    running = await agent.claim(batch=2)
    await limit(fleet, "t", 3, "type")
    assert await demand(fleet) == (2, 8)
    assert len(await ids(agent)) == 2
    await agent.complete(running[0])
    assert len(await ids(agent)) == 1
    await limit(fleet, "t", None, "type")
    assert len(await ids(agent)) == 2
    await consistent(hand)


async def test_a_task_may_have_two_limits(fleet: Fleet, hand: Hand) -> None:
    """It runs if both allow it, and what waits for one does not stop the others."""
    await limit(fleet, "t", 2, "type")
    first = await fleet.submit(count=3, concurrency_key="a")
    fleet.wait(1)
    second = await fleet.submit(count=1, concurrency_key="b")
    agent = await fleet.agent()
    claimed = await agent.claim(batch=10)
    assert [task["id"] for task in claimed] == [first[0], second[0]]
    await agent.complete(claimed[1])
    assert await ids(agent) == []
    await agent.complete(claimed[0])
    assert await ids(agent) == [first[1]]
    await consistent(hand)


async def test_a_task_that_waits_for_its_type_keeps_the_place_of_its_key(fleet: Fleet, hand: Hand) -> None:
    """Otherwise two tasks of the key run once the type has a place."""
    await limit(fleet, "t", 1, "type")
    agent = await fleet.agent()
    await fleet.submit()
    (task,) = await agent.claim()
    (first,) = await fleet.submit(concurrency_key="a")
    (second,) = await fleet.submit({"task_type": "u"}, concurrency_key="a")
    await consistent(hand)
    assert await ids(agent) == []
    assert await agent.complete(task) == "ok"
    (task,) = await agent.claim(batch=100)
    assert task["id"] == first
    assert await agent.complete(task) == "ok"
    assert await ids(agent) == [second]


@pytest.mark.parametrize("end", ["complete", "fail", "release", "cancel", "delete", "complete_many"])
async def test_whatever_ends_a_task_lets_in_the_next_one(fleet: Fleet, hand: Hand, end: str) -> None:
    """In the same transaction."""
    first, second, *_ = await fleet.submit(count=3, concurrency_key="k", max_attempts=1)
    agent = await fleet.agent()
    (task,) = await agent.claim()
    if end == "complete":
        await agent.complete(task)
    elif end == "fail":
        await agent.fail(task, code="OOM")
    elif end == "release":
        await agent.release(task)
        second = first
    elif end == "cancel":
        await fleet.call("task_cancel", p_id=first)
        await agent.fail(task, code="CANCELLED")
    elif end == "delete":
        await hand.execute("delete from tasks where id = %s", (first,))
    else:
        await agent.complete_many({"task_id": first, "attempt": task["attempt"], "result_data": None})
    assert await ids(agent) == [second]
    await consistent(hand)


async def test_a_worker_waiting_for_a_task_is_notified_at_once(direct: PostgresDb, fleet: Fleet, hand: Hand) -> None:
    """A key that is free again wakes a pool in which a worker has no task."""
    ear = Ear(direct)
    try:
        await ear.until(("connected", ""))
        await fleet.submit(count=2, concurrency_key="k", pool="quiet")
        agent, idle = await fleet.agent(pool="quiet"), await fleet.agent(pool="quiet")
        (task,) = await agent.claim()
        assert await idle.claim() == []
        await ear.forget(hand)
        await agent.complete(task)
        await ear.until(("orchestrator_tasks", "quiet"))
    finally:
        await ear.close()


async def test_an_expired_lease_keeps_its_place_until_its_task_is_rescued(fleet: Fleet, hand: Hand) -> None:
    """So it can always be renewed; and what the worker did although another one has the task now is not accepted."""
    await fleet.submit(count=2, concurrency_key="k")
    late, other = await fleet.agent(), await fleet.agent()
    (old,) = await late.claim()
    for _ in range(2):
        fleet.wait(LEASE_S + 1)
        await fleet.maintain()
        assert await other.claim() == []
        await late.beat(old)
        assert (await fleet.task(old["id"]))["lease_expires_at"] > fleet.now.isoformat()
    fleet.wait(LEASE_S + 1)
    await fleet.fleet("rescue_overdue", p_over_s=0)
    (new,) = await other.claim()
    assert (await late.beat(old))["fenced"] == [old["id"]]
    assert await other.claim() == []
    assert await late.complete(old) == "fenced"
    await other.complete(new)
    await consistent(hand)


async def test_dependants_and_later_tasks_wait_for_their_limit_too(fleet: Fleet, hand: Hand) -> None:
    """When they become ready, not before."""
    (needed,) = await fleet.submit()
    waiting = await fleet.submit(count=2, concurrency_key="k", depends_on=[needed])
    later = (fleet.now + timedelta(seconds=30)).isoformat()
    await fleet.submit(concurrency_key="k", run_after=later)
    agent = await fleet.agent()
    (task,) = await agent.claim(batch=10)
    await agent.complete(task)
    fleet.wait(31)
    await fleet.maintain()
    got: list[str] = []
    while claimed := await agent.claim(batch=10):
        assert len(claimed) == 1
        got.append(claimed[0]["id"])
        await agent.complete(claimed[0])
    assert len(got) == 3
    assert set(waiting) <= set(got)
    await consistent(hand)


USERS_WRITES = {
    "bulk cancel": "update tasks set status = 'Cancelled' where status = 'Queued' and random() < 0.3",
    "delete": "delete from tasks where random() < 0.2",
    "another key": "update tasks set concurrency_key = 'b' where status = 'Queued' and random() < 0.5",
    "no key": "update tasks set concurrency_key = null where status = 'Queued' and random() < 0.3",
    "started by hand": "update tasks set status = 'In Progress', attempts = attempts + 1 where status = 'Queued' "
    "and random() < 0.1",
    "queued again": "update tasks set status = 'Queued', worker_id = null where status = 'In Progress'",
    "triggers off": "set session_replication_role = replica; "
    "update tasks set status = 'Cancelled' where random() < 0.3; "
    "insert into tasks (task_type, concurrency_key) select 't', 'k' from generate_series(1, 5); "
    "set session_replication_role = origin",
}


@pytest.mark.parametrize("write", USERS_WRITES.values(), ids=USERS_WRITES)
async def test_writes_of_users_break_no_limit_and_lose_no_task(fleet: Fleet, hand: Hand, write: str) -> None:
    """The audit finds what was done without triggers."""
    await limit(fleet, "k", 2)
    await fleet.submit(count=20, concurrency_key="k")
    agent = await fleet.agent()
    await agent.claim()
    await hand.execute(write.encode())
    await consistent(hand)
    for _ in range(60):
        await agent.claim(batch=10)
        query = """select count(*) as n from tasks where status = 'In Progress' and concurrency_key = %s
                      and worker_id is not null"""
        for key, most in (("k", 2), ("b", 1)):
            (row,) = await (await hand.execute(query, (key,))).fetchall()
            assert row["n"] <= most
        await hand.execute("update tasks set status = 'Complete' where status = 'In Progress'")
    (row,) = await (await hand.execute("select count(*) as n from tasks where status = 'Queued'")).fetchall()
    assert row["n"] == 0


async def test_a_postponed_task_does_not_wait_for_a_limit_that_was_removed_meanwhile(fleet: Fleet, hand: Hand) -> None:
    """It waited for its type when it was postponed. When its time has come, there is no limit that could let it in."""
    await limit(fleet, "t", 1, "type")
    later = (fleet.now + timedelta(seconds=30)).isoformat()
    first, second = await fleet.submit(count=2)
    await hand.execute("update tasks set run_after = %s where id = %s", (later, second))
    await limit(fleet, "t", None, "type")
    fleet.wait(60)
    await fleet.maintain()
    assert sorted(await ids(await fleet.agent())) == sorted([first, second])
    await consistent(hand)


async def test_a_limit_that_is_removed_lets_in_all_that_waited(direct: PostgresDb, hand: Hand) -> None:
    """One call lets in 10,000 tasks, and the next seconds of the leader the rest."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    await limit(fleet, "t", 1, "type")
    await hand.execute("insert into tasks (task_type) select 't' from generate_series(1, 10500)")
    await limit(fleet, "t", None, "type")
    await fleet.maintain()
    ready = "select count(*) as n from orchestrator.live where state = 'ready'"
    assert await (await hand.execute(ready)).fetchall() == [{"n": 10_500}]
    await hand.execute("truncate tasks")


async def test_a_task_says_which_limit_it_waits_for(fleet: Fleet) -> None:
    """Key or type, and how much of it is in use."""
    await fleet.submit(count=2, concurrency_key="k")
    agent = await fleet.agent()
    await agent.claim()
    found = await fleet.call("task_find", p_filter={"status": ["Queued"]}, p_limit=10, p_full=False)
    waits = {"kind": "limit", "scope": "key", "name": "k", "most": 1, "running": 1, "next": None}
    assert found["tasks"][0]["waits"] == waits
    (row,) = (await fleet.call("task_limits"))["limits"]
    assert row == {"scope": "key", "name": "k", "most": 1, "is_set": False, "running": 1, "ready": 0, "waiting": 1}


async def test_a_task_that_is_not_due_keeps_no_other_one_waiting(fleet: Fleet, hand: Hand) -> None:
    """Not when it is submitted, and not while it waits for its next attempt."""
    later = (fleet.now + timedelta(hours=1)).isoformat()
    (timed,) = await fleet.submit(concurrency_key="k", run_after=later)
    first, second = await fleet.submit(count=2, concurrency_key="k")
    assert await demand(fleet) == (1, 1)
    agent = await fleet.agent()
    (task,) = await agent.claim(batch=9)
    assert task["id"] == first
    await agent.fail(task, code="OOM")
    assert (await fleet.task(first))["run_after"], "it has another attempt later"
    assert await ids(agent) == [second]
    fleet.wait(3601)
    await hand.execute("update tasks set status = 'Complete' where id = %s", (second,))
    await fleet.snapshot()
    assert (await ids(agent))[0] in (first, timed)
    await consistent(hand)


@pytest.mark.parametrize("scope", ["key", "type"])
async def test_a_task_that_was_let_in_and_then_postponed_waits_for_its_limit_again(
    fleet: Fleet, hand: Hand, scope: str
) -> None:
    """Its place went to the next one, so it is no demand when its time has come."""
    fleet.now = datetime.now(UTC)  # as users' statements have it
    fleet.term = (await fleet.lead())["term"]
    await limit(fleet, "t", 1, "type")
    first, second = await fleet.submit(count=2, **({"concurrency_key": "k"} if scope == "key" else {}))
    at = fleet.now + timedelta(seconds=30)
    await hand.execute("update tasks set run_after = %s where id = %s", (at, first))
    assert await demand(fleet) == (1, 0)
    fleet.wait(60)
    assert await demand(fleet) == (1, 1)
    agent = await fleet.agent()
    assert await ids(agent) == [second]
    await consistent(hand)


@pytest.mark.parametrize("end", ["complete", "release"])
async def test_a_running_task_keeps_its_places_until_its_attempt_ends(fleet: Fleet, hand: Hand, end: str) -> None:
    """Its program works with what its first key stands for, whatever a user writes meanwhile."""
    await limit(fleet, "u", 1, "type")
    (moved,) = await fleet.submit(concurrency_key="a", priority=1)
    agent = await fleet.agent()
    (task,) = await agent.claim()
    (same,) = await fleet.submit(concurrency_key="a")
    await hand.execute(
        "update tasks set concurrency_key = 'b', task_type = 'u', pool = 'second', priority = 2 where id = %s", (moved,)
    )
    assert await demand(fleet) == (0, 1)
    assert await ids(agent) == []
    await consistent(hand)
    assert await ids(agent) == []
    assert await (agent.complete(task) if end == "complete" else agent.release(task)) == "ok"
    assert await ids(agent) == [same]
    second = await fleet.agent(pool="second")
    assert await ids(second) == ([] if end == "complete" else [moved])
    await consistent(hand)


async def test_a_running_task_of_which_a_user_changes_the_type_keeps_the_place_of_its_first_one(
    fleet: Fleet, hand: Hand
) -> None:
    """Its program still does what the first type stands for."""
    await limit(fleet, "t", 1, "type")
    (moved,) = await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim()
    (same,) = await fleet.submit()
    await hand.execute("update tasks set task_type = 'u', priority = 2 where id = %s", (moved,))
    await consistent(hand)
    assert await ids(agent) == []
    assert await agent.complete(task) == "ok"
    assert await ids(agent) == [same]


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
async def test_a_task_that_a_user_starts_again_takes_a_place_of_its_type(fleet: Fleet, hand: Hand, end: str) -> None:
    """Whoever wrote the row, as many leases are valid as the limit allows."""
    await limit(fleet, "t", 1, "type")
    await fleet.submit(max_attempts=1)
    agent = await fleet.agent()
    (task,) = await agent.claim()
    if end == "complete":
        await agent.complete(task)
    elif end == "fail":
        await agent.fail(task, code="OOM")
    else:
        await hand.execute("update tasks set status = 'Cancelled' where id = %s", (task["id"],))
    again = "update tasks set status = 'In Progress' where id = %s"
    await hand.execute(again, (task["id"],))
    (other,) = await fleet.submit()
    assert await ids(agent) == []
    assert await demand(fleet) == (0, 1)
    await hand.execute("update tasks set status = 'Complete' where id = %s", (task["id"],))
    assert await ids(agent) == [other]
    await consistent(hand)


async def test_tasks_that_did_not_see_the_limit_of_their_type_are_counted_a_second_later(
    fleet: Fleet, database: str, hand: Hand
) -> None:
    """Their transactions were open for long when it was set: one that claimed, and one that submitted with keys."""
    await fleet.submit(count=2)
    early, agent = await fleet.agent(), await fleet.agent()
    opened = [await _connect(database, autocommit=False) for _ in range(2)]
    async with opened[0] as claiming, opened[1] as submitting:
        await claiming.execute("select worker_claim(%s, %s, 1, 1, 0, %s)", (early.id, early.nonce, fleet.now))
        await submitting.execute(
            "insert into tasks (task_type, concurrency_key) select 't', i from generate_series(1, 3) i"
        )
        await limit(fleet, "t", 1, "type")
        await claiming.commit()
        await submitting.commit()
    assert await demand(fleet) == (0, 4)
    assert await ids(agent) == []
    await hand.execute("update tasks set status = 'Complete' where status = 'In Progress'")
    for left in range(3, -1, -1):
        assert await demand(fleet) == (1, left)
        assert len(await ids(agent)) == 1
        await hand.execute("update tasks set status = 'Complete' where status = 'In Progress'")
    await consistent(hand)


async def test_two_places_that_are_freed_at_once_of_an_exceeded_limit_are_filled(
    fleet: Fleet, database: str, hand: Hand
) -> None:
    """Neither transaction sees the other one's place as free: the next snapshot counts again."""
    await limit(fleet, "k", 2)
    await fleet.submit(count=3, concurrency_key="k")
    agent = await fleet.agent()
    one, two = await agent.claim(batch=3)
    await limit(fleet, "k", 1)
    ended = "update tasks set status = 'Complete' where id = %s"
    opened = [await _connect(database, autocommit=False) for _ in range(2)]
    async with opened[0] as first, opened[1] as second:
        await first.execute(ended, (one["id"],))
        await second.execute(ended, (two["id"],))
        await first.commit()
        await second.commit()
    assert await demand(fleet) == (1, 0)
    await consistent(hand)


async def test_a_place_that_is_freed_while_another_transaction_begins_to_wait_for_it_is_filled(
    fleet: Fleet, database: str, hand: Hand
) -> None:
    """One sees nobody wait, and the other one sees no place."""
    await fleet.submit(concurrency_key="k")
    agent = await fleet.agent()
    (task,) = await agent.claim()
    opened = [await _connect(database, autocommit=False) for _ in range(2)]
    async with opened[0] as freeing, opened[1] as waiting:
        await freeing.execute("update tasks set status = 'Complete' where id = %s", (task["id"],))
        await waiting.execute("insert into tasks (task_type, concurrency_key) values ('t', 'k')")
        await freeing.commit()
        await waiting.commit()
    assert await demand(fleet) == (1, 0)
    await consistent(hand)


async def test_a_killed_session_takes_its_claim_with_it(fleet: Fleet, database: str, hand: Hand) -> None:
    """The place is free again for the next claim, and nothing else is."""
    first, _ = await fleet.submit(count=2, concurrency_key="k")
    dying, agent = await fleet.agent(), await fleet.agent()
    connection = await _connect(database, autocommit=False)
    await connection.execute("select worker_claim(%s, %s, 1, 9, 0, %s)", (dying.id, dying.nonce, fleet.now))
    assert await ids(agent) == []
    await _kill(database, connection.info.backend_pid)
    with pytest.raises(psycopg.OperationalError):
        await connection.execute("select 1")
    while not (claimed := await ids(agent)):  # until the server has rolled the killed transaction back
        await asyncio.sleep(0)
    assert claimed == [first]
    await consistent(hand)


@pytest.mark.parametrize("key", ["", "x" * 201, "x" * 2**20, "a\u0001", 5])
async def test_a_bad_key_is_refused(fleet: Fleet, hand: Hand, key: Any) -> None:
    """Through the function and through SQL."""
    with pytest.raises(BadArgument, match="concurrency_key"):
        await fleet.submit(concurrency_key=key)
    if isinstance(key, str):
        with pytest.raises(psycopg.Error, match="concurrency_key"):
            await hand.execute("insert into tasks (task_type, concurrency_key) values ('t', %s)", (key,))


@pytest.mark.parametrize(
    ("scope", "name", "most"),
    [("pool", "x", 1), ("key", "", 1), ("key", "x" * 201, 1), ("type", "x", -1), ("key", "x", 10**6)],
)
async def test_a_bad_limit_is_refused(fleet: Fleet, scope: str, name: str, most: int) -> None:
    """Before it is in a table."""
    with pytest.raises(BadArgument):
        await limit(fleet, name, most, scope)


async def test_an_open_transaction_delays_no_process_for_long(fleet: Fleet, hand: Hand) -> None:
    """Who cannot lock a limit leaves it to the leader, who lets the task through a second later."""
    agent = await fleet.agent()
    async with hand.transaction():
        await hand.execute("select orchestrator.lock_limits('key', array['k'])")
        async with asyncio.timeout(30):
            await fleet.submit(count=2, concurrency_key="k")
            assert await agent.claim() == []
    await fleet.maintain()
    assert len(await agent.claim(batch=2)) == 1


@pytest.mark.parametrize("types", [False, True])
async def test_a_waiting_task_that_was_locked_is_admitted_afterwards(fleet: Fleet, hand: Hand, types: bool) -> None:
    """A user's open transaction changes it when its key becomes free; the leader lets it in a second later."""
    if types:
        await limit(fleet, "another", 1, "type")
    _, second = await fleet.submit(count=2, concurrency_key="k")
    agent = await fleet.agent()
    (task,) = await agent.claim()
    async with hand.transaction():
        await hand.execute("update tasks set priority = 5 where id = %s", (second,))
        assert await agent.complete(task) == "ok"
    assert await agent.claim() == []
    await fleet.maintain()
    assert await ids(agent) == [second]


CLAIMERS = 32
MOST = {"a": 1, "b": 3, "c": 7}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
async def test_32_claimers_never_hold_more_than_the_limits_allow(
    direct: PostgresDb, database: str, hand: Hand, seed: int
) -> None:
    """Connections are killed before the commit of a claim; in the end every task is done."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    for key, most in MOST.items():
        await limit(fleet, key, most)
    await limit(fleet, "t", 9, "type")
    agents = [await fleet.agent() for _ in range(CLAIMERS)]
    for key in MOST:
        await fleet.submit(count=30, concurrency_key=key)
    done = asyncio.Event()
    worst: list[str] = []
    watching = asyncio.create_task(_watch(database, fleet, done, worst))
    await asyncio.gather(*(_work(database, fleet, agent, random.Random(f"{seed} {agent.id}")) for agent in agents))
    done.set()
    await watching
    assert worst == []
    (row,) = await (await hand.execute("select count(*) as n from tasks where status <> 'Complete'")).fetchall()
    assert row["n"] == 0
    await consistent(hand)


async def _work(url: str, fleet: Fleet, agent: Agent, draw: random.Random) -> None:
    """Claim and complete until the queue is empty; now and then the connection is killed before the commit."""
    number = 0
    connection = await _connect(url)
    while True:
        number += 1
        try:
            async with connection.transaction():
                args = (agent.id, agent.nonce, number, draw.randint(1, 4), fleet.now)
                query = "select worker_claim(%s, %s, %s, %s, 0, %s) as it"
                (row,) = await (await connection.execute(query, args)).fetchall()
                if draw.random() < 0.05:
                    await _kill(url, connection.info.backend_pid)
        except psycopg.OperationalError:
            connection = await _connect(url)
            continue
        tasks: Sequence[Any] = row["it"]["tasks"]
        for task in tasks:
            result = (agent.id, agent.nonce, uuid.UUID(task["id"]), task["attempt"], fleet.now)
            query = "select worker_complete(%s, %s, %s, %s, null, null, %s)->>'outcome' as it"
            while (await (await connection.execute(query, result)).fetchall())[0]["it"] == "pending":
                await asyncio.sleep(0)  # another session looks at its row
        if not tasks:
            await connection.execute("select orchestrator.maintain(clock_timestamp())")
            (row,) = await (
                await connection.execute("select exists (select from tasks where status = 'Queued') as it")
            ).fetchall()
            if not row["it"]:
                await connection.close()
                return


async def _connect(url: str, *, autocommit: bool = True) -> Hand:
    return await psycopg.AsyncConnection.connect(url, autocommit=autocommit, row_factory=dict_row)


async def _kill(url: str, pid: int) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
        await other.execute("select pg_terminate_backend(%s)", (pid,))


async def _watch(url: str, fleet: Fleet, done: asyncio.Event, worst: list[str]) -> None:
    """Look at the leases of each key and of the type in one snapshot, all the time."""
    query = "select concurrency_key as key, count(*) as n from tasks where status = 'In Progress' group by 1"
    async with await _connect(url) as connection:
        while not done.is_set():
            rows = await (await connection.execute(query)).fetchall()
            worst += [f"{row['key']}: {row['n']}" for row in rows if row["n"] > MOST[row["key"]]]
            worst += [f"all: {rows}"] if sum(row["n"] for row in rows) > 9 else []


async def test_a_silent_worker_that_may_be_well_keeps_the_place_of_its_task(fleet: Fleet) -> None:
    """SSH has shown that its agent gets no answer. No other task gets its place, and its result counts."""
    first, second = await fleet.submit(count=2, concurrency_key="k")
    cut, heard = await fleet.agent(), await fleet.agent()
    (held,) = await cut.claim(batch=1)
    assert held["id"] == first
    for _ in range(20):
        fleet.wait(10)
        await heard.beat()
        assert await fleet.fleet("keep_tasks", p_worker_id=cut.id) == {"tasks": 1}
        assert await heard.claim(batch=1) == []
    assert (await fleet.fleet("rescue_overdue", p_over_s=0))["tasks"] == []
    assert await cut.complete(held) == "ok"
    assert [task["id"] for task in await heard.claim(batch=1)] == [second]


async def test_a_locked_task_of_a_worker_that_may_be_well_is_not_rescued(
    fleet: Fleet, hand: AsyncConnection[DictRow], database: str
) -> None:
    """A forgotten transaction in a SQL editor, during an outage of the gateways: no other worker gets the task."""
    agent = await fleet.agent()
    await fleet.submit()
    (held,) = await agent.claim(batch=1)
    async with await _connect(database) as other, other.transaction(force_rollback=True):
        await other.execute("select from tasks for update")  # changes nothing
        for _ in range(10):
            fleet.wait(10)
            assert await fleet.fleet("keep_tasks", p_worker_id=agent.id) == {"tasks": 1}
    assert (await fleet.fleet("rescue_overdue", p_over_s=0))["tasks"] == []
    assert await agent.complete(held) == "ok"


async def test_the_lease_of_an_ended_or_unknown_worker_is_not_renewed(fleet: Fleet) -> None:
    agent = await fleet.agent()
    await fleet.submit()
    (task,) = await agent.claim(batch=1)
    before = (await fleet.task(task["id"]))["lease_expires_at"]
    assert await fleet.fleet("keep_tasks", p_worker_id="gpu-unknown") == {"tasks": 0}
    led = await fleet.call("fleet_lead", p_fleet="other", p_holder="them", p_ttl_s=60)
    other = {"p_fleet": "other", "p_term": led["term"]}
    fleet.wait(10)
    assert await fleet.call("fleet_keep_tasks", **other, p_worker_id=agent.id) == {"tasks": 0}
    assert (await fleet.task(task["id"]))["lease_expires_at"] == before
    with pytest.raises(NotLeader):
        await fleet.fleet("keep_tasks", p_worker_id=agent.id, p_term=fleet.term - 1)
