"""Charts over time, and the curves of a worker's GPUs."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orchestrator.web.dashboard.curves import MAX_POINTS, curves
from orchestrator.web.dashboard.series import ChartSpan, Series, chart

BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)
GIB = 1_024
Row = Mapping[str, Any]


def at(minutes: float) -> str:
    return (BEGAN + timedelta(minutes=minutes)).isoformat()


def point(minute: int, percent: float | None = 50, used: int | None = 10 * GIB) -> Row:
    total = None if used is None else 24 * GIB
    readings = {"gpu_percent": percent, "gpu_used_mb": used, "gpu_total_mb": total}
    return {"at": at(minute), "status": "active", "running": 1, **readings}


def of(points: Sequence[Row], *, lives_min: float = 10, is_over: bool = False) -> Row:
    """The curves of a worker that has lived for so long."""
    worker = {"created_at": at(0), "terminated_at": at(lives_min) if is_over else None}
    made = curves({"now": at(lives_min), "points": points}, worker)
    assert made is not None
    return made


def pieces(drawn: str) -> int:
    """Into how many pieces the area is divided."""
    return drawn.count('class="area" points')


def test_a_gap_in_the_record_is_a_gap_in_the_curve() -> None:
    """Also if the agent reports but gives no reading."""
    assert pieces(of([point(n) for n in range(10)])["load"]) == 1
    assert pieces(of([point(n) for n in (1, 2, 3, 8, 9)])["load"]) == 2
    silent = [point(n, percent=None if n in (4, 5, 6) else 50) for n in range(10)]
    assert (pieces(of(silent)["load"]), pieces(of(silent)["memory"])) == (2, 1)


def test_a_single_reading_between_gaps_can_be_seen() -> None:
    """A line of one point would be nothing."""
    drawn = of([point(1), point(2), point(7)])["load"]
    first, *_, last = re.findall(r'class="area" points="([^"]+)"', drawn)[-1].split()
    assert float(first.split(",")[0]) < float(last.split(",")[0])


def test_the_curves_say_in_words_what_they_show() -> None:
    """For those who do not see them; the load has a scale to 100 %."""
    made = of([point(1, 20), point(2, 80, 12 * GIB)])
    assert 'aria-label="Load of its GPUs: at most 80 %; busy 80 % now"' in made["load"]
    assert ">100 %</text>" in made["load"]
    assert "in use 12 GiB now" in made["memory"]
    assert (made["mean_percent"], made["most_percent"], made["most_used"], made["total"]) == (50, 80, 12, 24)


def test_the_curves_of_a_worker_that_has_ended_end_with_it() -> None:
    """Not now."""
    made = of([point(1)], lives_min=30, is_over=True)
    assert "now" not in made["load"]
    assert "50 % at the end" in made["load"]
    assert ">12:30 UTC</text>" in made["load"]


@pytest.mark.parametrize("minutes", [1, 59, 1_440, 4_000])
def test_a_long_life_has_no_more_points_than_a_curve_shows(minutes: int) -> None:
    """The last day of it counts. Steps of several minutes are no gaps."""
    made = of([point(n) for n in range(max(0, minutes - 1_440), minutes + 1)], lives_min=minutes)
    drawn = re.findall(r'class="area" points="([^"]+)"', made["load"])
    assert len(drawn) == 1
    assert len(drawn[0].split()) <= MAX_POINTS + 4
    assert made["is_cut"] == (minutes > 1_440)


def test_a_worker_without_readings_has_no_curve() -> None:
    """Of one that was never heard nothing is recorded; an agent may report no GPU."""
    assert curves({"now": at(1), "points": []}, {"created_at": at(0), "terminated_at": None}) is None
    made = of([point(1, None, None)])
    assert (made["load"], made["memory"]) == (None, None)


def test_names_in_a_chart_are_escaped() -> None:
    """Whoever gave them."""
    span = ChartSpan(BEGAN, BEGAN + timedelta(hours=1), 60)
    drawn = chart("<b>", span, [Series("<i>", "line", [(BEGAN, 1.0)])], "{:g}".format)
    assert "<b>" not in drawn
    assert "<i>" not in drawn
