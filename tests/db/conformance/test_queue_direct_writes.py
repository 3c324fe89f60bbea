"""What users write to `tasks` themselves: no such write stops the queue, and no claim is mistaken for another."""

import asyncio
import string
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.core.states import State
from tests.db.conformance.builders import FLEET, Fleet, result

Hand = AsyncConnection[DictRow]
LEASE_S = 60
RESET = "update tasks set status = 'Queued', attempts = 0"
AGAIN = "insert into tasks (id, task_type) select task_id, 't' from kept"
WRITES = {
    "the attempts of what runs start again": (RESET,),
    "its row is deleted and inserted again": ("delete from tasks", AGAIN),
    "the tasks are truncated": ("truncate tasks", AGAIN),
}


@pytest.fixture
async def fleet(direct: PostgresDb) -> Fleet:
    """A fleet that we lead, over the direct transport: the writes are the same over both."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    return fleet


@pytest.fixture
async def user(hand: AsyncConnection[DictRow]) -> AsyncConnection[DictRow]:
    """A user in a SQL editor, with a place of their own for what they remember."""
    await hand.execute("create temp table kept (task_id uuid)")
    return hand


async def write(user: AsyncConnection[DictRow], *statements: str) -> None:
    """The user's statements, one after the other, each a transaction of its own."""
    await user.execute("insert into kept select id from tasks")
    for statement in statements:
        await user.execute(sql.SQL(statement))


@pytest.mark.parametrize("how", WRITES)
async def test_no_write_makes_the_number_of_a_claim_repeat(
    fleet: Fleet, user: AsyncConnection[DictRow], how: str
) -> None:
    """The same worker gets the task again; what it still says of the first claim is fenced, by every call."""
    agent = await fleet.agent()
    (task_id,) = await fleet.submit()
    (first,) = await agent.claim()
    await write(user, *WRITES[how])
    (second,) = await agent.claim()
    assert (first["id"], second["id"]) == (task_id, task_id)
    assert second["attempt"] > first["attempt"]
    assert await agent.fail(first, message="late") == "fenced"
    assert await agent.release(first) == "fenced"
    assert (await agent.beat({"id": task_id, "attempt": first["attempt"]}))["fenced"] == [task_id]
    assert await agent.complete_many(result(first)) == ["fenced"]
    assert await agent.complete(first) == "fenced"
    row = await fleet.task(task_id)
    assert row["attempts"] - row["uncounted"] == 1  # of max_attempts
    assert await agent.complete(second) == "ok"


@pytest.mark.parametrize("how", WRITES)
async def test_no_write_before_the_next_claim_stops_a_pool(
    fleet: Fleet, user: AsyncConnection[DictRow], how: str
) -> None:
    """A task that was claimed and given back is claimed again, with those of its batch."""
    agent = await fleet.agent()
    await fleet.submit(count=3)
    for task in await agent.claim(batch=3):
        assert await agent.release(task) == "ok"
    await write(user, *WRITES[how])
    taken = await agent.claim(batch=3)
    assert len(taken) == 3
    assert [await agent.complete(task) for task in taken] == ["ok"] * 3
    assert (await fleet.call("fleet_snapshot", p_fleet="default"))["queued_total"] == 0


