"""A user's trigger, constraint or lock delays how its own row is shown, and nothing else."""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from tests.db.conformance.builders import FLEET, Agent, Fleet, Row, result

ANSWER_S = 1.0
SIZES = (1, 50)  # tasks of one claim
BAD = "new.task_type = 'bad' and new.status::text ="
# What keeps the row of a task of the type `bad` from showing a status.
OBSTACLES = {
    "raises": ("before update on tasks for each row", "raise exception 'unpaid'"),
    "suppresses": ("before update on tasks for each row", "return null"),
    "returns old": ("before update on tasks for each row", "return old"),
    "raises after": ("after update on tasks for each row", "raise exception 'unpaid'"),
    "raises as the server does": (
        "before update on tasks for each row",
        "raise exception 'unpaid' using errcode = '40P01'",
    ),
    "raises as a stop does": (
        "before update on tasks for each row",
        "raise exception 'unpaid' using errcode = '57P01'",
    ),
    "raises late": ("after update on tasks deferrable initially deferred for each row", "raise exception 'unpaid'"),
}
WHY = {
    "suppresses": "A trigger of the database suppressed it",
    "returns old": "A trigger of the database suppressed it",
    "raises as the server does": "unpaid (40P01)",
    "raises as a stop does": "unpaid (57P01)",
}
obstacle = pytest.mark.parametrize("kind", OBSTACLES)
size = pytest.mark.parametrize("batch", SIZES)


@pytest.fixture
async def fleet(direct: PostgresDb) -> Fleet:
    """A fleet that we lead; over one transport, since this is about what the database does."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    return fleet


@pytest.fixture
async def owner(hand: AsyncConnection[DictRow]) -> AsyncIterator[AsyncConnection[DictRow]]:
    """A user who may make triggers, which go with the test."""
    yield hand
    await hand.execute("drop function if exists users_own() cascade")


@pytest.fixture
async def other(database: str, owner: AsyncConnection[DictRow]) -> AsyncIterator[AsyncConnection[Any]]:
    """A transaction of a user's that stays open."""
    async with await psycopg.AsyncConnection.connect(database) as connection:
        yield connection
        await connection.rollback()


async def installed(owner: AsyncConnection[DictRow], status: str, moment: str, act: str) -> None:
    """Make the user's trigger, which acts when the row of a bad task shows this status."""
    body = f"begin if {BAD} '{status}' then {act}; end if; return new; end"
    await owner.execute(f"create function users_own() returns trigger language plpgsql as $$ {body} $$".encode())
    kind = "constraint trigger" if "deferrable" in moment else "trigger"
    await owner.execute(f"create {kind} a_users {moment} execute function users_own()".encode())


async def claimed(fleet: Fleet, agent: Agent, batch: int) -> tuple[str, Sequence[Row]]:
    """The id of a bad task, and what one claim hands over: it and others."""
    (bad, *_) = await fleet.submit({"task_type": "bad"}, *({} for _ in range(batch - 1)))
    began = time.monotonic()
    tasks = await agent.claim(batch=batch)
    assert time.monotonic() - began < ANSWER_S
    return bad, tasks


async def completed(agent: Agent, tasks: Sequence[Row]) -> list[str]:
    """What becomes of completions, which are answered at once."""
    began = time.monotonic()
    outcomes = await agent.complete_many(*(result(task, n=1) for task in tasks))
    assert time.monotonic() - began < ANSWER_S
    return outcomes


async def shown(owner: AsyncConnection[DictRow], task_id: str) -> str:
    """The status that the row has."""
    (row,) = await (await owner.execute("select status from tasks where id = %s", (task_id,))).fetchall()
    return str(row["status"])


async def others(owner: AsyncConnection[DictRow], bad: str) -> set[str]:
    """The statuses of the rows of all other tasks."""
    query = "select distinct status from tasks where id <> %s"
    return {str(row["status"]) for row in await (await owner.execute(query, (bad,))).fetchall()}


async def troubles(fleet: Fleet) -> list[Row]:
    """What health and the leader say about rows that show an earlier status; the same."""
    report = await fleet.call("fleet_report", p_fleet=FLEET)
    asked = await fleet.call("fleet_task_troubles", p_fleet=FLEET, p_handled=[])
    assert asked["unpublished_tasks"] == report["unpublished_tasks"]
    return list(report["unpublished_tasks"])


