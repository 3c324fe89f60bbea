"""`timeline <worker>`: everything in order, with durations, gaps and the cost of each state."""

from typing import Any

import pytest

from orchestrator import cli_timeline
from orchestrator.core.states import ExitCause, Stage, State
from orchestrator.diagnostics.timeline import Entry, by_state, entries
from tests.conformance.builders import FLEET, Agent, Fleet
from tests.diagnostics.build import POD, attempt, lines


async def life(fleet: Fleet) -> Any:
    """A worker that waited, failed once, was promoted, ran a task and ended; as fleet_worker() shows it."""
    worker = await fleet.spawn()
    fleet.wait(30)
    await attempt(fleet, worker, Stage.POD_CREATED, code="NO_CAPACITY", took_s=1, error="none left")
    await fleet.move(worker, State.SPAWNING, waiting_for="a pod from GPU|*|SECURE")
    fleet.wait(40)
    await fleet.move(worker, State.SPAWNING, stage=Stage.POD_RUNNING, nonce="n", **POD)
    await attempt(fleet, worker, Stage.POD_RUNNING, "ok", took_s=100)
    await fleet.move(worker, State.SPAWNING, State.ACTIVE, stage=Stage.PROMOTED, reason="verified")
    await fleet.submit()
    agent = await fleet_agent(fleet, worker)
    (task,) = await agent.claim()
    fleet.wait(50)
    await agent.complete(task)
    await agent.claim()
    fleet.wait(200)
    await fleet.end(worker, State.IDLE, ExitCause.IDLE_TIMEOUT)
    await attempt(fleet, worker, Stage.DELETING, "ok", took_s=3, known=True)
    await fleet.move(worker, State.TERMINATING, State.TERMINATED)
    fleet.wait(500)
    return await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=worker)


async def fleet_agent(fleet: Fleet, worker: str) -> Any:
    """The agent of a worker that was promoted."""
    agent = Agent(fleet, worker, "n")
    await agent.call("register", p_agent={"protocol": 1})
    return agent


async def test_everything_stands_in_order_with_how_long_it_took(fleet: Fleet) -> None:
    """States, stages, attempts, tasks and gaps."""
    found = await life(fleet)
    told = [(entry.kind, entry.what.split(" ")[0], round(entry.seconds(fleet.now))) for entry in entries(found)]
    assert told == [
        ("state", "spawning", 171),
        ("gap", "nothing", 30),
        ("attempt", "pod_created", 1),
        ("gap", "nothing", 40),
        ("stage", "pod_running", 100),
        ("attempt", "pod_running", 100),
        ("state", "active", 50),
        ("task", "task", 50),
        ("state", "idle", 200),
        ("state", "terminating", 3),
        ("attempt", "deleting", 3),
        ("state", "terminated", 0),
    ]
    notes = {entry.what: entry.note for entry in entries(found)}
    assert notes["pod_created attempt 1"] == "failed NO_CAPACITY: none left"
    assert notes["terminating"] == "test; exit_cause idle_timeout"


async def test_each_state_has_its_time_and_its_dollars(fleet: Fleet) -> None:
    """Nothing is booked before there was a pod."""
    sums = {state.state: (state.seconds, state.usd) for state in by_state(await life(fleet))}
    assert sums["spawning"] == pytest.approx((171, 0.02))
    assert sums["active"] == pytest.approx((50, 0.01))
    assert sums["idle"] == pytest.approx((200, 0.04))
    assert sums["terminating"] == pytest.approx((3, 0.0006))


async def test_what_still_goes_on_has_no_end(fleet: Fleet) -> None:
    """It counts up to now."""
    worker = await fleet.spawn()
    fleet.wait(4)
    found = await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=worker)
    (only,) = entries(found)
    assert (only.until, only.seconds(fleet.now)) == (None, 4)


@pytest.mark.parametrize("width", [80, 160])
async def test_it_can_be_read_at_every_width(fleet: Fleet, width: int) -> None:
    """No line is cut, and no word of a note is lost."""
    found = await life(fleet)
    made: tuple[Entry, ...] = entries(found)
    drawn = cli_timeline.narrow if width < 130 else cli_timeline.wide
    shown = lines(drawn(made, found["worker"]["created_at"], fleet.now), width=width)
    assert max(map(len, shown)) <= width
    assert not [line for line in shown if "…" in line]
    flat = " ".join(" ".join(shown).split())
    for words in ("failed NO_CAPACITY: none left", "exit_cause idle_timeout", "nothing under way"):
        assert words in flat


async def test_a_stage_that_is_climbed_is_not_said_twice(fleet: Fleet) -> None:
    """Its name stands there already; any other reason is shown."""
    worker = await fleet.spawn()
    await fleet.move(worker, State.SPAWNING, stage=Stage.TCP, reason="climbing: tcp")
    await fleet.move(worker, State.SPAWNING, stage=Stage.SSH_AUTH, reason="its key is known")
    found = await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=worker)
    assert [entry.note for entry in entries(found) if entry.kind == "stage"] == ["", "its key is known"]
