"""Schedules: each due time has exactly one outcome, with any leader, and after any write of a user."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.schedule_store import ScheduleStore
from orchestrator.leader_jobs.schedules import Schedules
from orchestrator.ports import BadArgument, Db, NotLeader
from tests.db.conformance.builders import FLEET, START, Fleet

TASK = {"task_type": "t", "params": {"n": 1}, "labels": {"kind": "report"}}


class Clocked:
    """A database whose calls carry the fleet's time."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def call(self, function: str, /, **args: Any) -> Any:
        return await self._fleet.call(function, **args)


@pytest.fixture
def store(fleet: Fleet) -> ScheduleStore:
    """The rows, at the fleet's time."""
    return ScheduleStore(Clocked(fleet), FLEET)  # type: ignore[arg-type]


async def step(fleet: Fleet, store: ScheduleStore, seconds: float = 0) -> None:
    """Let time pass, then serve what is due."""
    fleet.wait(seconds)
    await Schedules(store).step(fleet.term)


async def runs(hand: AsyncConnection[DictRow]) -> list[tuple[float, str]]:
    """The due times in seconds since the start, with their outcomes."""
    rows = await (await hand.execute("select due_at, outcome from schedule_runs order by due_at")).fetchall()
    return [((row["due_at"] - START).total_seconds(), row["outcome"]) for row in rows]


async def add(store: ScheduleStore, **more: Any) -> bool:
    """A schedule that is due every hundred seconds."""
    return bool((await store.put({"name": "nightly", "every_s": 100, "task": TASK, **more}))["created"])


async def test_a_due_time_submits_the_task_once(
    fleet: Fleet, store: ScheduleStore, hand: AsyncConnection[DictRow]
) -> None:
    """However often leaders look."""
    assert await add(store, overlap="queue")
    await step(fleet, store)
    for _ in range(3):
        await step(fleet, store, 33.5)
        await step(fleet, store)
    assert await runs(hand) == [(100, "fired")]
    (task,) = await (await hand.execute("select task_type, params, labels, status from tasks")).fetchall()
    assert task == {"task_type": "t", "params": {"n": 1}, "labels": {"kind": "report"}, "status": "Queued"}
    (row,) = (await store.all())["schedules"]
    assert datetime.fromisoformat(row["next_at"]) == START + timedelta(seconds=200)
    assert row["last_run"]["outcome"] == "fired"


async def test_the_previous_task_may_have_to_end_first(
    fleet: Fleet, store: ScheduleStore, hand: AsyncConnection[DictRow]
) -> None:
    """`skip` is the default; each skipped run names the task that has not ended, however many it has outlasted."""
    await add(store)
    await step(fleet, store)
    await step(fleet, store, 100)
    for _ in range(2):
        await step(fleet, store, 100)
        (row,) = (await store.all())["schedules"]
        (first,) = await (await hand.execute("select id from tasks")).fetchall()
        assert row["last_run"]["reason"] == f"the previous task {first['id']} has not ended"
    await fleet.call("task_cancel", p_id=str(first["id"]))
    await step(fleet, store, 100)
    assert await runs(hand) == [(100, "fired"), (200, "skipped"), (300, "skipped"), (400, "fired")]


@pytest.mark.parametrize(
    ("catch_up", "outcomes"),
    [("none", ["missed", "missed", "missed"]), ("once", ["missed", "missed", "fired"])],
)
async def test_an_occurrence_without_a_leader_is_missed(
    fleet: Fleet, store: ScheduleStore, hand: AsyncConnection[DictRow], catch_up: str, outcomes: list[str]
) -> None:
    """Each due time of an outage has a row."""
    await add(store, catch_up=catch_up)
    await step(fleet, store)
    await step(fleet, store, 399)
    assert await runs(hand) == list(zip((100, 200, 300), outcomes, strict=True))


async def test_every_due_time_of_one_step_is_served_in_it(
    fleet: Fleet, store: ScheduleStore, hand: AsyncConnection[DictRow]
) -> None:
    """Of two schedules: a leader was late for a moment, and none of them is old enough to be missed."""
    for name in ("one", "two"):
        assert await add(store, name=name, every_s=10, overlap="queue")
    await step(fleet, store)
    await step(fleet, store, 35)
    assert await runs(hand) == [(at, "fired") for at in (10, 10, 20, 20, 30, 30)]