async def ended(fleet: Fleet, owner: AsyncConnection[DictRow], bad: str, status: str, why: str) -> None:
    """Health and explain name the row and the error; it is written once the cause is gone."""
    assert (await fleet.task(bad))["status"] == status
    explained = await fleet.call("fleet_task_explain", p_fleet=FLEET, p_task_id=bad)
    assert (explained["task"]["status"], explained["publication"]["times"]) == (status, 1)
    assert why in explained["publication"]["reason"]
    assert await troubles(fleet) == []  # it lasts not long enough yet
    fleet.wait(11)
    await fleet.maintain()
    (row,) = await troubles(fleet)
    assert (row["pool"], row["n"], row["task_id"]) == ("default", 1, bad)
    assert why in row["reason"]
    assert (await fleet.call("fleet_metrics", p_fleet=FLEET, p_since=None))["unpublished"] == {"n": 1, "oldest_s": 11}
    (found,) = await (await owner.execute("select times from orchestrator.publications")).fetchall()
    assert found["times"] == 2


async def recovered(fleet: Fleet, owner: AsyncConnection[DictRow], bad: str, status: str) -> None:
    """The leader writes the row, and nothing is left."""
    fleet.wait(600)
    await fleet.maintain()
    assert await shown(owner, bad) == status
    assert await (await owner.execute("select from orchestrator.publications")).fetchall() == []
    assert await troubles(fleet) == []
    explained = await fleet.call("fleet_task_explain", p_fleet=FLEET, p_task_id=bad)
    assert explained["publication"] is None


@size
@obstacle
async def test_a_completion_that_cannot_be_shown_is_kept_and_shown_later(
    fleet: Fleet, owner: AsyncConnection[DictRow], kind: str, batch: int
) -> None:
    """It is answered at once, the others are shown, and a task that needs it has its result."""
    agent = await fleet.agent()
    await installed(owner, "Complete", *OBSTACLES[kind])
    bad, tasks = await claimed(fleet, agent, batch)
    (behind,) = await fleet.submit(depends_on=[bad])
    assert await completed(agent, tasks) == ["ok"] * batch
    assert await shown(owner, bad) == "In Progress"
    assert await others(owner, bad) <= {"Complete", "Queued"}
    (next_task,) = await agent.claim()
    assert (next_task["id"], next_task["dependencies"][0]["result_data"]) == (behind, {"n": 1})
    await ended(fleet, owner, bad, "Complete", WHY.get(kind, "unpaid (P0001)"))
    assert await agent.complete_many(result(tasks[0], n=1)) == ["already"]
    await owner.execute("drop function users_own() cascade")
    await recovered(fleet, owner, bad, "Complete")


@size
@obstacle
async def test_a_claim_that_cannot_be_shown_hands_out_the_task(
    fleet: Fleet, owner: AsyncConnection[DictRow], kind: str, batch: int
) -> None:
    """Readers see that it runs; its row shows it once the cause is gone, or how it ended."""
    agent = await fleet.agent()
    await installed(owner, "In Progress", *OBSTACLES[kind])
    bad, tasks = await claimed(fleet, agent, batch)
    assert (len(tasks), bad in [task["id"] for task in tasks]) == (batch, True)
    assert (await shown(owner, bad), await others(owner, bad)) == ("Queued", {"In Progress"} if batch > 1 else set())
    row = await fleet.task(bad)
    assert (row["status"], row["worker_id"], row["attempts"]) == ("In Progress", agent.id, 1)
    held = {"id": bad, "attempt": 1}
    assert (await agent.beat(held, *tasks[1:]))["fenced"] == []
    await owner.execute("drop function users_own() cascade")
    await fleet.maintain()
    assert await shown(owner, bad) == "In Progress"
    assert await completed(agent, tasks) == ["ok"] * batch
    assert (await shown(owner, bad), await others(owner, bad)) == ("Complete", {"Complete"} if batch > 1 else set())


