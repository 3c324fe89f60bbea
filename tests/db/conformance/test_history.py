"""The history for charts, the roll-ups and the totals: they equal what a recount of the rows gives."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.core.states import State
from orchestrator.ports import BadArgument, NotLeader
from tests.db.conformance.builders import FLEET, START, Agent, Fleet, result

HOUR_S = 3600
RAW = """select dimension, name, tasks, attempts, completed, failed, given_up, completed_s, seconds, usd, wasted_usd
  from {source} u where {only} order by 1, 2"""
WORK = "orchestrator.usage_of_tasks('default', %(since)s, %(until)s, '-infinity', %(until)s, null)"
PAID = "orchestrator.usage_of_workers('default', %(since)s, %(until)s, %(until)s, null)"
ROWS = f"(select * from {WORK} union all select * from {PAID})"  # noqa: S608


@pytest.fixture
async def fleet(direct: PostgresDb) -> Fleet:
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    return fleet


async def later(fleet: Fleet, *, days: int) -> None:
    """Days pass, and the lease with them."""
    fleet.wait(days * 86_400)
    fleet.term = (await fleet.lead())["term"]


async def recorded(fleet: Fleet) -> None:
    """The leader's record of now, with all that is due."""
    while (await fleet.fleet("record"))["more"]:
        pass


async def worked(fleet: Fleet, agent: Agent, *, count: int, took_s: float) -> None:
    """Some tasks of several types, tenants and labels, one of which fails in the end and one is tried again."""
    kinds: Sequence[dict[str, Any]] = (
        {"task_type": "a", "tenant": "x", "labels": {"show": "one"}},
        {"task_type": "b", "labels": {"show": "two", "user": "u"}, "max_attempts": 1},
        {"task_type": "a", "tenant": "y"},
    )
    await fleet.submit(*(kinds[n % 3] for n in range(count)))
    for _ in range(count):
        (task,) = await agent.claim()
        fleet.wait(took_s)
        if task["task_type"] == "b":
            await agent.fail(task, code="OOM")
        else:
            await agent.complete(task)


async def history(fleet: Fleet, **args: Any) -> Any:
    """The history of an hour."""
    asked = {"p_since": fleet.now - timedelta(hours=1), "p_step_s": None, "p_pool": None} | args
    return await fleet.call("fleet_history", p_fleet=FLEET, **asked)


async def test_a_minute_is_recorded_once_with_what_the_leader_sees(fleet: Fleet) -> None:
    """One row a pool: the queue, the workers by state, their price, and the attempts that ended since the last row."""
    agent = await fleet.agent()
    await fleet.spawn()
    await fleet.fleet("record")
    await fleet.submit({}, {}, {}, {"run_after": (fleet.now + timedelta(hours=1)).isoformat()})
    done, lost, _ = await agent.claim(batch=3)
    fleet.wait(59)
    await agent.complete(done)
    await agent.fail(lost, code="OOM")
    fleet.wait(1)  # less than the pause before the next attempt
    assert (await fleet.fleet("record"))["minute"] is not None
    assert (await fleet.fleet("record"))["minute"] is None
    (point,) = (await history(fleet, p_since=fleet.now - timedelta(seconds=1)))["pools"]["default"]
    shown = {name: float(value) for name, value in point.items() if name != "at"}
    assert shown == {
        "ready": 0, "ready_most": 0, "waiting": 2, "running": 1, "spawning": 1, "active": 1, "idle": 0, "ending": 0,
        "usd_per_hour": 3.6, "completed": 1, "failed": 1,
    }  # fmt: skip


async def test_an_earlier_leader_records_nothing(fleet: Fleet) -> None:
    """Its term is over."""
    fleet.term -= 1
    with pytest.raises(NotLeader):
        await fleet.fleet("record")


