"""How long an idle worker is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.economics import statistics
from orchestrator.core.economics.statistics import GAPS_DECAY_S, GRID_S, Gaps, Statistics
from orchestrator.core.economics.windows import cold_start_s, gap_cost, window

WEIGHTS = st.lists(st.floats(0, 1e4), min_size=len(GRID_S), max_size=len(GRID_S)).map(tuple)


def learned(gap_s: float, count: int, level: int = 1, boot_s: float = 60.0) -> Statistics:
    """What a pool knows after so many equal gaps of a level, with tasks of 10 s."""
    known, now = Statistics(boot_s), 0.0
    for _ in range(count + 1):
        known = statistics.arrived(known, level, now)
        known = statistics.ended(known, level, 10.0, now + 10)
        now += 10 + gap_s
    return known


def kept_s(known: Statistics, level: int = 1) -> float:
    """The window of a worker at this level, at a wait price of 1."""
    now = max(used.at for used in known.last_use if used)
    return window(known.gaps_of(level, now), cold_start_s(known.boot_s, 1))


def test_without_gaps_the_window_is_one_cold_start() -> None:
    assert window(Gaps(), cold_start_s(60, 1)) == 120


def test_short_gaps_are_bridged() -> None:
    assert 20 <= kept_s(learned(20, 100)) <= 120


def test_gaps_longer_than_a_cold_start_are_not_worth_waiting_for() -> None:
    assert kept_s(learned(3_000, 100)) == 0


def test_one_gap_does_not_decide_alone() -> None:
    assert kept_s(learned(3_000, 1)) > 0


def test_gaps_of_one_level_say_nothing_about_another() -> None:
    known = learned(3_000, 100)
    assert kept_s(known, level=1) == 0
    assert kept_s(known, level=2) == 120


def test_old_gaps_fade() -> None:
    """After three times the time of decay, twenty recent gaps outweigh two hundred old ones."""
    known = learned(3_000, 200)
    now = known.last_use[0].at + 3 * GAPS_DECAY_S  # type: ignore[union-attr]
    for _ in range(21):
        known = statistics.ended(known, 1, 10, now)
        known = statistics.arrived(known, 1, now + 20)
        now += 30
    rows = [row[0] for row in known.gaps if sum(row[0].weights) > 0]
    assert max(sum(row.weights) for row in rows) < 200


@given(weights=WEIGHTS, cold_s=st.floats(0, 1e5))
def test_a_window_is_never_longer_than_a_cold_start(weights: tuple[float, ...], cold_s: float) -> None:
    assert 0 <= window(Gaps(weights), cold_s) <= cold_s


@given(weights=WEIGHTS, cold_s=st.floats(1, 1e4), gap_s=st.floats(0, 1e6), best_s=st.floats(0, 1e6))
def test_a_gap_costs_at_most_one_cold_start_more_than_with_the_best_window(
    weights: tuple[float, ...], cold_s: float, gap_s: float, best_s: float
) -> None:
    """A gap above the window costs at most two cold starts; with a full window, at most twice the best in hindsight."""
    best = min(gap_cost(gap_s, best_s, cold_s), gap_cost(gap_s, 0, cold_s), gap_cost(gap_s, gap_s, cold_s))
    assert gap_cost(gap_s, window(Gaps(weights), cold_s), cold_s) <= best + cold_s * (1 + 1e-9)
    assert gap_cost(gap_s, cold_s, cold_s) <= 2 * best * (1 + 1e-9)


@pytest.mark.parametrize("cold_s", [0.0, 3.0, 4.0, 120.0, 1e6])
def test_the_window_is_the_cheapest_for_gaps_that_are_all_seen(cold_s: float) -> None:
    """With many gaps the imagined ones do not matter."""
    weights = [0.0] * len(GRID_S)
    weights[5], weights[20] = 7e5, 3e5
    kept_s = window(Gaps(tuple(weights)), cold_s)

    def cost(length_s: float) -> float:
        return sum(weight * gap_cost(gap, length_s, cold_s) for weight, gap in zip(weights, GRID_S, strict=True))

    assert cost(kept_s) <= min(cost(one) for one in (*GRID_S, cold_s) if one <= cold_s) * (1 + 1e-3) + 1e-9
