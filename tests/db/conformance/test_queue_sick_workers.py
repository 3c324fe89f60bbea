"""A worker that fails one task after the other claims no more; its tasks get one attempt back if it was sick."""

from datetime import datetime
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.states import Stage, State
from tests.db.conformance.builders import FLEET, Agent, Fleet, result

FAILURE = {"code": "HANDLER_ERROR", "message": "no CUDA device", "exit_class": "exception"}


async def fail_one(agent: Agent) -> dict[str, Any]:
    (task,) = await agent.claim()
    assert await agent.fail(task, **FAILURE) in {"requeued", "failed"}
    return dict(task)


async def sick(fleet: Fleet, agent: Agent, cause: ExitCause = ExitCause.WORKER_SICK) -> None:
    state = State(await fleet.status(agent.id))
    end = {"exit_cause": cause, "failure_code": FailureCode.TASKS_FAIL_HERE}
    await fleet.move(agent.id, state, State.TERMINATING, stage=Stage.DRAINING, **end)


async def row(fleet: Fleet, agent: Agent) -> dict[str, Any]:
    return dict((await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=agent.id))["worker"])


async def test_a_worker_claims_no_more_after_five_different_tasks_failed_in_a_row(fleet: Fleet) -> None:
    """The row says why; the queue stays for others."""
    await fleet.submit(count=20)
    agent, other = await fleet.agent(), await fleet.agent()
    for _ in range(5):
        await fail_one(agent)
    assert await agent.claim() == []
    seen = await row(fleet, agent)
    assert seen["held_back"] == {
        "since": fleet.now.isoformat(), "first": fleet.now.isoformat(), "failures": 5, "types": ["t"],
        "codes": ["HANDLER_ERROR"], "suspect": True, "trials": 0, "until": None,
        "worked": False,
    }  # fmt: skip
    assert seen["waiting_for"] == (
        "another worker to try its tasks: it claims no more after 5 different tasks failed in a row (HANDLER_ERROR)"
    )
    assert len(await other.claim(batch=3)) == 3


async def test_the_limit_is_the_setting_that_its_pod_was_asked_for_with(fleet: Fleet) -> None:
    """WORKER_MAX_CONSECUTIVE_FAILURES travels in the row."""
    await fleet.submit(count=5)
    agent = await fleet.agent(metadata={"max_failures": 2})
    await fail_one(agent)
    await fail_one(agent)
    assert await agent.claim() == []


async def test_a_success_and_a_repeated_task_begin_the_count_again(fleet: Fleet) -> None:
    """Failures count as different tasks since the last success."""
    await fleet.submit(count=30)
    agent = await fleet.agent()
    for _ in range(3):
        for _ in range(4):
            fleet.wait(1)
            await fail_one(agent)
        fleet.wait(1)
        (task,) = await agent.claim()
        assert await agent.complete(task) == "ok"
    assert (await row(fleet, agent))["held_back"] is None


async def test_one_poisonous_task_holds_no_worker_back(fleet: Fleet) -> None:
    """However often it fails."""
    await fleet.submit(max_attempts=9)
    agent = await fleet.agent()
    for _ in range(8):
        await fail_one(agent)
        fleet.wait(7200)
    assert (await row(fleet, agent))["held_back"] is None


async def test_the_rest_of_a_claim_goes_to_other_workers_uncounted(fleet: Fleet) -> None:
    """An agent of an earlier release would fail all hundred tasks that it claimed at once."""
    await fleet.submit(count=12)
    agent, other = await fleet.agent(), await fleet.agent()
    tasks = await agent.claim(batch=12)
    for task in tasks[:5]:
        await agent.fail(task, **FAILURE)
    assert await agent.fail(tasks[5], **FAILURE) == "fenced"
    again = await other.claim(batch=12)
    assert {task["id"] for task in again} == {task["id"] for task in tasks[5:]}
    assert (await fleet.task(tasks[5]["id"]))["uncounted"] == 1


