"""A user's trigger that refuses or suppresses the change of one task affects no other task."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.states import State
from orchestrator.ports import BadArgument
from tests.db.conformance.builders import FLEET, SOON_S, Agent, Fleet, Row, result
from tests.db.conformance.consistency import broken

MANY = 550  # refused tasks: a snapshot tries at most 500
RETRY_S = 700.0  # longer than any pause between two tries
IMMEDIATE = "create trigger a_users before update on tasks for each row execute function users_own()"
DEFERRED = """create constraint trigger a_users after update on tasks deferrable initially deferred
              for each row execute function users_own()"""
RAISES = "if {} then raise exception 'this task stays as it is' using errcode = '23514'; end if; return new;"
SUPPRESSES = "if {} then return null; end if; return new;"
KEEPS = "if {} then return old; end if; return new;"
# EXCEPTION WHEN OTHERS does not catch it.
ASSERTS = "assert not coalesce({}, false), 'this task stays as it is'; return new;"
# A foreign server that does not answer, and currval() before nextval(): no state of this server, which would pass.
CONNECTS = RAISES.replace("23514", "08001")
CURRVAL = RAISES.replace("23514", "55000")
# As a foreign server refuses what the trigger writes there. Between READ COMMITTED transactions there are no conflicts.
CONFLICTS = RAISES.replace("23514", "40001")
READ_ONLY = RAISES.replace("23514", "25006")
IN_USE = RAISES.replace("23514", "55006")
# How a user's trigger keeps a row from changing: its body and when it runs.
WAYS = {
    "raises": (RAISES, IMMEDIATE),
    "raises at commit": (RAISES, DEFERRED),
    "suppresses": (SUPPRESSES, IMMEDIATE),
    "keeps the old row": (KEEPS, IMMEDIATE),
    "asserts": (ASSERTS, IMMEDIATE),
    "asserts at commit": (ASSERTS, DEFERRED),
    "connects": (CONNECTS, IMMEDIATE),
    "has no value": (CURRVAL, IMMEDIATE),
    "conflicts": (CONFLICTS, IMMEDIATE),
}
MORE_WAYS = WAYS | {"is read-only": (READ_ONLY, IMMEDIATE), "is in use": (IN_USE, IMMEDIATE)}
BAD = {"task_type": "bad", "priority": 9}


@pytest.fixture
async def owner(hand: AsyncConnection[DictRow]) -> AsyncIterator[AsyncConnection[DictRow]]:
    """A user who may make triggers, which go with the test."""
    yield hand
    await hand.execute("drop function if exists users_own() cascade; drop sequence if exists tries")


async def refuse(owner: AsyncConnection[DictRow], way: str, when: str = "new.task_type = 'bad'") -> None:
    """Make the user's trigger."""
    body, trigger = MORE_WAYS[way]
    await owner.execute(
        f"create function users_own() returns trigger language plpgsql as $$ begin {body.format(when)} end $$".encode()
    )
    await owner.execute(trigger.encode())


async def allow(owner: AsyncConnection[DictRow]) -> None:
    """Remove it."""
    await owner.execute("drop function users_own() cascade")


async def drained(fleet: Fleet, agent: Agent, batch: int) -> list[str]:
    """The types of the tasks that an agent gets until there is none."""
    types = []
    while tasks := await agent.claim(batch=batch):
        types += [task["task_type"] for task in tasks]
        for task in tasks:
            assert await agent.complete(task) == "ok"
    return types


async def demand(fleet: Fleet) -> Row:
    """What the planner reads of the only pool."""
    (row,) = (await fleet.snapshot())["demand"]
    return dict(row)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("way", MORE_WAYS)
async def test_a_task_whose_claim_is_refused_stops_no_claim(
    fleet: Fleet, owner: AsyncConnection[DictRow], way: str, batch: int
) -> None:
    """The others are claimed, also if there are many of it and they come first."""
    agent = await fleet.agent()
    bad = await fleet.submit(*[BAD] * 30)
    await fleet.submit(count=5)
    await refuse(owner, way)
    assert await drained(fleet, agent, batch) + await drained(fleet, agent, batch) == ["t"] * 5
    assert await broken(owner) == {}
    assert sum(row["claimable"] for row in (await fleet.snapshot())["demand"]) == 0
    for task_id in bad:
        row = await fleet.call("fleet_task_explain", p_fleet="default", p_task_id=task_id)
        assert row["refusal"]["what"] == "claim"