@size
@obstacle
async def test_a_failure_that_cannot_be_shown_queues_the_task_again(
    fleet: Fleet, owner: AsyncConnection[DictRow], kind: str, batch: int
) -> None:
    """Its next attempt can be claimed, and an end of an attempt before does not hide it."""
    agent = await fleet.agent()
    bad, tasks = await claimed(fleet, agent, batch)
    await installed(owner, "Queued", *OBSTACLES[kind])
    for task in tasks:
        assert await agent.release(task) == "ok"
    assert (await shown(owner, bad), await others(owner, bad)) == ("In Progress", {"Queued"} if batch > 1 else set())
    row = await fleet.task(bad)
    assert (row["status"], row["state"], row["worker_id"]) == ("Queued", "ready", None)
    again = await agent.claim(batch=batch)
    assert sorted(task["attempt"] for task in again) == [2] * batch
    row = await fleet.task(bad)
    assert (row["status"], row["attempts"], row["worker_id"]) == ("In Progress", 2, agent.id)
    assert await completed(agent, again) == ["ok"] * batch
    assert (await fleet.task(bad))["status"] == await shown(owner, bad) == "Complete"
    await owner.execute("drop function users_own() cascade")
    await recovered(fleet, owner, bad, "Complete")


@size
async def test_another_status_of_a_users_trigger_is_a_wish(
    fleet: Fleet, owner: AsyncConnection[DictRow], batch: int
) -> None:
    """The task is what the trigger made of it, and the attempt is what it was."""
    agent = await fleet.agent()
    await installed(owner, "Complete", "before update on tasks for each row", "new.status := 'Cancelled'")
    bad, tasks = await claimed(fleet, agent, batch)
    assert await completed(agent, tasks) == ["ok"] * batch
    assert (await shown(owner, bad), await others(owner, bad)) == ("Cancelled", {"Complete"} if batch > 1 else set())
    assert (await fleet.call("task_get", p_id=bad))["attempts"][0]["outcome"] == "complete"
    assert await (await owner.execute("select from orchestrator.live")).fetchall() == []


async def test_a_task_that_a_users_trigger_queues_again_is_ready_within_a_second(
    fleet: Fleet, owner: AsyncConnection[DictRow]
) -> None:
    """Also in a long table, of which each second's audit reads a part: here the part between the two ends."""
    agent = await fleet.agent()
    await installed(owner, "Complete", "before update on tasks for each row", "new.status := 'Queued'")
    bad, tasks = await claimed(fleet, agent, 1)
    await owner.execute(
        """insert into tasks (task_type, status, params)
           select 't', 'Complete', jsonb_build_object('x', repeat('x', 1500)) from generate_series(1, 400)"""
    )
    assert await completed(agent, tasks) == ["ok"]
    await owner.execute(
        """insert into orchestrator.audits (rel, next_block, began_at) values ('public.tasks', 30, now())
           on conflict (rel) do update set next_block = 30"""
    )
    await fleet.maintain(1)
    assert [task["id"] for task in await agent.claim()] == [bad]


@size
async def test_a_task_that_a_users_trigger_cancels_at_its_claim_is_not_handed_out(
    fleet: Fleet, owner: AsyncConnection[DictRow], batch: int
) -> None:
    """Its agent would do work that nobody wants."""
    agent = await fleet.agent()
    await installed(owner, "In Progress", "before update on tasks for each row", "new.status := 'Cancelled'")
    bad, tasks = await claimed(fleet, agent, batch)
    assert (len(tasks), bad in [task["id"] for task in tasks]) == (batch - 1, False)
    assert await shown(owner, bad) == "Cancelled"
    await fleet.maintain()
    query = "select task_id::text from orchestrator.live where task_id = %s"
    assert await (await owner.execute(query, (bad,))).fetchall() == []


@size
async def test_a_trigger_that_takes_its_time_delays_the_answer_by_that(
    fleet: Fleet, owner: AsyncConnection[DictRow], batch: int
) -> None:
    """It runs once for each status that its row shows."""
    agent = await fleet.agent()
    await installed(owner, "Complete", "before update on tasks for each row", "perform pg_sleep(0.2)")
    bad, tasks = await claimed(fleet, agent, batch)
    assert await completed(agent, tasks) == ["ok"] * batch
    assert (await shown(owner, bad), await others(owner, bad)) == ("Complete", {"Complete"} if batch > 1 else set())