async def test_each_task_of_a_sick_worker_gets_one_attempt_back_once_in_its_life(fleet: Fleet) -> None:
    """Also one that had used its last attempt; a task that fails everywhere still ends."""
    ids = await fleet.submit(count=5, max_attempts=1)
    (dependant,) = await fleet.submit(depends_on=[ids[0]])
    agent = await fleet.agent()
    for _ in range(5):
        await fail_one(agent)
    assert {(await fleet.task(one))["status"] for one in ids} == {"Failed"}
    await sick(fleet, agent)
    assert {(await fleet.task(one))["status"] for one in ids} == {"Queued"}
    assert (await fleet.task(dependant))["status"] == "Queued"
    second = await fleet.agent()
    for _ in range(5):
        await fail_one(second)
    await sick(fleet, second)
    assert {(await fleet.task(one))["status"] for one in ids} == {"Failed"}


async def test_the_tasks_of_a_bad_release_get_no_attempt_back(fleet: Fleet) -> None:
    """They failed on a healthy worker."""
    ids = await fleet.submit(count=5, max_attempts=2)
    agent = await fleet.agent()
    for _ in range(5):
        await fail_one(agent)
    await sick(fleet, agent, ExitCause.RELEASE_BAD)
    assert {(await fleet.task(one))["uncounted"] for one in ids} == {0}


async def opinion(fleet: Fleet, agent: Agent) -> Any:
    rows = (await fleet.snapshot())["workers"]
    return next(one["second_opinion"] for one in rows if one["id"] == agent.id)


async def test_the_snapshot_tells_what_the_same_tasks_did_elsewhere(fleet: Fleet) -> None:
    """The planner needs it to find the cause. Other tasks of the same type do not count."""
    await fleet.submit(count=5)
    agent, other = await fleet.agent(), await fleet.agent()
    assert await opinion(fleet, agent) is None
    for _ in range(5):
        await fail_one(agent)
    await fleet.submit(priority=5)
    fleet.wait(1)
    assert await other.complete((await other.claim())[0]) == "ok"
    untried = {"done": 0, "shared": 0, "works": True, "meanwhile": False, "alike": False, "unlike": False}
    assert await opinion(fleet, agent) == untried
    fleet.wait(60)
    done, failing = await other.claim(batch=2)
    assert await other.complete_many(result(done)) == ["ok"]
    assert await other.fail(failing, **FAILURE) == "requeued"
    assert await opinion(fleet, agent) == untried | {"done": 1, "shared": 1}


async def test_a_task_that_fails_on_the_same_machine_again_is_no_second_opinion(fleet: Fleet) -> None:
    """Both pods may be on a sick machine."""
    await fleet.submit(count=5)
    agent, other = await fleet.agent(), await fleet.agent()
    for one in (agent, other):
        await fleet.move(one.id, State.ACTIVE, machine_id="m1")
    for _ in range(5):
        await fail_one(agent)
    fleet.wait(60)
    await fail_one(other)
    assert (await opinion(fleet, agent))["shared"] == 0


async def test_a_task_that_another_worker_started_before_the_failures_is_no_second_opinion(fleet: Fleet) -> None:
    """A release may fail everywhere from one moment on: then no host is to blame."""
    await fleet.submit(count=8)
    agent, other = await fleet.agent(), await fleet.agent()
    before = await other.claim(batch=2)
    assert await other.complete(before[0]) == "ok"
    fleet.wait(1)
    for _ in range(5):
        await fail_one(agent)
    fleet.wait(1)
    assert await other.complete(before[1]) == "ok"
    assert (await row(fleet, agent))["held_back"] is not None
    assert (await opinion(fleet, agent))["meanwhile"] is False