@pytest.mark.parametrize("way", ["raises", "raises at commit"])
async def test_a_task_that_cannot_be_claimed_ends_with_the_reason(
    fleet: Fleet, owner: AsyncConnection[DictRow], way: str
) -> None:
    """Where the user's trigger lets it end."""
    agent = await fleet.agent()
    (bad,) = await fleet.submit(BAD)
    await fleet.submit(count=2)
    await refuse(owner, way, "new.task_type = 'bad' and new.status = 'In Progress'")
    assert await drained(fleet, agent, 1) == ["t"] * 2
    row = await fleet.task(bad)
    assert (row["status"], row["failure_code"]) == ("Failed", "TASK_UNCLAIMABLE")
    assert "this task stays as it is" in row["error_message"]
    assert await broken(owner) == {}


async def test_a_suppressed_claim_takes_nothing_from_the_others_of_its_batch(
    fleet: Fleet, owner: AsyncConnection[DictRow]
) -> None:
    """Neither if another one of the batch raises."""
    agent = await fleet.agent()
    await fleet.submit({"task_type": "t"}, {"task_type": "raises"}, {"task_type": "t"}, {"task_type": "bad"})
    body = """if new.task_type = 'raises' and new.status = 'In Progress' then raise exception 'no'; end if;
              if new.task_type = 'bad' then return null; end if; return new;"""
    await owner.execute(
        f"create function users_own() returns trigger language plpgsql as $$ begin {body} end $$".encode()
    )
    await owner.execute(IMMEDIATE.encode())
    tasks = await agent.claim(batch=4)
    assert [task["task_type"] for task in tasks] == ["t", "t"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_refused_task_is_claimed_once_it_is_allowed(
    fleet: Fleet, owner: AsyncConnection[DictRow], way: str
) -> None:
    """No worker is started to find out; it counts as ready once it can be claimed."""
    agent = await fleet.agent()
    await fleet.submit(BAD)
    await refuse(owner, way)
    assert await agent.claim() == []
    fleet.wait(RETRY_S)
    assert (await demand(fleet))["claimable"] == 0
    assert (await demand(fleet))["blocked"]["scheduled"] == 1
    await allow(owner)
    fleet.wait(RETRY_S)
    assert (await demand(fleet))["claimable"] == 1
    assert [task["task_type"] for task in await agent.claim()] == ["bad"]


async def test_health_shows_refused_tasks(fleet: Fleet, owner: AsyncConnection[DictRow]) -> None:
    """By pool and change, with the database's error. Such a task is not ready, because no worker could claim it."""

    async def told() -> list[Row]:
        report = await fleet.call("fleet_report", p_fleet=FLEET)
        asked = await fleet.call("fleet_task_troubles", p_fleet=FLEET, p_handled=[])
        assert asked["refused_tasks"] == report["refused_tasks"]
        assert [row["claimable"] for row in report["queue"]] == [0]
        return list(report["refused_tasks"])

    agent = await fleet.agent()
    (task,) = await fleet.submit(BAD)
    await refuse(owner, "raises")
    assert await agent.claim() == []
    (row,) = await told()
    assert (row["pool"], row["what"], row["n"], row["task_id"]) == ("default", "claim", 1, task)
    assert "this task stays as it is (23514)" in row["reason"]
    await allow(owner)
    fleet.wait(RETRY_S)
    await fleet.snapshot()  # tries it again
    assert len(await agent.claim()) == 1
    assert await told() == []
    await refuse(owner, "raises", "old.status = 'In Progress'")
    fleet.wait(100)
    await fleet.fleet("rescue", p_worker_id=agent.id)
    assert [(row["what"], row["n"]) for row in await told()] == [("rescue", 1)]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("way", WAYS)
async def test_a_task_whose_requeue_is_refused_stops_no_rescue(
    fleet: Fleet, owner: AsyncConnection[DictRow], way: str, named: bool
) -> None:
    """It stays as it is, with a reason, and is tried again after a pause."""
    agent = await fleet.agent()
    bad, *others = await fleet.submit(BAD, *[{}] * 3)
    assert len(await agent.claim(batch=4)) == 4
    await refuse(owner, way, "new.task_type = 'bad' and old.status = 'In Progress'")
    fleet.wait(100)
    worker_id = agent.id if named else None

    async def rescued() -> list[Row]:
        if worker_id:
            return list((await fleet.fleet("rescue", p_worker_id=worker_id))["tasks"])
        return list((await fleet.fleet("rescue_overdue", p_over_s=0))["tasks"])

    tasks = await rescued()
    assert {task["id"] for task in tasks if task["outcome"] == "requeued"} == set(others)
    assert [task["id"] for task in tasks if task["outcome"] == "refused"] == [bad]
    assert await rescued() == []
    assert (await fleet.snapshot())["expired_leases"] == 0
    found = await fleet.call("fleet_task_explain", p_fleet="default", p_task_id=bad)
    assert found["refusal"]["what"] == "rescue"
    assert await broken(owner) == {}
    await allow(owner)
    fleet.wait(RETRY_S)
    assert [task["outcome"] for task in await rescued()] == ["requeued"]
    assert (await fleet.call("fleet_task_explain", p_fleet="default", p_task_id=bad))["refusal"] is None


@pytest.mark.parametrize("end", ["complete", "fail"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_dependant_that_refuses_to_be_settled_stops_nothing(
    fleet: Fleet, owner: AsyncConnection[DictRow], way: str, end: str
) -> None:
    """Its dependency ends, its siblings are settled, the snapshot and the retention go on."""
    agent = await fleet.agent()
    _, bad, *others = await fleet.submit({}, BAD | {"depends_on": ["#0"]}, *[{"depends_on": ["#0"]}] * 4)
    await refuse(owner, way)
    (task,) = await agent.claim()
    if end == "complete":
        assert await agent.complete(task) == "ok"
    else:
        assert await agent.fail(task, retryable=False) == "failed"
    rows = [await fleet.task(task_id) for task_id in others]
    assert {row["status"] for row in rows} == {"Queued" if end == "complete" else "Failed"}
    assert not any(row["blocked"] for row in rows)
    assert (await fleet.task(bad))["blocked"]
    await fleet.snapshot()
    await fleet.fleet("retention")
    found = await fleet.call("fleet_task_explain", p_fleet="default", p_task_id=bad)
    assert found["refusal"]["what"] == "settle"
    await allow(owner)
    fleet.wait(RETRY_S)
    await fleet.snapshot()
    row = await fleet.task(bad)
    assert (row["status"], row["blocked"]) == ("Queued" if end == "complete" else "Failed", False)
    assert await broken(owner) == {}


@pytest.mark.parametrize("way", WAYS)
async def test_a_dependant_that_refuses_late_settling_stops_no_snapshot(
    fleet: Fleet, owner: AsyncConnection[DictRow], database: str, way: str
) -> None:
    """It was locked while its dependency ended, so that a later snapshot has to settle it."""
    first, bad, other = await fleet.submit({}, BAD | {"depends_on": ["#0"]}, {"depends_on": ["#0"]})
    async with await psycopg.AsyncConnection.connect(database) as holder:
        await holder.execute("select from tasks where id in (%s, %s) for update", (bad, other))
        await fleet.call("task_cancel", p_id=first)
    await refuse(owner, way)
    await fleet.snapshot()
    assert (await fleet.task(other))["status"] == "Failed"
    assert (await fleet.task(bad))["status"] == "Queued"
    await fleet.snapshot()
    await fleet.fleet("retention")
    await allow(owner)
    fleet.wait(RETRY_S)
    await fleet.snapshot()
    assert (await fleet.task(bad))["status"] == "Failed"
    assert await broken(owner) == {}


@pytest.mark.parametrize("way", WAYS)
async def test_a_task_whose_heartbeat_is_refused_costs_its_worker_nothing(
    fleet: Fleet, owner: AsyncConnection[DictRow], way: str
) -> None:
    """The leases of its other tasks are renewed."""
    agent = await fleet.agent()
    await fleet.submit(BAD, {}, {})
    tasks = await agent.claim(batch=3)
    before = (await fleet.task(tasks[1]["id"]))["lease_expires_at"]
    await refuse(owner, way)
    fleet.wait(20)
    answer = await agent.beat(*({"id": task["id"], "attempt": task["attempt"], "progress": {"x": 1}} for task in tasks))
    assert answer["outcome"] == "ok"
    assert (await fleet.task(tasks[1]["id"]))["lease_expires_at"] > before
    assert (await fleet.task(tasks[0]["id"]))["lease_expires_at"] == before
    assert answer["fenced"] == []


COMPLETION = "new.status = 'Complete' and new.task_type = 'bad'"


@pytest.mark.parametrize("way", WAYS)
async def test_a_refused_result_is_kept_by_its_worker_and_completed_once_it_is_allowed(
    fleet: Fleet, owner: AsyncConnection[DictRow], way: str
) -> None:
    """Without a second attempt: the lease is renewed meanwhile. `health` and `explain` have the user's error."""
    agent = await fleet.agent()
    await fleet.submit(BAD)
    (task,) = await agent.claim()
    await refuse(owner, way, COMPLETION)
    for _ in range(20):
        assert await agent.complete(task) == "pending"
        fleet.wait(20)
        await agent.beat({"id": task["id"], "attempt": task["attempt"]})
    found = await fleet.call("fleet_task_explain", p_fleet=FLEET, p_task_id=task["id"])
    assert found["refusal"]["what"] == "complete"
    (row,) = (await fleet.call("fleet_report", p_fleet=FLEET))["refused_tasks"]
    assert (row["what"], row["n"], row["task_id"]) == ("complete", 1, task["id"])
    is_silent = way in {"suppresses", "keeps the old row"}
    assert ("suppressed" if is_silent else "this task stays as it is (") in row["reason"]
    assert await broken(owner) == {}
    await allow(owner)
    fleet.wait(30)
    await agent.beat({"id": task["id"], "attempt": task["attempt"]})
    assert await agent.complete(task, p_result_data={"x": 1}) == "ok"
    row = await fleet.task(task["id"])
    assert (row["status"], row["attempts"], row["result_data"]) == ("Complete", 1, {"x": 1})
    assert (await fleet.call("fleet_report", p_fleet=FLEET))["refused_tasks"] == []
    assert await agent.complete(task) == "already"
    assert await broken(owner) == {}


async def test_a_result_that_is_refused_for_too_long_fails_its_task(
    fleet: Fleet, owner: AsyncConnection[DictRow]
) -> None:
    """With the user's error: a worker does not wait without end. Of a later attempt, the wait begins again."""
    agent = await fleet.agent()
    await fleet.submit(BAD)
    (task,) = await agent.claim()
    await refuse(owner, "raises", COMPLETION)
    assert await agent.complete(task) == "pending"
    for _ in range(30):
        fleet.wait(59)
        await agent.beat({"id": task["id"], "attempt": task["attempt"]})
        assert await agent.complete(task) == "pending"
    fleet.wait(59)
    with pytest.raises(BadArgument, match="this task stays as it is"):
        await agent.complete(task)
    assert await agent.fail(task, code="RESULT_REFUSED") == "requeued"
    assert (await fleet.call("fleet_task_explain", p_fleet=FLEET, p_task_id=task["id"]))["refusal"] is None
    fleet.wait(100)
    (again,) = await agent.claim()
    assert await agent.complete(again) == "pending"


async def test_results_that_are_reported_together_are_refused_alone(
    fleet: Fleet, owner: AsyncConnection[DictRow]
) -> None:
    """The one call ends none of them; then each is reported by itself."""
    agent = await fleet.agent()
    await fleet.submit(BAD, {}, {})
    tasks = await agent.claim(batch=3)
    await refuse(owner, "raises", COMPLETION)
    with pytest.raises(BadArgument, match="this task stays as it is"):
        await agent.complete_many(*map(result, tasks))
    assert [await agent.complete(task) for task in tasks] == ["pending", "ok", "ok"]


@pytest.mark.parametrize("function", ["fail", "release"])
async def test_a_suppressed_end_of_an_attempt_is_not_reported_as_done(
    fleet: Fleet, owner: AsyncConnection[DictRow], function: str
) -> None:
    """The worker hears that the database refused it."""
    agent = await fleet.agent()
    await fleet.submit(BAD)
    (task,) = await agent.claim()
    await refuse(owner, "suppresses")
    with pytest.raises(Exception, match="suppressed"):
        await getattr(agent, function)(task)
    assert (await fleet.task(task["id"]))["status"] == "In Progress"
    assert await broken(owner) == {}


@pytest.mark.parametrize("way", WAYS)
async def test_a_cycle_with_a_task_that_cannot_be_ended_stops_no_retention(
    fleet: Fleet, owner: AsyncConnection[DictRow], way: str
) -> None:
    """The others of the cycle end. It was written without triggers, as a replication tool writes."""
    first, second = await fleet.submit({}, {"task_type": "bad", "depends_on": ["#0"]})
    await refuse(owner, way)
    await owner.execute("set session_replication_role = replica")
    await owner.execute("update tasks set depends_on = array[%s::uuid] where id = %s", (second, first))
    await owner.execute("set session_replication_role = origin")
    await fleet.fleet("retention")
    assert (await fleet.task(first))["failure_code"] == "DEPENDENCY_CYCLE"
    assert (await fleet.task(second))["status"] == "Queued"


@pytest.mark.parametrize("way", ["raises", "raises at commit", "asserts"])
async def test_a_sick_worker_ends_although_a_task_that_it_failed_cannot_be_queued_again(
    fleet: Fleet, owner: AsyncConnection[DictRow], way: str
) -> None:
    """Otherwise its pod would cost money without end. The other tasks get their attempt back."""
    agent = await fleet.agent()
    bad, other = await fleet.submit(BAD | {"max_attempts": 1}, {"max_attempts": 1})
    for task in await agent.claim(batch=2):
        assert await agent.fail(task, code="X") == "failed"
    await refuse(owner, way)
    await fleet.end(agent.id, State.ACTIVE, ExitCause.WORKER_SICK)
    assert await fleet.status(agent.id) == "terminating"
    assert [(await fleet.task(task_id))["status"] for task_id in (bad, other)] == ["Failed", "Queued"]
    assert await broken(owner) == {}


async def test_the_end_of_a_sick_worker_without_failed_tasks_writes_no_task(
    fleet: Fleet, owner: AsyncConnection[DictRow]
) -> None:
    """A trigger for each statement runs for a statement without rows, too, and its error would be halved."""
    agent = await fleet.agent()
    await owner.execute(
        """create sequence tries;
           create function users_own() returns trigger language plpgsql as $$ begin
               raise 'this is try %', nextval('public.tries'); end $$;
           create trigger a_users before update of uncounted on tasks for each statement execute function users_own()"""
    )
    await fleet.end(agent.id, State.ACTIVE, ExitCause.WORKER_SICK)
    assert await fleet.status(agent.id) == "terminating"
    rows = await owner.execute("select is_called from tries")
    assert await rows.fetchone() == {"is_called": False}


@pytest.mark.parametrize("way", ["raises", "raises at commit", "asserts"])
async def test_a_worker_is_promoted_although_a_task_that_waited_for_its_release_cannot_be_changed(
    fleet: Fleet, owner: AsyncConnection[DictRow], way: str
) -> None:
    """The other tasks that waited become due."""
    await fleet.fleet("declare_release", p_releases={"default": "new"}, p_task_types=["bad", "t"])
    earlier = await fleet.agent(release="old")
    bad, other = await fleet.submit(BAD, {})
    for task in await earlier.claim(batch=2):
        assert await earlier.fail(task, code="NO_HANDLER") == "requeued"
    await refuse(owner, way)
    agent = await fleet.agent(release="new")
    assert await fleet.status(agent.id) == "active"
    assert [(await fleet.task(task_id))["run_after"] is None for task_id in (bad, other)] == [False, True]
    assert await broken(owner) == {}


@pytest.mark.parametrize("way", ["raises", "raises at commit", "asserts"])
async def test_a_failure_is_accepted_although_another_task_of_the_worker_cannot_be_released(
    fleet: Fleet, owner: AsyncConnection[DictRow], way: str
) -> None:
    """The worker is held back; its other tasks go back to the queue."""
    agent = await fleet.agent(metadata={"max_failures": 1})
    bad, first, other = await fleet.submit(BAD, {"priority": 5}, {})
    tasks = {task["id"]: task for task in await agent.claim(batch=3)}
    await refuse(owner, way)
    assert await agent.fail(tasks[first], code="X") == "requeued"
    assert [(await fleet.task(task_id))["status"] for task_id in (bad, other)] == ["In Progress", "Queued"]
    assert await broken(owner) == {}


@pytest.mark.parametrize("way", ["raises", "raises at commit", "asserts"])
async def test_pools_are_declared_although_a_task_cannot_be_moved(
    fleet: Fleet, owner: AsyncConnection[DictRow], way: str
) -> None:
    """A leader that could not declare its pools would start no worker for the other tasks."""
    bad, other = await fleet.submit(BAD, {})
    await refuse(owner, way)
    types = [{"task_type": name, "pool": "large"} for name in ("bad", "t")]
    answer = await fleet.fleet("declare_pools", p_pools=types)
    assert answer == {"declared": 2, "rerouted": 1}
    assert [(await fleet.task(task_id))["pool"] for task_id in (bad, other)] == ["default", "large"]
    assert await broken(owner) == {}


async def test_the_hourly_pass_tries_every_refused_task_that_is_due(
    fleet: Fleet, owner: AsyncConnection[DictRow]
) -> None:
    """However many there are, and however little time each snapshot has for them."""
    agent = await fleet.agent()
    await fleet.submit(count=MANY)
    await owner.execute(
        """insert into task_refusals (task_id, what, reason, refused_at, retry_at, since)
           select id, 'claim', 'no', %s, %s, %s from tasks""",
        (fleet.now,) * 3,
    )
    assert await agent.claim(batch=100) == []
    async with asyncio.timeout(SOON_S):
        while (await demand(fleet))["claimable"] < MANY:
            await fleet.fleet("retention")
    assert len(await agent.claim(batch=100)) == 100