async def test_a_reset_of_a_task_that_was_retried_is_no_error(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """What did not count is part of the attempts."""
    agent = await fleet.agent()
    (task_id,) = await fleet.submit()
    (task,) = await agent.claim()
    await agent.release(task)
    await hand.execute("update tasks set attempts = 0")
    task = await fleet.task(task_id)
    assert task["attempts"] - task["uncounted"] == 0


async def test_a_reset_of_a_queued_task_gives_it_all_its_attempts_again(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """As many as it had at first."""
    agent = await fleet.agent()
    await fleet.submit(max_attempts=2)
    (task,) = await agent.claim()
    assert await agent.fail(task, code="BROKEN") == "requeued"
    await hand.execute("update tasks set attempts = 0")
    outcomes = []
    for _ in range(2):
        fleet.wait(3600)
        (task,) = await agent.claim()
        outcomes.append(await agent.fail(task, code="BROKEN"))
    assert (outcomes, task["attempt"]) == (["requeued", "failed"], 3)


async def test_what_did_not_count_does_not_count_after_a_user_queues_the_task_again(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Of three attempts, the first was given back."""
    agent = await fleet.agent()
    await fleet.submit(max_attempts=3)
    (task,) = await agent.claim()
    await agent.release(task)
    (task,) = await agent.claim()
    assert await agent.fail(task, retryable=False) == "failed"
    await hand.execute("update tasks set status = 'Queued'")
    (task,) = await agent.claim()
    assert (task["attempt"], await agent.fail(task, code="BROKEN")) == (3, "requeued")


async def test_resets_and_claims_at_the_same_moment_lose_no_task(
    fleet: Fleet, database: str, hand: AsyncConnection[DictRow]
) -> None:
    """Eight connections claim and complete while others reset, delete and insert again: each task ends."""
    agents = [await fleet.agent() for _ in range(8)]
    ids = await fleet.submit(count=40)
    rounds = 15
    completed: list[str] = []

    async def work(agent: Any) -> None:
        for _ in range(rounds):
            taken = await agent.claim(batch=5)
            said = [await agent.complete(task) for task in taken]
            completed.extend(f"{t['id']} {t['attempt']}" for t, one in zip(taken, said, strict=True) if one == "ok")

    async def disturb(number: int) -> None:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
            for turn in range(rounds):
                chosen = ids[(number * 7 + turn * 3) % len(ids)]
                await connection.execute("update tasks set status = 'Queued', attempts = 0 where id = %s", (chosen,))
                async with connection.transaction():
                    await connection.execute("delete from tasks where id = %s", (ids[turn],))
                    await connection.execute("insert into tasks (id, task_type) values (%s, 't')", (ids[turn],))

    await asyncio.gather(*map(work, agents), disturb(1))
    while taken := await agents[0].claim(batch=10):
        assert set(await agents[0].complete_many(*map(result, taken))) <= {"ok", "fenced"}
    assert len(set(completed)) == len(completed)
    await fleet.settle()  # a row that was locked as its task ended shows it now
    left = await (await hand.execute("select count(*) as n from tasks where status <> 'Complete'")).fetchone()
    assert left == {"n": 0}


IDENTIFIED = """
    select c.relname from pg_class c
     where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p')
       and not (c.relreplident = 'f'
                or exists (select from pg_index i
                            where i.indrelid = c.oid
                              and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident end))
"""


async def test_every_table_tells_a_subscriber_which_row_changed(hand: AsyncConnection[DictRow]) -> None:
    """Where one has no replica identity, PostgreSQL refuses its updates and deletes once a publication has it."""
    assert await (await hand.execute(IDENTIFIED)).fetchall() == []


async def test_the_whole_queue_runs_under_a_publication_of_all_tables(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Sync tools make one: claims, completions, heartbeats, failures, rescues, retention and the snapshot go on."""
    await hand.execute("create publication everything for all tables")
    try:
        agent = await fleet.agent()
        first, second = await fleet.submit(count=2)
        await fleet.submit(depends_on=[first])
        await fleet.submit(count=30, pool="elsewhere")
        (task, other) = await agent.claim(batch=2)
        await agent.beat({"id": first, "attempt": 1, "progress": {"fraction": 0.5}})
        assert (await agent.complete(task), await agent.fail(other, message="no")) == ("ok", "requeued")
        (dependant,) = await agent.claim()
        assert await agent.complete(dependant) == "ok"
        fleet.wait(600)
        (again,) = await agent.claim()
        assert again["id"] == second
        fleet.wait(LEASE_S + 1)
        await fleet.lead()
        assert len((await fleet.fleet("rescue", p_worker_id=None))["tasks"]) == 1
        for number in range(40):  # so that a claim moves the mark
            await fleet.submit()
            assert len(await agent.claim()) == 1, number
        await fleet.fleet("retention")
        await fleet.call("task_cancel", p_id=second)
        await fleet.call("task_retry", p_id=second)
        await fleet.move(agent.id, State.ACTIVE, State.TERMINATING, exit_cause="manual")
        snapshot = await fleet.call("fleet_snapshot", p_fleet="default")
        assert {one["pool"]: one["claimable"] for one in snapshot["demand"]} == {"default": 1, "elsewhere": 30}
        await hand.execute("delete from tasks")
    finally:
        await hand.execute("drop publication everything")


async def test_a_users_column_of_any_name_stops_nothing(fleet: Fleet, user: AsyncConnection[DictRow]) -> None:
    """A column with the name of a query's alias would hide the row; the functions name the row without doubt."""
    columns = sql.SQL(", ").join(
        sql.SQL("add column {} int").format(sql.Identifier(one)) for one in string.ascii_lowercase
    )
    drops = sql.SQL(", ").join(sql.SQL("drop column {}").format(sql.Identifier(one)) for one in string.ascii_lowercase)
    await user.execute(sql.SQL("alter table tasks {}").format(columns))
    try:
        agent, lost = await fleet.agent(), await fleet.agent()
        first, second, third = await fleet.submit({}, {}, {"depends_on": ["#0"]})
        (task,) = await agent.claim()
        assert (task["id"], task["task_type"]) == (first, "t")
        assert len(await lost.claim()) == 1
        assert await agent.complete(task) == "ok"
        assert [one["id"] for one in await agent.claim()] == [third]
        assert [row["running"] for row in (await fleet.snapshot())["demand"]] == [2]
        fleet.wait(700)
        assert (await fleet.call("fleet_report", p_fleet=FLEET))["expired_leases"] == 2
        await fleet.fleet("rescue_overdue", p_over_s=0)
        assert (await fleet.task(second))["status"] == "Queued"
        found = await fleet.call("task_find", p_filter={}, p_limit=9, p_full=True)
        assert {one["id"] for one in found["tasks"]} == {first, second, third}
        listed = await fleet.call("task_list", p_status=None, p_task_type=None, p_limit=9)
        assert {one["id"] for one in listed["tasks"]} == {first, second, third}
    finally:
        await user.execute(sql.SQL("alter table tasks {}").format(drops))


REFUSED = {
    "its id": "update tasks set id = gen_random_uuid()",
    "what was published": "update tasks set published = 1000",
    "what was published, in a new row": "insert into tasks (task_type, published) values ('t', 2147483647)",
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_the_queue_counts_with_cannot_be_written(fleet: Fleet, user: Hand, what: str) -> None:
    """The statement is refused, and the task that runs completes."""
    agent = await fleet.agent()
    await fleet.submit()
    (task,) = await agent.claim()
    with pytest.raises(psycopg.Error) as refused:
        await user.execute(REFUSED[what].encode())
    assert refused.value.sqlstate == "OR007"
    assert await agent.complete(task) == "ok"
    assert await (await user.execute("select status from tasks")).fetchone() == {"status": "Complete"}


UNHELD = {
    "two tasks with one dedupe_key": "insert into tasks (task_type, dedupe_key) values ('t', 'd'), ('t', 'd')",
    "a key that no index can hold": """insert into tasks (task_type, concurrency_key)
                                       select 't', string_agg(md5(g::text), '') from generate_series(1, 1000) g""",
    "a number beyond all attempts": "insert into tasks (task_type, published) values ('t', 2147483647)",
}


@pytest.mark.parametrize("what", UNHELD)
async def test_a_row_that_the_queue_cannot_hold_harms_no_other(fleet: Fleet, user: Hand, what: str) -> None:
    """It was written while the triggers were off. The leader goes on, and the other rows are queued."""
    await user.execute("set session_replication_role = replica")
    await user.execute(UNHELD[what].encode())
    await user.execute("insert into tasks (task_type) values ('good')")
    await user.execute("reset session_replication_role")
    for _ in range(2):
        await fleet.maintain()
    agent = await fleet.agent()
    assert "good" in [task["task_type"] for task in await agent.claim(batch=10)]