async def test_a_suspect_claims_again_if_its_tasks_fail_elsewhere_too(fleet: Fleet) -> None:
    """They say nothing about it then. Its next success ends the hold, and the next hold counts from there."""
    await fleet.submit(count=5)
    agent, other = await fleet.agent(), await fleet.agent()
    for _ in range(5):
        await fail_one(agent)
    fleet.wait(60)
    assert await agent.claim() == []
    for _ in range(3):
        await fail_one(other)
    await fleet.maintain(1)
    (task,) = await agent.claim()
    assert (await row(fleet, agent))["held_back"]["suspect"] is False
    assert await agent.complete(task) == "ok"
    await fleet.maintain(1)
    assert (await row(fleet, agent))["held_back"] is None


async def test_the_pause_of_a_worker_whose_tasks_fail_everywhere_grows(fleet: Fleet) -> None:
    """20 s, 40 s and so on, up to five minutes: a release that fails costs ever fewer attempts."""
    await fleet.submit(count=60, max_attempts=50)
    agent, other = await fleet.agent(), await fleet.agent()
    pauses: list[float] = []
    for _ in range(9):
        for one in (other, agent):
            for _ in range(12):  # more than it may fail before it is held back
                for task in await one.claim():
                    await one.fail(task, **FAILURE)
        held = (await row(fleet, agent))["held_back"]
        if held["until"] is not None:
            pauses.append((datetime.fromisoformat(held["until"]) - fleet.now).total_seconds())
        fleet.wait(310)
    assert pauses == sorted(pauses)
    assert pauses[-1] == 300


async def test_failures_that_the_handler_calls_permanent_hold_no_worker_back(fleet: Fleet) -> None:
    """Bad inputs say nothing about the worker; one other failure among them does."""
    await fleet.submit(count=30)
    agent = await fleet.agent()
    for _ in range(12):
        (task,) = await agent.claim()
        assert await agent.fail(task, retryable=False, **FAILURE) == "failed"
    assert (await row(fleet, agent))["held_back"] is None
    await fail_one(agent)
    assert (await row(fleet, agent))["held_back"]["failures"] == 13


async def test_permanent_failures_hold_a_worker_back_if_another_one_completes_such_tasks(fleet: Fleet) -> None:
    """A handler on a sick machine may call everything permanent; then such tasks succeed elsewhere."""
    await fleet.submit(count=30)
    agent, other = await fleet.agent(), await fleet.agent()
    for number in range(6):
        (task,) = await agent.claim()
        await agent.fail(task, retryable=False, **FAILURE)
        if number == 4:
            assert (await row(fleet, agent))["held_back"] is None
            assert await other.complete((await other.claim())[0]) == "ok"
    assert (await row(fleet, agent))["held_back"]["failures"] == 6


async def test_of_two_tasks_with_one_key_one_gets_its_attempt_back(fleet: Fleet) -> None:
    """Both failed on the sick worker, one after the other: only one task with the key may wait, and the worker ends."""
    agent = await fleet.agent()
    for _ in range(2):
        await fleet.submit(dedupe_key="key", max_attempts=1)
        fleet.wait(1)
        await fail_one(agent)
    await sick(fleet, agent)
    other = await fleet.agent()
    assert len(await other.claim(batch=9)) == 1


async def test_a_users_row_that_names_the_tasks_keeps_none_of_their_attempts(
    fleet: Fleet, database: str, hand: AsyncConnection[DictRow]
) -> None:
    """A foreign key of an open transaction locks a task's key, which no call changes."""
    await hand.execute("create table named (task_id uuid references tasks (id))")
    agent = await fleet.agent()
    ids = await fleet.submit(count=6, max_attempts=3)
    async with await psycopg.AsyncConnection.connect(database) as user:
        await user.execute("insert into named select id from tasks")
        *failing, running = await agent.claim(batch=6)
        for task in failing:
            assert await agent.fail(task, **FAILURE) == "requeued"
        assert (await fleet.task(running["id"]))["status"] == "Queued", "its worker claims no more, and has released it"
        await sick(fleet, agent)
    assert [(await fleet.task(task_id))["uncounted"] for task_id in ids] == [1] * 6
    await hand.execute("drop table named")
