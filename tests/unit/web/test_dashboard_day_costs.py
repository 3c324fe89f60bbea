"""The cost of each day: from the totals of days, and of what is not over from those of its hours."""

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

from orchestrator.web.dashboard.day_costs import DAYS, DayCost, bars, month

NOW = datetime(2026, 3, 10, 0, 15, tzinfo=UTC)


class Recorded:
    """The reads of a page, with roll-ups of this test."""

    def __init__(self, days: list[Any], hours: list[Any]) -> None:
        self._points = {"day": days, "hour": hours}

    async def get(self, name: str, by: str, span: str, since: str, until: str | None) -> Any:
        """Only what begins within the time."""
        assert (name, by, until) == ("usage", "kind", None)
        points = [one for one in self._points[span] if one["at"] >= since]
        return {"until": NOW.isoformat(), "points": points}


def spent(at: datetime, kind: str, usd: float) -> dict[str, Any]:
    return {"at": at.isoformat(), "name": kind, "usd": usd, "seconds": usd * 3_600}


async def made(days: list[Any], hours: list[Any]) -> Any:
    asked: Callable[..., Awaitable[Any]] = month
    return await asked(Recorded(days, hours), NOW)


async def test_a_day_that_is_not_stored_yet_is_the_sum_of_its_hours() -> None:
    """Yesterday, some minutes after midnight, and today."""
    yesterday, today = NOW - timedelta(hours=3), NOW.replace(minute=0)
    before = (NOW - timedelta(days=2)).replace(hour=0, minute=0)
    found = await made(
        [spent(before, "busy", 5)],
        [spent(yesterday, "busy", 2), spent(yesterday + timedelta(hours=1), "busy", 1), spent(today, "idle", 4)],
    )
    assert [(one.day.day, one.usd, one.is_open) for one in found["days"]] == [
        (10, 4, True),
        (9, 3, True),
        (8, 5, False),
    ]
    assert found["usd"] == 12


async def test_a_day_that_is_stored_counts_once() -> None:
    """Its hours are there too for some days."""
    yesterday = (NOW - timedelta(days=1)).replace(hour=0, minute=0)
    found = await made([spent(yesterday, "busy", 3)], [spent(yesterday + timedelta(hours=2), "busy", 3)])
    assert [(one.usd, one.is_open) for one in found["days"]] == [(3, False)]


def test_each_bar_is_divided_and_stands_in_its_place() -> None:
    """What is below another part ends where that one begins; the last day is at the right end."""
    today = date(2026, 3, 10)
    days = [DayCost(today, {"busy": (6.0, 1.0), "idle": (4.0, 1.0)}), DayCost(date(2026, 3, 9), {"busy": (1.0, 1.0)})]
    drawn = bars(days, today)
    found = re.findall(r'<rect x="([\d.]+)" width="([\d.]+)" y="([\d.]+)" height="([\d.]+)" class="bar-(\w+)"', drawn)
    busy, idle, other = [(*map(float, one[:4]), one[4]) for one in found]
    assert (busy[4], idle[4], other[4]) == ("busy", "idle", "busy")
    assert busy[0] == idle[0] == round(1_000 / DAYS * (DAYS - 1), 1)
    assert busy[0] + busy[1] <= 1_000
    assert abs(idle[2] + idle[3] - busy[2]) < 0.2
    assert abs(idle[3] / busy[3] - 4 / 6) < 0.02
    assert "<title>10 Mar $10.00: busy $6.00, idle $4.00</title>" in drawn
    assert "at most $10.00; $10.00 today so far" in drawn


def test_no_day_is_no_bar() -> None:
    """And no division by zero."""
    assert "<rect" not in bars([], date(2026, 3, 10))
