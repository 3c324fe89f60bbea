"""Sizes of a pool that follow the time: which entry is in force, and what stands above it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from orchestrator.core import scheduled_sizes
from orchestrator.core.actions import Spawn, Terminate
from orchestrator.core.blocked import BlockedReason, line
from orchestrator.core.economics.sizes import PoolSizes
from orchestrator.core.model import ScaleLimit, Worker
from orchestrator.core.plan import plan
from orchestrator.core.policy import ScheduledSize
from tests.unit.core.build import NOW, busy, idle, policy, snapshot, spawning

BERLIN, UTC_ZONE = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")
DAY = ScheduledSize("0 8 * * 1-5", BERLIN, 2, 8)
NIGHT = ScheduledSize("0 20 * * 1-5", BERLIN, 0, 1)


def sizes_at(moment: str, *entries: ScheduledSize) -> tuple[int, int]:
    now = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    (pool,) = scheduled_sizes.in_force(policy(pool={"scheduled_sizes": entries}), now).pools
    return pool.min_active, pool.max_active


@pytest.mark.parametrize(
    ("moment", "sizes"),
    [
        ("2026-11-30T06:59:59.9", (0, 1)),  # Monday, 07:59:59 in Berlin: the night of Friday goes on
        ("2026-11-30T07:00:00", (2, 8)),
        ("2026-11-30T18:59:59", (2, 8)),
        ("2026-11-30T19:00:00", (0, 1)),
        ("2026-07-06T06:00:00", (2, 8)),  # in summer, Berlin is two hours ahead
        ("2026-12-05T12:00:00", (0, 1)),  # Saturday
    ],
)
def test_the_entry_that_was_due_last_is_in_force(moment: str, sizes: tuple[int, int]) -> None:
    """In its time zone, through the weekend, from the full minute on."""
    assert sizes_at(moment, DAY, NIGHT) == sizes
    assert sizes_at(moment, NIGHT, DAY) == sizes


def test_of_two_entries_that_are_due_at_once_the_later_one_counts() -> None:
    """And what an entry does not set is as the pool has it."""
    first, second = ScheduledSize("0 8 * * *", UTC_ZONE, 1, 2), ScheduledSize("0 8 * * *", UTC_ZONE, None, 3)
    assert sizes_at("2026-11-30T08:00:00", first, second) == (0, 3)
    assert sizes_at("2026-11-30T08:00:00", second, first) == (1, 2)


def test_the_times_that_a_day_has_twice_or_not_at_all() -> None:
    """As cron has them: the skipped time is due at the next valid minute, the repeated one once."""
    early = ScheduledSize("30 2 * * *", BERLIN, None, 7)
    before = ScheduledSize("0 1 * * *", BERLIN, None, 5)
    assert sizes_at("2026-03-29T00:59:00", early, before) == (0, 5)
    assert sizes_at("2026-03-29T01:00:00", early, before) == (0, 7)
    assert sizes_at("2026-10-25T00:29:00", early, before) == (0, 5)
    assert sizes_at("2026-10-25T01:31:00", early, before) == (0, 7)


@pytest.mark.parametrize(
    ("zone", "day", "cron"),
    [
        ("Europe/Berlin", "2026-10-25", "30 2 * * *"),
        ("America/New_York", "2026-11-01", "30 1 * * *"),
        ("America/New_York", "2026-11-01", "45 1 * * 0"),
        ("Europe/London", "2026-10-25", "0 1 * * *"),
        ("Australia/Lord_Howe", "2026-04-05", "45 1 * * 0"),
    ],
)
def test_an_entry_stays_in_force_while_clocks_go_back(zone: str, day: str, cron: str) -> None:
    """From its first occurrence on, until the next entry of the day is due."""
    night = ScheduledSize(cron, ZoneInfo(zone), 0, 1)
    entries = (ScheduledSize("0 20 * * *", ZoneInfo(zone), 20, 20), night)
    now = datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    found = []
    for _ in range(19 * 12):
        (pool,) = scheduled_sizes.in_force(policy(pool={"scheduled_sizes": entries}), now).pools
        found.append(pool.max_active)
        now += timedelta(minutes=5)
    first = found.index(1)
    assert set(found[:first]) == {20}
    assert set(found[first:]) == {1}


def at_noon(entry: ScheduledSize, *workers: Worker, **facts: Any) -> tuple[list[Spawn | Terminate], str]:
    """What a tick does, and the rule of its decision."""
    made = plan(snapshot(*workers, **facts), policy(pool={"scheduled_sizes": (entry,)}))
    return [one for one in made.actions if isinstance(one, Spawn | Terminate)], made.decisions[0].rule


def test_workers_start_for_a_scheduled_minimum_and_the_decision_names_it() -> None:
    """Without any task."""
    actions, rule = at_noon(ScheduledSize("0 9 * * *", UTC_ZONE, 2, None))
    assert [type(one) for one in actions] == [Spawn, Spawn]
    assert "2 min" in rule
    assert rule.endswith("; min and max by cron '0 9 * * *' (UTC) since 2026-11-21 09:00 UTC")


def test_a_scheduled_maximum_ends_no_busy_worker() -> None:
    """The idle one ends, as beyond any target; the busy ones stay."""
    night, workers = ScheduledSize("0 9 * * *", UTC_ZONE, None, 1), (busy("gpu-1"), busy("gpu-2"), idle("gpu-3", 100))
    actions, _ = at_noon(night, *workers, claimable=9, running=2)
    assert [(type(one), one.worker_id) for one in actions] == [(Terminate, "gpu-3")]


def test_a_scheduled_maximum_is_no_fault_and_says_when_the_next_entry_is_due() -> None:
    """An operator who raises MAX_ACTIVE_GPUS would change nothing."""
    night = ScheduledSize("0 9 * * *", UTC_ZONE, None, 0)
    made = plan(snapshot(claimable=3), policy(pool={"scheduled_sizes": (night, DAY)}))
    (reason,) = made.decisions[0].blocked
    assert (reason.kind, reason.until) == (BlockedReason.SCHEDULED_SIZE, NOW.replace(day=22, hour=9))
    assert line(reason) == (
        "1 worker blocked: At most 0 by the entry '0 9 * * *' of scheduled_sizes, since 2026-11-21 09:00 UTC. "
        "The next entry is due at 2026-11-22 09:00 UTC."
    )
    least = ScheduledSize("0 9 * * *", UTC_ZONE, 1, None)
    made = plan(snapshot(claimable=30), policy(pool={"scheduled_sizes": (least,)}))
    assert made.decisions[0].blocked[0].kind is BlockedReason.MAX_ACTIVE


def test_the_end_of_a_boot_names_the_schedule_that_it_exceeds() -> None:
    """MAX_ACTIVE_GPUS is higher."""
    actions, _ = at_noon(ScheduledSize("0 9 * * *", UTC_ZONE, None, 0), spawning("gpu-1"), claimable=3)
    assert [one.reason for one in actions if isinstance(one, Terminate)] == [
        "more than scheduled_sizes allows (0), and not ready yet"
    ]


def test_an_operators_limit_stands_above_it() -> None:
    """While it lasts."""
    limit = {"default": ScaleLimit("default", 1, "quota", NOW.replace(hour=18))}
    actions, rule = at_noon(ScheduledSize("0 9 * * *", UTC_ZONE, 3, 4), scale_limits=limit)
    assert len(actions) == 1
    assert "4 max, 1 by an operator" in rule


def test_a_policy_without_entries_is_not_touched() -> None:
    """The same object: an ordinary fleet pays nothing."""
    ordinary = policy()
    assert scheduled_sizes.in_force(ordinary, NOW) is ordinary


@pytest.mark.parametrize("since", ["2026-03-27T11:59:30", "2026-10-23T12:00:00"])  # the clocks change within
def test_a_replay_has_the_sizes_of_each_moment(since: str) -> None:
    """Of entries that are due at once, that set a part, and that are due each minute."""
    often = ScheduledSize("*/7 12 * * *", UTC_ZONE, 1, None)
    entries = (DAY, NIGHT, ScheduledSize("0 20 * * 5", BERLIN, None, 5), often)
    begin = datetime.fromisoformat(since).replace(tzinfo=UTC)
    ours = policy(pool={"scheduled_sizes": entries})
    found = PoolSizes(
        ours.pools[0].max_active, 0, scheduled_sizes.steps(ours.pools[0], begin, begin + timedelta(days=4))
    )
    assert found.steps[0].since == begin.timestamp()
    changes = [datetime.fromtimestamp(one.since, UTC) for one in found.steps]
    hours = [begin + timedelta(hours=number) for number in range(96)]
    for now in (*changes, *(at - timedelta(seconds=1) for at in changes[1:]), *hours):
        (pool,) = scheduled_sizes.in_force(ours, now).pools
        assert found.at(now.timestamp())[:2] == (pool.min_active, pool.max_active), now


def test_entries_that_are_due_each_minute_cost_a_replay_little() -> None:
    """Equal sizes are one step, and so many due times are looked at."""
    (pool,) = policy(pool={"scheduled_sizes": (ScheduledSize("* * * * *", UTC_ZONE, 1, 2),)}).pools
    assert len(scheduled_sizes.steps(pool, NOW, NOW + timedelta(days=3_650))) == 1
    assert scheduled_sizes.steps(replace(pool, scheduled_sizes=()), NOW, NOW + timedelta(days=1)) == []
