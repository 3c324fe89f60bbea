"""What money did no work, and where the day ends."""

from datetime import UTC, datetime
from typing import Any

import pytest

from orchestrator.diagnostics import spending


def worker(name: str, status: str, **kinds: float) -> dict[str, Any]:
    """A worker in a report of costs."""
    parts = {kind: {"usd": usd, "seconds": usd * 3_600} for kind, usd in kinds.items()}
    return {"id": name, "status": status, "usd": sum(kinds.values()), "seconds": 1, "kinds": parts}


REPORT = {
    "workers": [
        worker("done", "terminated", booting=0.5, busy=6.0, idle=2.0, draining=0.25),
        worker("failed", "terminated", booting=0.75, draining=0.25),
        worker("starts", "spawning", booting=0.25),
    ],
    "types": [
        {"task_type": "a", "usd": 4.0, "seconds": 1, "tasks": 3, "wasted_usd": 1.0},
        {"task_type": "b", "usd": 1.5, "seconds": 1, "tasks": 1, "wasted_usd": 0.0},
    ],
}


def test_waste_has_names_and_no_part_counts_twice() -> None:
    """The rest is what attempts cost that completed or still run."""
    found = {one.name: (one.usd, one.count) for one in spending.wasted(REPORT)}
    assert found == {
        "idle": (2.0, 1), "starts that failed": (1.0, 1), "failed attempts": (1.0, 1), "starting": (0.75, 2),
        "between tasks": (0.5, 1), "ending": (0.25, 1),
    }  # fmt: skip
    total = sum(one["usd"] for one in REPORT["workers"])
    assert total - sum(usd for usd, _ in found.values()) == 4.5


def test_nothing_spent_is_nothing_wasted() -> None:
    """Also where attempts cost more than their workers, which a window may cut."""
    assert spending.wasted({"workers": [], "types": []}) == ()
    cut = {"workers": [worker("w", "active", busy=1.0)], "types": [REPORT["types"][0] | {"wasted_usd": 0.0}]}
    assert spending.wasted(cut) == ()


@pytest.mark.parametrize(
    ("daily_usd", "reached_s"), [(None, None), (60.0, None), (50.0, 6 * 3_600.0), (40.0, 4 * 3_600.0), (10.0, 0.0)]
)
def test_the_day_ends_at_the_present_rate(daily_usd: float | None, reached_s: float | None) -> None:
    """And reaches its budget, if that is less. A budget that is used up is reached now."""
    spent, now = {"today_usd": 20.0, "hourly_usd": 5.0}, datetime(2026, 1, 1, 18, tzinfo=UTC)
    day = spending.forecast(spent, now, daily_usd, None)
    assert day.usd == 50.0
    assert day.reached_in_s == reached_s


def test_a_day_whose_budget_is_spent_is_not_within_it() -> None:
    """Also when nothing costs anything any more, which is what a budget that is used up does."""
    day = spending.forecast({"today_usd": 20.0, "hourly_usd": 0.0}, datetime(2026, 1, 1, 18, tzinfo=UTC), 10.0, None)
    assert (day.usd, day.reached_in_s) == (20.0, 0.0)
