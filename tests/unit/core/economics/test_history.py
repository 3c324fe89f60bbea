"""Statistics from recorded runs."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.economics import statistics
from orchestrator.core.economics.history import Run, after_a_gap, learn
from orchestrator.core.economics.statistics import GRID_S, Gaps, Statistics
from orchestrator.core.economics.stored import as_json, statistics_of

FRESH = Statistics(boot_s=60.0)
WORK = st.lists(
    st.tuples(st.integers(1, 500), st.integers(0, 60), st.integers(1, 90)), min_size=1, max_size=40
)  # arrival, waiting and run time in seconds


def runs_of(work: list[tuple[int, int, int]]) -> list[Run]:
    return [Run(float(at), float(at + wait), float(at + wait + run_s)) for at, wait, run_s in work]


def learned(known: Statistics, runs: list[Run], *, since: float, until: float, now: float, most: int = 5) -> Statistics:
    """The statistics as the daemon learns them: of the runs that have not ended by now it sees only the arrivals."""
    ended = [run for run in runs if since < run.ended <= now]
    opened = [run.arrived for run in runs if run.arrived <= now < run.ended]
    return learn(known, ended, opened, since=since, until=until, open_now=len(opened), most=most)


def test_arrivals_and_ends_are_learned_in_the_order_of_time() -> None:
    """Two tasks of one worker: a gap of 40 s at level 1, and a rate."""
    runs = [Run(10, 70, 100), Run(140, 140, 150)]
    known = learned(FRESH, runs, since=0, until=200, now=200)
    expected = statistics.arrived(FRESH, 1, 10)
    expected = statistics.ended(expected, 1, 30, 100)
    expected = statistics.ended(statistics.arrived(expected, 1, 140), 1, 10, 150)
    assert as_json(known) == as_json(expected)
    assert sum(sum(gaps.weights) for row in known.gaps for gaps in row) == 1


def test_a_task_that_ends_as_the_next_one_arrives_leaves_no_gap() -> None:
    """The level stays in use."""
    known = learned(FRESH, [Run(10, 10, 50), Run(50, 50, 60)], since=0, until=100, now=100)
    assert sum(sum(gaps.weights) for row in known.gaps for gaps in row) == 0


def test_open_tasks_at_the_begin_are_counted() -> None:
    """Three ran before; one of them ends, so that the level falls from 3 to 2."""
    known = learn(FRESH, [Run(5, 5, 50)], [6, 7], since=20, until=100, open_now=2, most=5)
    assert [place for place, last in enumerate(known.last_use, 1) if last] == [3]


def test_a_level_is_at_most_the_limit() -> None:
    """Tasks beyond it use no further worker."""
    known = learned(FRESH, [Run(1, 1, 50)] * 9, since=0, until=100, now=100, most=2)
    assert [place for place, last in enumerate(known.last_use, 1) if last] == [1, 2]


@given(WORK, st.lists(st.integers(1, 700), max_size=6))
def test_it_is_the_same_in_one_step_and_in_many(work: list[tuple[int, int, int]], stops: list[int]) -> None:
    """The daemon learns from tick to tick, and everything again after a loss."""
    runs, end = runs_of(work), 800.0
    at_once = learned(FRESH, runs, since=0, until=end, now=end)
    known, since = FRESH, 0.0
    for until in [*sorted(stops), end]:
        known = learned(known, runs, since=since, until=until, now=until)
        since = float(until)
    assert as_json(known) == as_json(at_once)


@given(WORK, st.integers(1, 700))
def test_what_is_known_already_beyond_the_end_changes_nothing(work: list[tuple[int, int, int]], until: int) -> None:
    """The newest seconds are learned only provisionally, because rows may still be written."""
    runs = runs_of(work)
    late = learned(FRESH, runs, since=0, until=until, now=800)
    assert as_json(late) == as_json(learned(FRESH, runs, since=0, until=until, now=until))


def test_no_gap_is_learned_across_a_time_of_which_nothing_is_known() -> None:
    """The level may have been in use then."""
    known = after_a_gap(learned(FRESH, [Run(1, 1, 10)], since=0, until=20, now=20))
    known = learned(known, [Run(500, 500, 510)], since=400, until=600, now=600)
    assert sum(sum(gaps.weights) for row in known.gaps for gaps in row) == 0


@given(WORK)
def test_statistics_can_be_stored(work: list[tuple[int, int, int]]) -> None:
    known = learned(FRESH, runs_of(work), since=0, until=700, now=700)
    read = statistics_of(json.loads(json.dumps(as_json(known))), 700)
    assert read is not None
    assert as_json(read) == as_json(known)
    assert read.arrivals_per_s(800) == pytest.approx(known.arrivals_per_s(800))


NOW = 1_000.0
CHANGES: list[dict[str, Any]] = [
    {"form": 2}, {"boot_s": None}, {"boot_s": float("nan")}, {"boot_s": -1}, {"boots": 1.5}, {"boots": 10**9},
    {"rate": "1"}, {"rate": True}, {"gaps": []}, {"gaps": [[None] * 4] * 3}, {"gaps": [[1] * 4] * 4},
    {"gaps": [[{"at": 1, "weights": [0]}] * 4] * 4}, {"last_use": [None]}, {"last_use": [[1, 9]] * 64},
    {"last_use": [[1]] * 64}, {"last_use": {"1": 2}}, {"run_s": 10**400}, {"boot_s": 1.7e308}, {"run_s": 1.8e9},
    {"rate": 1.7e308}, {"rate": 0.01, "rate_at": NOW + 3_600}, {"last_use": [[NOW + 3_600, 1]] * 64},
    {"gaps": [[{"at": NOW + 6e8, "weights": [0] * 40}] * 4] * 4},
    {"gaps": [[{"at": 1, "weights": [1e300] * 40}] * 4] * 4},
]  # fmt: skip
BROKEN: list[Any] = [None, "text", [], {}, {"form": 1}, *({**as_json(FRESH), **change} for change in CHANGES)]


@pytest.mark.parametrize("value", BROKEN)
def test_a_stored_row_that_cannot_be_used_is_lost(value: object) -> None:
    """Anyone may have written it."""
    assert statistics_of(value, NOW) is None


def test_a_good_row_is_read() -> None:
    assert statistics_of(as_json(replace(FRESH, boots=3)), NOW) is not None


@pytest.mark.parametrize("ahead_s", [3_600, 3 * 86_400, 1e9])
def test_a_clock_that_went_back_makes_nothing_more(ahead_s: float) -> None:
    """Neither the rate of arrivals nor the weights of gaps."""
    gaps = Gaps((1.0,) * len(GRID_S), NOW + ahead_s)
    known = replace(FRESH, rate=0.01, rate_at=NOW + ahead_s, gaps=((gaps,) * 4,) * 4)
    assert known.arrivals_per_s(NOW) == 0.01
    later = learned(known, runs_of([(5, 5, 10), (20, 20, 30)]), since=0, until=700, now=700)
    assert max(max(gaps.weights) for row in later.gaps for gaps in row) <= 3