@size
async def test_a_row_that_an_open_transaction_has_locked_is_shown_later(
    fleet: Fleet, owner: AsyncConnection[DictRow], other: AsyncConnection[Any], batch: int
) -> None:
    """Claims, heartbeats and completions of its task do not wait for the lock."""
    agent = await fleet.agent()
    (bad, *_) = await fleet.submit({"task_type": "bad"}, *({} for _ in range(batch - 1)))
    await other.execute("select from tasks where id = %s for update", (bad,))
    began = time.monotonic()
    tasks = await agent.claim(batch=batch)
    assert time.monotonic() - began < ANSWER_S
    assert (len(tasks), await shown(owner, bad)) == (batch, "Queued")
    assert (await agent.beat(*tasks))["fenced"] == []
    assert await completed(agent, tasks) == ["ok"] * batch
    assert (await shown(owner, bad), await others(owner, bad)) == ("Queued", {"Complete"} if batch > 1 else set())
    await ended(fleet, owner, bad, "Complete", "Another transaction has locked its row")
    await other.rollback()
    await recovered(fleet, owner, bad, "Complete")


@size
async def test_a_running_task_that_an_open_transaction_changes_is_pending(
    fleet: Fleet, owner: AsyncConnection[DictRow], other: AsyncConnection[Any], batch: int
) -> None:
    """For its own completion only: the transaction may end it."""
    agent = await fleet.agent()
    bad, tasks = await claimed(fleet, agent, batch)
    await other.execute("update tasks set priority = 5 where id = %s", (bad,))
    expected = ["pending" if task["id"] == bad else "ok" for task in tasks]
    assert await completed(agent, tasks) == expected
    assert await others(owner, bad) == ({"Complete"} if batch > 1 else set())
    await other.commit()
    assert await completed(agent, tasks) == ["ok" if task["id"] == bad else "already" for task in tasks]
    assert await shown(owner, bad) == "Complete"


@size
async def test_a_queued_task_that_an_open_transaction_changes_is_left_to_a_later_claim(
    fleet: Fleet, owner: AsyncConnection[DictRow], other: AsyncConnection[Any], batch: int
) -> None:
    """So a user can keep agents from it while they change it."""
    agent = await fleet.agent()
    (bad, *_) = await fleet.submit({"task_type": "bad"}, *({} for _ in range(batch - 1)))
    await other.execute("update tasks set params = '{\"new\": 1}' where id = %s", (bad,))
    tasks = await agent.claim(batch=batch)
    assert (len(tasks), bad in [task["id"] for task in tasks]) == (batch - 1, False)
    await other.commit()
    (task,) = await agent.claim(batch=batch)
    assert (task["id"], task["params"]) == (bad, {"new": 1})


async def test_a_weight_is_set_while_an_open_transaction_changes_a_queued_task(
    fleet: Fleet, owner: AsyncConnection[DictRow], other: AsyncConnection[Any]
) -> None:
    """That task keeps its turn; the others get theirs at once."""
    first, *_ = await fleet.submit(count=20, tenant="a")
    await other.execute("update tasks set params = '{}' where id = %s", (first,))
    began = time.monotonic()
    await fleet.call("task_tenant_set", p_tenant="a", p_weight=4)
    assert time.monotonic() - began < ANSWER_S
    query = "select max(turn) - min(turn) as width from orchestrator.live"
    (row,) = await (await owner.execute(query.encode())).fetchall()
    assert row["width"] < 10_000_000  # of 19 steps, a quarter of a million each


async def test_a_write_to_a_row_that_shows_an_earlier_attempt_is_no_wish(
    fleet: Fleet, owner: AsyncConnection[DictRow], other: AsyncConnection[Any]
) -> None:
    """Its status is that of the earlier attempt, and the present one goes on."""
    first, second = await fleet.agent(), await fleet.agent()
    bad, (task,) = await claimed(fleet, first, 1)
    await other.execute("select from tasks where id = %s for update", (bad,))
    assert await first.release(task) == "ok"
    (again,) = await second.claim()
    assert (await shown(owner, bad), again["attempt"]) == ("In Progress", 2)
    await other.execute('update tasks set labels = \'{"a": "b"}\' where id = %s', (bad,))
    await other.commit()
    assert await completed(second, [again]) == ["ok"]
    await fleet.settle()
    assert await shown(owner, bad) == "Complete"


