"""What the database says to `health`: waiting types, lost tasks, what the leader says of itself, and evidence."""

from datetime import datetime
from typing import Any, LiteralString

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.states import Stage, State
from orchestrator.diagnostics.condition_kinds import ConditionKind
from orchestrator.diagnostics.facts import Facts
from orchestrator.diagnostics.rules import conditions
from tests.db.conformance.builders import FLEET, Fleet
from tests.db.diagnostics.build import attempt, bring_up


async def report(fleet: Fleet) -> Any:
    return await fleet.call("fleet_report", p_fleet=FLEET)


async def test_ready_tasks_are_counted_by_type(fleet: Fleet) -> None:
    """A type without a handler is seen before any attempt has failed; blocked tasks are not ready."""
    first, *_ = await fleet.submit({"task_type": "a"}, {"task_type": "a"}, {"task_type": "b"})
    await fleet.submit({"task_type": "c", "depends_on": [first]})
    found = await report(fleet)
    assert [(row["pool"], row["task_type"], row["n"]) for row in found["waiting_types"]] == [
        ("default", "a", 2), ("default", "b", 1),
    ]  # fmt: skip


async def test_the_leader_asks_for_types_without_a_handler(fleet: Fleet) -> None:
    """Among the first tasks of each pool. Without a list of handlers, nothing is known."""
    await fleet.submit({"task_type": "a"}, {"task_type": "b"}, {"task_type": "b", "pool": "second"}, {"task_type": "c"})

    async def missing(*handled: str) -> list[tuple[str, str, int]]:
        found = await fleet.call("fleet_task_troubles", p_fleet=FLEET, p_handled=list(handled))
        return [(row["pool"], row["task_type"], row["n"]) for row in found["waiting_types"]]

    assert await missing("a", "c") == [("default", "b", 1), ("second", "b", 1)]
    assert await missing("a", "b", "c") == await missing() == []
    await fleet.submit(count=500, task_type="a", priority=9)
    assert await missing("a", "c") == [("second", "b", 1)]


async def test_a_task_whose_worker_had_no_handler_for_it_still_waits_for_one(fleet: Fleet) -> None:
    """It is tried again later, which helps nobody as long as there is none."""
    await fleet.submit({"task_type": "b"})
    agent = await fleet.agent()
    (task,) = await agent.claim()
    assert await agent.fail(task, code="NO_HANDLER", message="no handler") == "requeued"
    found = await fleet.call("fleet_task_troubles", p_fleet=FLEET, p_handled=["a"])
    assert [row["n"] for row in found["waiting_types"]] == [1]
    assert found["waiting_types"] == (await report(fleet))["waiting_types"]


async def test_a_task_that_ends_its_workers(fleet: Fleet) -> None:
    """How many workers it has ended, the last one, and why that was lost; a completed attempt is no loss."""
    (task,) = await fleet.submit({"task_type": "a", "max_attempts": 5})
    for number in range(2):
        agent = await fleet.agent()
        assert len(await agent.claim()) == 1
        await fleet.move(agent.id, State.ACTIVE, metadata={"last_snapshot": {"reached": False}})
        await fleet.end(agent.id, State.ACTIVE, ExitCause.POD_LOST)
        await fleet.fleet("rescue", p_worker_id=agent.id)
        fleet.wait(700)
        [row] = (await report(fleet))["lost_tasks"]
        asked = await fleet.call("fleet_task_troubles", p_fleet=FLEET, p_handled=[])
        assert asked["lost_tasks"] == [row]
        assert (row["task_id"], row["workers"], row["worker_id"]) == (task, number + 1, agent.id)
        assert (row["status"], row["exit_cause"], row["look"]) == ("Queued", "pod_lost", {"reached": False})