async def test_two_leaders_serve_a_due_time_once(
    fleet: Fleet, store: ScheduleStore, hand: AsyncConnection[DictRow]
) -> None:
    """Both have read the row before either of them writes. A leader of an earlier term writes nothing."""
    await add(store, overlap="queue")
    await step(fleet, store)
    fleet.wait(100)
    _, (due,) = await store.due(10)
    times = {"missed": [], "due_at": START + timedelta(seconds=100), "next_at": START + timedelta(seconds=200)}
    with pytest.raises(NotLeader):
        await store.run(fleet.term - 1, "nightly", due["next_at"], **times)  # type: ignore[arg-type]
    done = await asyncio.gather(
        *(store.run(fleet.term, "nightly", due["next_at"], **times) for _ in range(4))  # type: ignore[arg-type]
    )
    assert sorted(one["outcome"] for one in done) == ["fired", "stale", "stale", "stale"]
    assert await runs(hand) == [(100, "fired")]


async def test_a_task_that_the_database_refuses_is_skipped_with_the_reason(
    fleet: Fleet, store: ScheduleStore, hand: AsyncConnection[DictRow]
) -> None:
    """A user's constraint stops only this schedule, and only while it exists."""
    await add(store)
    await add(store, name="other", task={**TASK, "task_type": "u"})
    await step(fleet, store)
    await hand.execute("alter table tasks add constraint nobody check (task_type <> 't')")
    try:
        await step(fleet, store, 100)
    finally:
        await hand.execute("alter table tasks drop constraint nobody")
    broken, other = (await store.all())["schedules"]
    assert broken["last_run"]["outcome"] == "skipped"
    assert "nobody" in broken["last_run"]["reason"]
    assert other["last_run"]["outcome"] == "fired"
    await step(fleet, store, 100)
    assert (await store.all())["schedules"][0]["last_run"]["outcome"] == "fired"


@pytest.mark.parametrize(
    ("key", "value", "reason", "is_trouble"),
    [
        ("id", "6545cbb7-13ac-42cf-8f81-c2154cbc4659", "the task could not be submitted: its id {id} is taken", True),
        ("dedupe_key", "one", "task {id} with the same dedupe_key has not ended", False),
    ],
)
async def test_a_due_time_that_creates_no_task_is_not_fired(
    fleet: Fleet,
    store: ScheduleStore,
    hand: AsyncConnection[DictRow],
    key: str,
    value: str,
    reason: str,
    is_trouble: bool,
) -> None:
    """A row by hand may name a task that exists. Others are served."""
    created = await fleet.call("task_submit", p_tasks=[{"task_type": "t", key: value}])
    await hand.execute(
        """insert into schedules (name, every_s, overlap, created_at, task)
           values ('again', 100, 'queue', %s, jsonb_build_object('task_type', 't', %s::text, %s::text))""",
        [START, key, value],
    )
    await add(store)
    await step(fleet, store)
    await step(fleet, store, 100)
    again, other = (await store.all())["schedules"]
    last = again["last_run"]
    assert (last["outcome"], last["task_id"]) == ("skipped", None)
    assert last["reason"] == reason.format(id=created["tasks"][0]["id"])
    assert other["last_run"]["outcome"] == "fired"
    told = (await fleet.call("fleet_task_troubles", p_fleet=FLEET, p_handled=[]))["schedules"]
    assert [row["name"] for row in told] == ["again"] * is_trouble


async def test_a_row_by_hand_that_is_never_due_is_set_aside_until_it_is_changed(
    fleet: Fleet, store: ScheduleStore, hand: AsyncConnection[DictRow]
) -> None:
    """Others are served."""
    await hand.execute(
        """insert into schedules (name, cron, task) values ('bad', '61 * * * *', '{"task_type": "t"}')"""
    )
    await add(store)
    await step(fleet, store)
    bad, fine = (await store.all())["schedules"]
    assert bad["problem"] == "Bad minute in '61 * * * *': use minute hour day month weekday"
    assert fine["next_at"]
    await hand.execute("update schedules set cron = '1 * * * *' where name = 'bad'")
    await step(fleet, store)
    bad, _ = (await store.all())["schedules"]
    assert (bad["problem"], bad["next_at"] is None) == (None, False)