async def pending(fleet: Fleet, owner: AsyncConnection[DictRow], agent: Agent) -> str:
    """The id of a task that is Complete with the result {n: 1}, while its row cannot show it yet."""
    await installed(owner, "Complete", *OBSTACLES["raises"])
    bad, tasks = await claimed(fleet, agent, 1)
    assert await completed(agent, tasks) == ["ok"]
    assert await shown(owner, bad) == "In Progress"
    return bad


@pytest.mark.parametrize("status", ["Queued", "Failed", "Cancelled"])
async def test_a_status_that_a_user_writes_takes_the_place_of_a_pending_end(
    fleet: Fleet, owner: AsyncConnection[DictRow], status: str
) -> None:
    """It is the later word."""
    agent = await fleet.agent()
    bad = await pending(fleet, owner, agent)
    await owner.execute("update tasks set status = %s where id = %s", (status, bad))
    await owner.execute("drop function users_own() cascade")
    await recovered(fleet, owner, bad, status)
    assert (await fleet.task(bad))["status"] == status
    assert [task["attempt"] for task in await agent.claim()] == ([2] if status == "Queued" else [])


async def test_the_pauses_between_tries_double_up_to_ten_minutes(fleet: Fleet, owner: AsyncConnection[DictRow]) -> None:
    """The trigger of a row that is refused for good runs seldom."""
    await pending(fleet, owner, await fleet.agent())
    query, pauses = "select extract(epoch from retry_at - %s)::int as pause from orchestrator.publications", []
    for _ in range(12):
        (row,) = await (await owner.execute(query, (fleet.now,))).fetchall()
        pauses.append(row["pause"])
        fleet.wait(row["pause"])
        await fleet.maintain(1)
    assert pauses == [*(2**n for n in range(10)), 600, 600]


async def test_a_retry_takes_the_place_of_a_pending_failure(
    fleet: Fleet, owner: AsyncConnection[DictRow], other: AsyncConnection[Any]
) -> None:
    """Also if the row shows neither the attempt nor its failure, and the retry does not change its status."""
    agent = await fleet.agent()
    (bad,) = await fleet.submit(max_attempts=1)
    await other.execute("select from tasks where id = %s for update", (bad,))
    (task,) = await agent.claim()
    assert await agent.fail(task, code="BROKEN") == "failed"
    await other.rollback()
    assert await shown(owner, bad) == "Queued"
    assert (await fleet.call("task_retry", p_id=bad))["outcome"] == "requeued"
    assert [task["attempt"] for task in await agent.claim()] == [2]
    await recovered(fleet, owner, bad, "In Progress")


async def test_an_edit_of_a_task_whose_end_is_pending_does_not_queue_it(
    fleet: Fleet, owner: AsyncConnection[DictRow], other: AsyncConnection[Any]
) -> None:
    """Its row shows an earlier status, which is no wish."""
    agent = await fleet.agent()
    (bad,) = await fleet.submit({"task_type": "bad"})
    await other.execute("select from tasks where id = %s for update", (bad,))
    assert await completed(agent, await agent.claim()) == ["ok"]
    await other.execute("update tasks set priority = 5 where id = %s", (bad,))
    await other.commit()
    assert await shown(owner, bad) == "Queued"
    assert await agent.claim() == []
    await recovered(fleet, owner, bad, "Complete")


async def test_a_task_that_is_deleted_while_its_end_is_pending_hands_on_its_result(
    fleet: Fleet, owner: AsyncConnection[DictRow]
) -> None:
    """It is Complete for the tasks that need it."""
    agent = await fleet.agent()
    bad = await pending(fleet, owner, agent)
    (behind,) = await fleet.submit(depends_on=[bad])
    await owner.execute("delete from tasks where id = %s", (bad,))
    (task,) = await agent.claim()
    assert (task["id"], [one["result_data"] for one in task["dependencies"]]) == (behind, [{"n": 1}])


@pytest.mark.parametrize("how", ["delete from tasks", "truncate tasks"])
async def test_a_pending_end_goes_with_its_row(fleet: Fleet, owner: AsyncConnection[DictRow], how: str) -> None:
    """A new row with the same id has nothing to do with it."""
    agent = await fleet.agent()
    bad = await pending(fleet, owner, agent)
    await owner.execute(how.encode())
    await owner.execute("drop function users_own() cascade")
    await owner.execute("insert into tasks (id, task_type) values (%s, 'bad')", (bad,))
    await recovered(fleet, owner, bad, "Queued")
    (task,) = await agent.claim()
    assert (task["attempt"], (await fleet.task(bad))["result_data"]) == (2, None)


