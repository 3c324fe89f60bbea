"""How long an idle worker is kept: as long as its rent costs less than the boots that it saves.

If a worker is kept for a window x, a gap g up to x costs g seconds of rent. A longer one costs x, and then a cold
start: a boot, and the waiting for it. The window has the lowest cost over the recent gaps. Some imagined gaps keep a
few real ones from deciding alone; without real ones, the window is one cold start. It is never longer than that, so
a gap costs at most one cold start more than with the best window in hindsight. With a window of one cold start, it
costs at most twice as much.
"""

from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate

from orchestrator.core.economics.statistics import GRID_S, Gaps

PRIOR_GAPS = 10.0  # imagined gaps
PRIOR_SHORT = 0.75  # share of them that are spread evenly over the length of a cold start; the others never end


def cold_start_s(boot_s: float, wait_price: float) -> float:
    """Return the cost of a cold start: a boot, and one task that waits for it."""
    return boot_s * (1 + wait_price)


@lru_cache(maxsize=256)
def window(gaps: Gaps, cold_s: float) -> float:
    """Return for how many seconds an idle worker is kept: a length of GRID_S below `cold_s`, or `cold_s`."""
    total, weights = sum(gaps.weights), gaps.weights
    rents = [0.0, *accumulate(weight * gap_s for weight, gap_s in zip(weights, GRID_S, strict=True))]
    counts = [0.0, *accumulate(weights)]
    best_s, lowest = cold_s, float("inf")
    for within, kept_s, prior in _candidates(cold_s):
        cost = rents[within] + (total - counts[within]) * (kept_s + cold_s) + prior
        if cost < lowest:
            best_s, lowest = kept_s, cost
    return best_s


@lru_cache(maxsize=64)
def _candidates(cold_s: float) -> tuple[tuple[int, float, float], ...]:
    """Return the windows to compare, the longest first: the lengths of GRID_S within each, itself, the prior's cost."""
    count = bisect_right(GRID_S, cold_s)
    windows = [(count, cold_s), *((place + 1, GRID_S[place]) for place in reversed(range(count)))]
    return tuple((within, kept_s, PRIOR_GAPS * _prior_cost(kept_s, cold_s)) for within, kept_s in windows)


def gap_cost(gap_s: float, kept_s: float, cold_s: float) -> float:
    """Return what a gap costs if an idle worker is kept for `kept_s`."""
    return gap_s if gap_s <= kept_s else kept_s + cold_s


def _prior_cost(kept_s: float, cold_s: float) -> float:
    """Return the mean cost of an imagined gap."""
    share = kept_s / cold_s if cold_s else 1.0
    return cold_s * (PRIOR_SHORT * (1 - share * share / 2) + (1 - PRIOR_SHORT) * (1 + share))