async def test_an_invalid_time_written_by_a_user_affects_only_its_row(
    fleet: Fleet, store: ScheduleStore, hand: AsyncConnection[DictRow]
) -> None:
    """Others are served. A time that can be used ends the problem."""
    await hand.execute(
        """insert into schedules (name, every_s, task, created_at, next_at) values
           ('begin', 60, '{"task_type": "t"}', 'infinity', null),
           ('due', 60, '{"task_type": "t"}', now(), '-infinity')"""
    )
    await add(store)
    await step(fleet, store)
    begin, due, fine = (await store.all())["schedules"]
    assert begin["problem"].startswith("created_at is 'infinity'")
    assert due["problem"].startswith("next_at is '-infinity'")
    assert fine["next_at"]
    await hand.execute("update schedules set created_at = now() where name = 'begin'")
    await hand.execute("update schedules set next_at = null where name = 'due'")
    await step(fleet, store)
    assert [(one["problem"], one["next_at"] is None) for one in (await store.all())["schedules"]] == [(None, False)] * 3


async def test_health_says_what_keeps_a_schedule_from_submitting(
    fleet: Fleet, store: ScheduleStore, hand: AsyncConnection[DictRow]
) -> None:
    """A row that is never due, and a task that is refused; not one that waits for the previous task, or is paused."""
    await add(store, name="waits")
    await add(store, name="refused", task={**TASK, "task_type": "u"})
    await hand.execute(
        """insert into schedules (name, cron, timezone, task)
           select n, '1 * * * *', 'Mars', '{"task_type": "t"}' from unnest('{bad,bad-too}'::text[]) n"""
    )

    async def told() -> dict[str, str]:
        asked = (await fleet.call("fleet_task_troubles", p_fleet=FLEET, p_handled=[]))["schedules"]
        assert asked == (await fleet.call("fleet_report", p_fleet=FLEET))["schedules"]
        return {row["name"]: row["why"] for row in asked}

    await step(fleet, store)
    await store.pause("bad-too", paused=True)
    assert await told() == {"bad": "no time zone 'Mars': use a name such as Europe/Berlin"}
    await store.remove("bad")
    await hand.execute("alter table tasks add constraint nobody check (task_type <> 'u')")
    try:
        await step(fleet, store, 100)
        await step(fleet, store, 100)
        ((name, why),) = (await told()).items()
        assert (name, "nobody" in why) == ("refused", True)
    finally:
        await hand.execute("alter table tasks drop constraint nobody")
    await step(fleet, store, 100)
    assert await told() == {}


async def test_a_paused_schedule_has_no_due_times(
    fleet: Fleet, store: ScheduleStore, hand: AsyncConnection[DictRow]
) -> None:
    """After it is resumed, the next one is in the future."""
    await add(store)
    await step(fleet, store)
    assert await store.pause("nightly", paused=True)
    await step(fleet, store, 1_050)
    assert await store.pause("nightly", paused=False)
    await step(fleet, store)
    await step(fleet, store, 50)
    assert await runs(hand) == [(1_100, "fired")]
    assert not await store.pause("unknown", paused=True)
    assert await store.remove("nightly")
    assert await runs(hand) == []


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"task": {"params": {}}}, "no task_type"),
        ({"task": TASK | {"id": "6545cbb7-13ac-42cf-8f81-c2154cbc4659"}}, "again and again"),
        ({"task": TASK | {"depends_on": []}}, "again and again"),
        ({"name": "No Name"}, "name"),
        ({"every_s": 9}, "every_s"),
        ({"cron": "* * * * *"}, "check"),
        ({"every_s": None}, "check"),
        ({"overlap": "both"}, "overlap"),
        ({"colour": "red"}, "unknown key"),
    ],
)
async def test_an_invalid_schedule_is_refused(
    fleet: Fleet, store: ScheduleStore, db: Db, wrong: dict[str, Any], why: str
) -> None:
    """When it is added, not when it is due."""
    with pytest.raises(BadArgument, match=why):
        await add(store, **wrong)
    assert (await store.all())["schedules"] == []