async def test_a_lost_task_that_another_worker_completed_is_no_finding_any_more(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Nor is it one of two that are left, and each of its attempts has an end."""
    tasks = await fleet.submit(count=2)
    for _ in range(2):
        lost = await fleet.agent()
        assert len(await lost.claim(batch=2)) == 2
        await fleet.end(lost.id, State.ACTIVE, ExitCause.POD_LOST)
        await fleet.fleet("rescue", p_worker_id=lost.id)
        fleet.wait(60)
    agent = await fleet.agent()

    async def found() -> list[tuple[ConditionKind, str]]:
        answer = await fleet.call("fleet_task_troubles", p_fleet=FLEET, p_handled=[])
        seen = Facts(fleet.now, lost_tasks=answer["lost_tasks"])
        return [(one.kind, one.subject) for one in conditions(seen)]

    poison, losses = ConditionKind.POISON_TASK, (ConditionKind.TASKS_LOST, lost.id)
    assert sorted(await found()) == sorted([(poison, tasks[0]), (poison, tasks[1]), losses])
    first, second = await agent.claim(batch=2)
    assert await agent.complete(first) == "ok"
    assert sorted(await found()) == sorted([(poison, second["id"]), losses])
    assert await agent.complete(second) == "ok"
    assert await found() == []
    rows = await (await hand.execute("select outcome, ended_at from task_attempts order by attempt")).fetchall()
    assert [row["outcome"] for row in rows] == ["lost"] * 4 + ["complete"] * 2
    assert None not in [row["ended_at"] for row in rows]


@pytest.mark.parametrize(
    "change", ["update tasks set status = 'Queued' where id = %s", "delete from tasks where id = %s"]
)
async def test_a_task_that_a_user_takes_back_is_no_loss(
    fleet: Fleet, hand: AsyncConnection[DictRow], change: LiteralString
) -> None:
    """Its worker lives, and runs other tasks."""
    (task,) = await fleet.submit({"task_type": "a"})
    agent = await fleet.agent()
    await agent.claim()
    await hand.execute(change, [task])
    assert (await report(fleet))["lost_tasks"] == []


async def test_the_leader_says_that_its_ticks_fail_and_that_the_store_is_away(fleet: Fleet) -> None:
    """Since the first one; until one goes through, or nothing more is said. An older term says nothing."""
    since = fleet.now

    async def note(error: str | None) -> None:
        await fleet.fleet("note_tick", p_error=error, p_for_s=60)

    assert (await report(fleet))["tick_failed"] is None
    await note("BadArgument: first")
    fleet.wait(30)
    await note("BadArgument: second")
    told = (await report(fleet))["tick_failed"]
    assert (told["reason"], datetime.fromisoformat(told["since"])) == ("BadArgument: second", since)
    fleet.wait(60)
    assert (await report(fleet))["tick_failed"] is None
    await note("again")
    await note(None)
    away = {"p_reason": "S3 does not answer", "p_since": fleet.now.isoformat(), "p_for_s": 60}
    await fleet.fleet("store_away", **away)
    found = await report(fleet)
    assert (found["tick_failed"], found["store_away"]["reason"]) == (None, "S3 does not answer")


async def test_a_failed_bring_up_has_its_newest_evidence(fleet: Fleet) -> None:
    """The first line of it is what an operator reads."""
    worker = await bring_up(fleet, Stage.SSH_AUTH)
    for number in range(2):
        await attempt(fleet, worker, Stage.SSH_AUTH, "failed", FailureCode.AUTH_FAILED, cause="refused", banner=number)
    [row] = (await report(fleet))["failed_bringups"]
    assert (row["code"], row["n"], row["cause"]) == ("AUTH_FAILED", 2, "REFUSED")
    assert row["evidence"]["banner"] == 1


async def test_the_leader_hears_of_failed_tasks_if_most_attempts_fail(fleet: Fleet) -> None:
    """Within a quarter of an hour, by type and code, as the rule OrchestratorTasksFail counts."""

    async def failing() -> list[tuple[str, str, int]]:
        asked = await fleet.call("fleet_task_troubles", p_fleet=FLEET, p_handled=[])
        return [(row["task_type"], row["code"], row["n"]) for row in asked["failed_tasks"]]

    await fleet.submit(count=2, task_type="a", max_attempts=1)
    agent = await fleet.agent()
    assert await failing() == []
    for task in await agent.claim(batch=2):
        assert await agent.fail(task, code="OOM") == "failed"
    assert await failing() == [("a", "OOM", 2)]
    for count in (1, 2):
        await fleet.submit({"task_type": "b"})
        (task,) = await agent.claim()
        await agent.complete(task)
        assert await failing() == ([("a", "OOM", 2)] if count == 1 else []), (
            "half of the attempts is not more than half"
        )
    await fleet.submit(count=3, task_type="a", max_attempts=1)
    for task in await agent.claim(batch=3):
        await agent.fail(task, code="OOM")
    assert await failing() == [("a", "OOM", 5)]
    fleet.wait(900)
    assert await failing() == []


async def test_the_leader_hears_why_bring_ups_failed(fleet: Fleet) -> None:
    """The rows of the report, of a quarter of an hour: its messages name the same cause and evidence."""

    async def failed() -> Any:
        return (await fleet.call("fleet_task_troubles", p_fleet=FLEET, p_handled=[]))["failed_bringups"]

    assert await failed() == []
    worker = await bring_up(fleet, Stage.SSH_AUTH)
    for number in range(2):
        await attempt(fleet, worker, Stage.SSH_AUTH, "failed", FailureCode.AUTH_FAILED, cause="refused", banner=number)
    (row,) = found = await failed()
    assert (row["ok_at"], found) == (None, (await report(fleet))["failed_bringups"])
    fleet.wait(10)
    later = await bring_up(fleet, Stage.SSH_AUTH)
    await attempt(fleet, later, Stage.SSH_AUTH, "ok")
    (row,) = found = await failed()
    assert row["ok_at"]
    assert found == (await report(fleet))["failed_bringups"]
    fleet.wait(900)
    assert await failed() == []


async def test_a_report_and_a_tick_count_the_same_expired_leases(fleet: Fleet) -> None:
    """Those of a fleet that is led are its own leader's matter, and no trouble of another fleet."""
    await fleet.submit({"task_type": "a"})
    agent = await fleet.agent()
    assert len(await agent.claim()) == 1
    fleet.wait(7_200)
    await fleet.lead()
    for name, count in ((FLEET, 1), ("other", 0)):
        for function in ("fleet_report", "fleet_snapshot"):
            assert (await fleet.call(function, p_fleet=name))["expired_leases"] == count, (name, function)
