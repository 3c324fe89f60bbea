"""Tasks on a machine that failed or was cut off: queued again at once; the attempt does not count, within a bound."""

from typing import Any

import pytest

from orchestrator.adapters.store import SqlStore
from orchestrator.core.exit_causes import ABRUPT, FAILURES, ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.findings import Severity
from orchestrator.core.states import Stage, State
from orchestrator.ports import Db
from tests.db.conformance.builders import FLEET, Agent, Fleet

FAILURE = {"code": "HANDLER_ERROR", "message": "CUDA error: unspecified launch failure", "exit_class": "exception"}
FAULTS = [ExitCause.GPU_FAULT, ExitCause.HOST_FAULT]
XID_79 = {"u": 22, "code": "XID_79", "severity": "C", "since": 1763881200.0, "evidence": "fallen off the bus"}


async def ended(fleet: Fleet, agent: Agent, cause: ExitCause, code: FailureCode = FailureCode.GPU_LOST) -> None:
    """What the executor does to a worker with this end."""
    state = State(await fleet.status(agent.id))
    end = {"exit_cause": cause, "failure_code": code}
    await fleet.move(agent.id, state, State.TERMINATING, stage=Stage.DRAINING, **end)
    await fleet.fleet("rescue", p_worker_id=agent.id)


async def task(fleet: Fleet, task_id: str) -> tuple[Any, ...]:
    row = await fleet.task(task_id)
    return row["status"], row["attempts"] - row["uncounted"], row["failure_code"], row["run_after"]


@pytest.mark.parametrize("cause", FAULTS)
async def test_a_task_on_a_failed_machine_is_queued_again_uncounted(fleet: Fleet, cause: ExitCause) -> None:
    """Also at its last attempt, and at once."""
    (name,) = await fleet.submit(max_attempts=1)
    agent, other = await fleet.agent(), await fleet.agent()
    assert len(await agent.claim()) == 1
    await ended(fleet, agent, cause)
    assert await task(fleet, name) == ("Queued", 0, "MACHINE_FAULT", None)
    (again,) = await other.claim()
    assert await other.complete(again) == "ok"


async def test_a_task_that_makes_machines_fail_ends(fleet: Fleet) -> None:
    """Three such attempts do not count; then they do."""
    (name,) = await fleet.submit(max_attempts=2)
    seen = []
    for _ in range(5):
        agent = await fleet.agent()
        fleet.wait(60)
        assert len(await agent.claim()) == 1
        await ended(fleet, agent, ExitCause.GPU_FAULT)
        seen.append((await task(fleet, name))[:2])
    assert seen == [("Queued", 0), ("Queued", 0), ("Queued", 0), ("Queued", 1), ("Failed", 2)]


async def test_an_outage_of_the_gateway_uses_up_no_attempt(fleet: Fleet) -> None:
    """Up to three of them: a task that breaks the network of its pods must not run without end."""
    (name,) = await fleet.submit(max_attempts=1)
    seen = []
    for _ in range(4):
        agent = await fleet.agent()
        assert len(await agent.claim()) == 1
        await ended(fleet, agent, ExitCause.HEARTBEAT_LOST, FailureCode.GATEWAY_UNREACHED)
        seen.append(await task(fleet, name))
    assert seen == [("Queued", 0, "GATEWAY_UNREACHED", None)] * 3 + [("Failed", 1, "GATEWAY_UNREACHED", None)]


@pytest.mark.parametrize("cause", FAULTS)
async def test_a_task_that_failed_on_the_machine_before_the_finding_gets_its_attempt_back(
    fleet: Fleet, cause: ExitCause
) -> None:
    """The handler often fails some seconds before the agent finds the cause."""
    (name,) = await fleet.submit(max_attempts=1)
    agent = await fleet.agent()
    (claimed,) = await agent.claim()
    assert await agent.fail(claimed, **FAILURE) == "failed"
    await ended(fleet, agent, cause)
    assert (await task(fleet, name))[:2] == ("Queued", 0)


@pytest.mark.parametrize("cause", sorted(FAILURES - ABRUPT))
async def test_a_task_that_a_drain_cuts_off_does_not_count(fleet: Fleet, cause: ExitCause) -> None:
    """It did nothing wrong."""
    (name,) = await fleet.submit(max_attempts=1)
    agent = await fleet.agent()
    assert len(await agent.claim()) == 1
    await ended(fleet, agent, cause)
    assert (await task(fleet, name))[:3] == ("Queued", 0, "RELEASED")


async def test_the_snapshot_shows_findings_and_the_machine_faults_of_an_hour(fleet: Fleet, db: Db) -> None:
    """They say whether a finding is a fleet alarm."""
    store = SqlStore(db, FLEET)
    agent = await fleet.agent()
    await agent.beat(p_health={"findings": [XID_79, {"code": 5}]})
    (worker,) = (await store.snapshot()).workers
    assert [(one.code, one.severity) for one in worker.findings] == [("XID_79", Severity.REPLACE)]
    assert not worker.is_fit
    await agent.beat(p_health=None)
    (worker,) = (await store.snapshot()).workers
    assert len(worker.findings) == 1, "null says that nothing has changed"
    await ended(fleet, agent, ExitCause.GPU_FAULT)
    fell = fleet.now
    fleet.wait(3599)
    assert (await fleet.snapshot())["faults"] == [
        {"worker_id": agent.id, "failure_code": "GPU_LOST", "at": fell.isoformat()}
    ]
    fleet.wait(2)
    assert (await fleet.snapshot())["faults"] == []