async def test_without_a_leader_the_next_heartbeat_of_any_agent_publishes(
    fleet: Fleet, owner: AsyncConnection[DictRow]
) -> None:
    """Once the pause after the last try is over. With a leader, that is the leader's work."""
    agent = await fleet.agent()
    await installed(owner, "Complete", *OBSTACLES["raises"])
    bad, tasks = await claimed(fleet, agent, 1)
    await completed(agent, tasks)
    await owner.execute("drop function users_own() cascade")
    fleet.wait(5)
    await agent.beat()
    assert await shown(owner, bad) == "In Progress"
    fleet.wait(7200)
    await agent.beat()
    assert await shown(owner, bad) == "Complete"


SLEEPS = """
create sequence firings;
create function users_own() returns trigger language plpgsql as $$
begin
    perform nextval('firings'), pg_sleep(0.11);
    return new;
end $$;
create trigger a_users before update on tasks for each row execute function users_own();
"""


@pytest.fixture
async def sleepy(owner: AsyncConnection[DictRow]) -> AsyncIterator[AsyncConnection[DictRow]]:
    """A database with a trigger that sleeps, and counts."""
    await owner.execute(SLEEPS)
    yield owner
    await owner.execute("drop function users_own() cascade; drop sequence firings")


async def firings(owner: AsyncConnection[DictRow]) -> int:
    """How often the trigger has fired."""
    (row,) = await (await owner.execute("select last_value, is_called from firings")).fetchall()
    return int(row["last_value"]) if row["is_called"] else 0


async def test_after_three_slow_calls_the_leader_publishes_the_pool_for_a_minute(
    fleet: Fleet, sleepy: AsyncConnection[DictRow]
) -> None:
    """No call runs the trigger then, and every status is shown."""
    agent = await fleet.agent()
    ids = await fleet.submit(count=4)
    for number in range(3):
        (task,) = await agent.claim()
        assert await firings(sleepy) == number + 1
    assert await agent.complete(task) == "ok"
    (later,) = await agent.claim()
    assert await firings(sleepy) == 3
    assert [await shown(sleepy, one) for one in ids] == ["In Progress"] * 3 + ["Queued"]
    assert [(await fleet.task(one))["status"] for one in ids[2:]] == ["Complete", "In Progress"]
    fleet.wait(2)
    await fleet.maintain(1)
    assert [await shown(sleepy, one) for one in ids[2:]] == ["Complete", "In Progress"]
    fired = await firings(sleepy)
    fleet.wait(61)
    assert await agent.complete(later) == "ok"
    assert (await firings(sleepy), await shown(sleepy, ids[3])) == (fired + 1, "Complete")


async def test_slow_calls_without_a_users_trigger_and_far_from_each_other_count_for_nothing(
    fleet: Fleet, owner: AsyncConnection[DictRow], sleepy: AsyncConnection[DictRow]
) -> None:
    """A large claim on a slow disk, or one slow moment a day."""
    agent = await fleet.agent()
    await fleet.submit(count=4)
    for number in range(4):
        assert len(await agent.claim()) == 1
        assert await firings(sleepy) == number + 1
        fleet.wait(31)
    await owner.execute("drop trigger a_users on tasks")
    rows = await owner.execute("select from orchestrator.users_triggers")
    assert await rows.fetchall() == []


async def test_a_task_that_a_claim_puts_back_keeps_its_number_of_attempts(
    fleet: Fleet, owner: AsyncConnection[DictRow]
) -> None:
    """What it shows is its earlier attempt, which still counts when its row is edited."""
    agent = await fleet.agent()
    first, second = await fleet.submit(count=2, params={"x": [1] * 300_000})
    for _ in range(2):
        (task,) = await agent.claim()
        await agent.fail(task, code="BROKEN")
    fleet.wait(3600)
    assert [task["id"] for task in await agent.claim(batch=2)] == [first]
    await owner.execute("update tasks set priority = -1 where id = %s", (second,))
    row = await fleet.task(second)
    assert (row["attempts"], row["uncounted"]) == (1, 0)
    (task,) = await agent.claim()
    assert (task["id"], task["attempt"]) == (second, 2)