async def test_a_history_has_at_most_360_points_whatever_its_length(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """A week in steps of 28 minutes: means, and the most that were ready."""
    await hand.execute(
        """insert into orchestrator.pool_minutes
           select 'default', 'default', %s::timestamptz - n * interval '1 min', n %% 2, 0, 0, 0, 0, 0, 0, 1, 1, 0
             from generate_series(0, 7 * 1440 - 1) n""",
        (START,),
    )
    told = await history(fleet, p_since=START - timedelta(days=7))
    points = told["pools"]["default"]
    assert (told["step_s"], 355 <= len(points) <= 361) == (28 * 60, True)
    assert sum(point["completed"] for point in points) == 7 * 1440
    assert {(float(point["ready"]), point["ready_most"]) for point in points[1:-1]} == {(0.5, 1)}
    hour = await history(fleet, p_pool="default")
    assert (hour["step_s"], len(hour["pools"]["default"])) == (60, 60)
    assert (await history(fleet, p_pool="none"))["pools"] == {}


async def test_a_worker_has_a_reading_for_each_minute(fleet: Fleet) -> None:
    """Of its last heartbeat. What is no number is unknown; after two silent minutes there is none."""
    agent = await fleet.agent()
    await agent.beat(p_health={"gpu": {"percent": 87.5, "used_mb": 20_000, "total_mb": 46_068}})
    await fleet.fleet("record")
    fleet.wait(60)
    await agent.beat(p_health={"gpu": {"percent": "much"}, "vram_used_mb": 7})
    await fleet.fleet("record")
    told = await fleet.call("fleet_worker_history", p_fleet=FLEET, p_worker_id=agent.id)
    read = [(one["gpu_percent"], one["gpu_used_mb"], one["gpu_total_mb"], one["status"]) for one in told["points"]]
    assert read == [(87.5, 20_000, 46_068, "active"), (None, 7, None, "active")]
    fleet.wait(180)
    await fleet.fleet("record")
    assert await fleet.call("fleet_worker_history", p_fleet=FLEET, p_worker_id=agent.id) == told | {
        "now": fleet.now.isoformat()
    }
    assert (await fleet.call("fleet_worker_history", p_fleet="other", p_worker_id=agent.id))["points"] == []


async def test_roll_ups_equal_a_recount(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Of each ten minutes and of each day, by every dimension; a report over them equals one over the rows."""
    agent = await fleet.agent()
    for _ in range(3):
        await worked(fleet, agent, count=9, took_s=600)
        fleet.wait(9 * HOUR_S)
    await fleet.end(agent.id, State.ACTIVE)
    fleet.wait(2 * HOUR_S)
    window = {"p_fleet": FLEET, "p_since": START + timedelta(minutes=20), "p_until": None}
    before = [await fleet.call("fleet_cost", **window), await fleet.call("fleet_efficiency", **window)]
    by = [await fleet.call("fleet_cost_by", **window, p_by=by, p_limit=9) for by in ("tenant", "label:show")]
    await recorded(fleet)
    parts = await (await hand.execute("select distinct at from orchestrator.usage where span = 'part'")).fetchall()
    assert len(parts) >= 30
    for row in parts:
        await _equals_its_rows(hand, "part", row["at"], timedelta(minutes=10))
    await _equals_its_rows(hand, "day", START.replace(hour=0), timedelta(days=1))
    after = [await fleet.call("fleet_cost", **window), await fleet.call("fleet_efficiency", **window)]
    for old, new in zip(before, after, strict=True):
        assert {**old, "queue_mean": 0, "tasks": 0} == {**new, "queue_mean": 0, "tasks": 0}
    assert [one["id"] for one in after[0]["tasks"]].sort() == [one["id"] for one in before[0]["tasks"]].sort()
    assert by == [await fleet.call("fleet_cost_by", **window, p_by=by, p_limit=9) for by in ("tenant", "label:show")]


async def _equals_its_rows(hand: AsyncConnection[DictRow], span: str, at: Any, length: timedelta) -> None:
    """What is stored of a span is what its rows say. Of a day, tasks have only the first of each part."""
    named = {"since": at, "until": at + length, "span": span}
    stored = RAW.format(source="orchestrator.usage", only="span = %(span)s and at = %(since)s and dimension <> 'task'")
    raw = RAW.format(source=ROWS, only="dimension <> 'task'")
    kept, counted = [await (await hand.execute(text.encode(), named)).fetchall() for text in (stored, raw)]
    assert [_rounded(row) for row in kept] == [_rounded(row) for row in counted], (span, at)


def _rounded(row: DictRow) -> dict[str, Any]:
    return {name: value if isinstance(value, str) else round(float(value), 6) for name, value in row.items()}


async def test_usage_is_shown_by_hour_or_day(fleet: Fleet) -> None:
    """With when the next hour begins that is not stored yet."""
    agent = await fleet.agent()
    await worked(fleet, agent, count=3, took_s=1800)
    fleet.wait(HOUR_S)
    await recorded(fleet)
    asked = {"p_fleet": FLEET, "p_since": START - timedelta(days=1), "p_until": None}
    told = await fleet.call("fleet_usage", **asked, p_dimension="type", p_span="hour")
    assert sum(one["completed"] for one in told["points"] if one["name"] == "a") == 2
    assert sum(one["failed"] for one in told["points"] if one["name"] == "b") == 1
    with pytest.raises(BadArgument, match="hour or day"):
        await fleet.call("fleet_usage", **asked, p_dimension="type", p_span="week")


async def test_the_counters_of_a_worker_are_exact(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """At any moment: counted up to some minutes ago, and the rest from the rows."""
    agent = await fleet.agent()
    for took_s in (10, 400, 4000):  # less and more than attempts are left to commit
        await worked(fleet, agent, count=3, took_s=took_s)
        await fleet.fleet("record")
        report = (await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=agent.id))["worker"]
        query = (
            "select count(*) filter (where outcome = 'complete') as done, count(*) as all from orchestrator.attempts"
        )
        (row,) = await (await hand.execute(query.encode())).fetchall()
        assert (report["tasks_done"], report["tasks_failed"]) == (row["done"], row["all"] - row["done"])


async def test_attempts_go_after_their_totals_are_stored(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Never before; and a task that is queued again goes on with the next number."""
    agent = await fleet.agent()
    (task_id,) = await fleet.submit(max_attempts=1)
    (task,) = await agent.claim()
    fleet.wait(60)
    await agent.fail(task, code="OOM")
    await later(fleet, days=3)
    assert (await fleet.fleet("retention", p_days={"attempts": 2}))["attempts"] == 0
    await recorded(fleet)
    assert (await fleet.fleet("retention", p_days={"attempts": 4}))["attempts"] == 0
    assert (await fleet.fleet("retention", p_days={"attempts": 2}))["attempts"] == 1
    since = {"p_fleet": FLEET, "p_since": START - timedelta(days=1), "p_until": None}
    assert (await fleet.call("fleet_efficiency", **since))["failed_attempts"] == 1
    await fleet.call("task_retry", p_id=task_id)
    other = await fleet.agent()
    (again,) = await other.claim()
    assert again["attempt"] == 2


async def test_an_ended_worker_goes_last(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Its events and attempts first; its costs go with it, and the total of their day stays."""
    agent = await fleet.agent()
    await fleet.submit()
    (task,) = await agent.claim()
    fleet.wait(60)
    await agent.complete(task)
    await fleet.end(agent.id, State.ACTIVE)
    await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
    await later(fleet, days=9)
    await recorded(fleet)
    first, second = [await fleet.fleet("retention", p_days={"workers": 8}) for _ in range(2)]
    assert (first["attempts"], first["worker_events"] > 0, second["workers"], second["costs"] > 0) == (1, True, 1, True)
    since = {"p_fleet": FLEET, "p_since": START - timedelta(days=1), "p_until": None}
    assert float((await fleet.call("fleet_cost", **since))["usd"]) == pytest.approx(0.06)


async def test_tasks_go_only_if_that_is_asked_for(fleet: Fleet) -> None:
    """Ended ones, unless another task needs them."""
    agent = await fleet.agent()
    needed, _ = await fleet.submit({"priority": 2}, {"priority": 1})
    await fleet.submit({"depends_on": [needed], "run_after": (fleet.now + timedelta(days=90)).isoformat()})
    tasks = await agent.claim(batch=2)
    await agent.complete_many(*map(result, tasks))
    await later(fleet, days=20)
    assert (await fleet.fleet("retention"))["tasks"] == 0
    assert (await fleet.fleet("retention", p_days={"tasks": 30}))["tasks"] == 0
    assert (await fleet.fleet("retention", p_days={"tasks": 10}))["tasks"] == 1
    assert (await fleet.call("task_get", p_id=needed))["task"] is not None
