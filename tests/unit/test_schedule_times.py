"""When a schedule is due, across the changes of daylight saving time, and what a step does with what has come."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orchestrator.leader_jobs.schedules import LATE_S, TIMES_AT_ONCE, ScheduleError, ScheduleStep, due_times, next_step

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def schedule(cron: str | None = None, **more: Any) -> dict[str, Any]:
    """A row as the leader reads it."""
    row = {"name": "nightly", "cron": cron, "every_s": None, "timezone": "UTC", "catch_up": "none", "next_at": None}
    return row | {"created_at": NOON.isoformat()} | more


def dues(row: dict[str, Any], after: datetime, count: int) -> list[str]:
    """The next due times in UTC."""
    return [f"{time:%d %H:%M:%S}" for time in itertools.islice(due_times(row, after), count)]


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        # Berlin leaves winter time on 2026-03-29, when 02:00 becomes 03:00 (01:00 UTC).
        pytest.param("30 2 * * *", "2026-03-28T12:00Z", ["29 01:00:00", "30 00:30:00"], id="skipped time"),
        pytest.param("*/30 * * * *", "2026-03-29T00:15Z", ["29 00:30:00", "29 01:00:00"], id="skipped hour"),
        # … and returns to it on 2026-10-25, when 03:00 becomes 02:00 (01:00 UTC).
        pytest.param("30 2 * * *", "2026-10-24T12:00Z", ["25 00:30:00", "26 01:30:00"], id="repeated time"),
        pytest.param("30 2 * * *", "2026-10-25T01:15Z", ["26 01:30:00", "27 01:30:00"], id="in the repeated hour"),
    ],
)
def test_a_local_time_is_due_once_a_day(cron: str, after: str, expected: list[str]) -> None:
    """Skipped: at the next valid minute. Repeated: at the first occurrence."""
    row = schedule(cron, timezone="Europe/Berlin")
    assert dues(row, datetime.fromisoformat(after), len(expected)) == expected


def test_an_interval_counts_from_the_creation() -> None:
    """It does not move with the time at which a leader looks."""
    row = schedule(every_s=900)
    assert dues(row, NOON, 2) == ["01 12:15:00", "01 12:30:00"]
    assert dues(row, NOON + timedelta(seconds=901), 2) == ["01 12:30:00", "01 12:45:00"]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (schedule("61 * * * *"), "Bad minute"),
        (schedule("* * * *"), "number of fields"),
        (schedule("*/5 * * * * *"), "number of fields"),  # seconds: more often than an interval may be
        (schedule("0 0 29 2 1#5"), None),
        (schedule("0 0 * * *", timezone="Mars/Olympus"), "no time zone"),
        (schedule("0 0 * * *", timezone="../../etc/passwd"), "no time zone"),
    ],
)
def test_what_cannot_be_due_is_refused(row: dict[str, Any], why: str | None) -> None:
    """With what is wrong; a rare day is fine."""
    if why is None:
        assert next(due_times(row, NOON)) > NOON
        return
    with pytest.raises(ScheduleError, match=why):
        next(due_times(row, NOON))


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("now_s", "more", "expected"),
    [
        pytest.param(1_000, {}, ScheduleStep((), None, at(1_800)), id="a new one waits for its first time"),
        pytest.param(905, {"next_at": at(900)}, ScheduleStep([], at(900), at(1_800)), id="due now"),
        pytest.param(890, {"next_at": at(900)}, ScheduleStep([], None, at(900)), id="not due yet"),
        pytest.param(
            1_800 + LATE_S + 1, {"next_at": at(900)}, ScheduleStep([at(900), at(1_800)], None, at(2_700)), id="missed"
        ),
        pytest.param(
            1_800 + LATE_S + 1,
            {"next_at": at(900), "catch_up": "once"},
            ScheduleStep([at(900)], at(1_800), at(2_700)),
            id="the last one is caught up",
        ),
        pytest.param(
            1_801,
            {"next_at": at(900), "catch_up": "once"},
            ScheduleStep([at(900)], at(1_800), at(2_700)),
            id="not twice",
        ),
    ],
)
def test_a_step_gives_each_time_that_has_come_one_outcome(
    now_s: float, more: dict[str, Any], expected: ScheduleStep
) -> None:
    """Served in time, missed, or caught up."""
    next_at = more.get("next_at")
    row = schedule(every_s=900) | more | {"next_at": next_at and next_at.isoformat()}
    assert next_step(row, at(now_s)) == expected


def test_a_long_outage_is_taken_in_parts() -> None:
    """A year of minutes does not make one call of half a million rows."""
    row = schedule("* * * * *", next_at=NOON.isoformat(), catch_up="once")
    step = next_step(row, NOON + timedelta(days=365))
    assert len(step.missed) == TIMES_AT_ONCE
    assert (step.due_at, step.next_at) == (None, NOON + timedelta(minutes=TIMES_AT_ONCE))


@pytest.mark.parametrize(
    "created_at", ["infinity", "-infinity", "0044-03-15T00:00:00+00:00 BC", "9999-12-31T23:59:59+00:00"]
)
def test_an_interval_whose_begin_is_no_time_has_no_due_time(created_at: str) -> None:
    """Users write rows with SQL. Such a row has a problem of its own, and the leader goes on to the others."""
    row = schedule(every_s=60, created_at=created_at)
    for seen in (None, NOON.isoformat()):
        with pytest.raises(ScheduleError, match="created_at"):
            next_step({**row, "next_at": seen}, NOON)


def test_a_next_time_that_is_none_is_a_problem_of_its_row() -> None:
    """It is earlier than every time of the program."""
    with pytest.raises(ScheduleError, match="next_at is '-infinity'"):
        next_step(schedule(every_s=60, next_at="-infinity"), NOON)
