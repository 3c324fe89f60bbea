"""`timeline <worker>`: everything in order, with durations, gaps and the cost of each state."""

import time
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.cli.commands import timeline
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.states import Stage, State
from orchestrator.diagnostics.timeline import Entry, by_state, entries
from tests.db.conformance.builders import FLEET, Agent, Fleet, result
from tests.db.diagnostics.build import POD, attempt, lines

QUICK_S = 5.0  # for 100,000 events, which take 0.2 s on a machine that does nothing else


async def life(fleet: Fleet) -> Any:
    """A worker that waited, failed once, was promoted, ran a task and ended; as fleet_worker() shows it."""
    worker = await fleet.spawn()
    fleet.wait(30)
    await attempt(fleet, worker, Stage.POD_CREATED, code="NO_CAPACITY", took_s=1, error="none left")
    await fleet.move(worker, State.SPAWNING, waiting_for="a pod: GPU, any data centre, secure cloud")
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


async def test_entries_are_in_order_with_their_duration(fleet: Fleet) -> None:
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


async def test_an_address_that_changed_is_a_line_of_its_own(fleet: Fleet) -> None:
    """Beside the stage that goes on, with from where to where."""
    worker = await fleet.spawn()
    for port, why in ((4001, "bring-up: tcp"), (4002, "SSH moved from 1.2.3.4:4001 to 1.2.3.4:4002")):
        await fleet.move(worker, State.SPAWNING, reason=why, ssh_host="1.2.3.4", ssh_port=port)
        fleet.wait(10)
    told = entries(await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=worker))
    seen = [(entry.what, entry.note, entry.seconds(fleet.now)) for entry in told if entry.kind != "gap"]
    assert seen[1:] == [("address", "SSH moved from 1.2.3.4:4001 to 1.2.3.4:4002", 0)]


async def test_each_state_has_its_time_and_its_dollars(fleet: Fleet) -> None:
    """Nothing is booked before there was a pod."""
    sums = {state.state: (state.seconds, state.usd) for state in by_state(await life(fleet))}
    assert sums["spawning"] == pytest.approx((171, 0.02))
    assert sums["active"] == pytest.approx((50, 0.01))
    assert sums["idle"] == pytest.approx((200, 0.04))
    assert sums["terminating"] == pytest.approx((3, 0.0006))


async def test_an_open_period_has_no_end(fleet: Fleet) -> None:
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
    drawn = timeline.narrow if width < 130 else timeline.wide
    shown = lines(drawn(made, found["worker"]["created_at"], fleet.now), width=width)
    assert max(map(len, shown)) <= width
    assert not [line for line in shown if "…" in line]
    flat = " ".join(" ".join(shown).split())
    for words in ("failed NO_CAPACITY: none left", "exit_cause idle_timeout", "nothing under way"):
        assert words in flat


async def test_a_stage_that_is_under_way_is_not_said_twice(fleet: Fleet) -> None:
    """Its name stands there already; any other reason is shown."""
    worker = await fleet.spawn()
    await fleet.move(worker, State.SPAWNING, stage=Stage.TCP, reason="bring-up: tcp")
    await fleet.move(worker, State.SPAWNING, stage=Stage.SSH_AUTH, reason="its key is known")
    found = await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=worker)
    assert [entry.note for entry in entries(found) if entry.kind == "stage"] == ["", "its key is known"]


async def stepped(fleet: Fleet, hand: AsyncConnection[DictRow], steps: int) -> Any:
    """A worker that was idle for 1 s and active for 30 s so many times, then idle for 7 s; as `life`."""
    agent = await fleet.agent(State.IDLE)
    step = (
        "insert into worker_events (worker_id, fleet, from_state, to_state, from_stage, to_stage, reason, actor, at) "
        "select %(id)s, %(fleet)s, x.a, x.b, 'promoted', 'promoted', 'test', 'worker', x.at "
        "from generate_series(0, %(n)s - 1) n, lateral (values "
        "('idle', 'active', %(now)s + (n * 31 + 1) * interval '1 s'), "
        "('active', 'idle', %(now)s + (n + 1) * 31 * interval '1 s')) x (a, b, at) order by x.at"
    )
    await hand.execute(step, {"id": agent.id, "fleet": FLEET, "n": steps, "now": fleet.now})
    fleet.wait(steps * 31 + 7)
    return await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=agent.id)


async def test_omitted_entries_are_one_line_without_a_duration(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """The states have all their seconds; no line but that of the hole is as long as it."""
    found = await stepped(fleet, hand, 2_000)
    sums = {state.state: state.seconds for state in by_state(found)}
    assert sums == {"spawning": 0, "active": 60_000, "idle": 2_007}
    made = entries(found)
    (hole,) = [entry for entry in made if entry.kind == "hole"]
    count = 3 + 2 * 2_000 - 1_000  # its intent, its promotion and its first wait besides
    assert (hole.what, hole.seconds(fleet.now) > 30_000) == (f"… {count} events not shown", True)
    assert max(entry.seconds(fleet.now) for entry in made if entry.kind != "hole") == 30
    assert [entry for entry in made if entry.until is None] == [made[-1]]
    assert (made.index(hole), made[199].at, made[201].at) == (200, hole.at, hole.until)
    for drawn, width in ((timeline.narrow, 80), (timeline.wide, 160)):
        shown = lines(drawn(made, found["worker"]["created_at"], fleet.now), width=width)
        assert sum(hole.what in line for line in shown) == 1


async def test_omitted_tasks_are_counted(fleet: Fleet) -> None:
    """Between the promotion and the first that is shown."""
    agent = await fleet.agent()
    await fleet.submit(count=1_020)
    for _ in range(51):
        tasks = await agent.claim(batch=20)
        fleet.wait(1)
        await agent.complete_many(*map(result, tasks))
    found = await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=agent.id)
    made = entries(found)
    first = next(entry for entry in made if entry.kind == "task")
    (hole,) = [entry for entry in made if entry.kind == "hole"]
    assert (hole.what, hole.seconds(fleet.now), hole.until) == ("… 20 tasks not shown", 1, first.at)


async def test_omitted_attempts_are_no_gap(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Nothing is known of that time."""
    worker = await fleet.spawn()
    await hand.execute(
        "insert into worker_attempts (worker_id, stage, attempt, term, started_at, ended_at, outcome) "
        "select %(id)s, 'tcp', n, 1, x.at, x.at + interval '1 s', 'failed' from generate_series(1, 1100) n, "
        "lateral (select %(now)s + n * interval '1 s') x (at)",
        {"id": worker, "now": fleet.now},
    )
    fleet.wait(1_101)
    made = entries(await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=worker))
    holes = [(entry.what, entry.seconds(fleet.now)) for entry in made if entry.kind in {"hole", "gap"}]
    assert holes == [("… 100 attempts not shown", 101)]


async def test_a_worker_with_very_many_events_is_read_quickly(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Its end reads its row with them."""
    await stepped(fleet, hand, 50_000)
    began = time.perf_counter()
    await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id="gpu-1")
    assert time.perf_counter() - began < QUICK_S


async def test_a_worker_whose_events_were_deleted_has_its_attempts_and_tasks(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Retention keeps a worker longer than its events."""
    worker = (await life(fleet))["worker"]["id"]
    await hand.execute("delete from worker_events where worker_id = %s", (worker,))
    found = await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=worker)
    made = entries(found)
    assert {entry.kind for entry in made} == {"attempt", "task"}
    for drawn, width in ((timeline.narrow, 80), (timeline.wide, 160)):
        assert lines(drawn(made, found["worker"]["created_at"], fleet.now), width=width)
    by_state(found)
