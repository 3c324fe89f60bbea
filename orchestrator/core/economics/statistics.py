"""What the learned rule knows of a pool: a few numbers, each updated by one event.

A level is the number of workers that the queued and the running tasks would use at once. A gap is the time in which a
level has no use: from the end of the task with which demand falls below the level until the arrival with which it
reaches the level again. Demand counts, and not the number of busy workers, because otherwise the end of a worker would
make the gaps look longer. Gaps are counted apart by the traffic at their beginning, and by groups of levels.

Times are seconds of one clock. The functions return new statistics and leave the old ones as they
are, so that a decision can be stored with what it was based on.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace
from math import exp

GRID_S = (0.0, *(4 * 1.25**step for step in range(39)))  # lengths of gaps, and of windows: up to 5.3 h
TRAFFIC_FROM = (1.5, 6.0, 20.0)  # arrivals in TRAFFIC_S at which the second, third and fourth class of traffic begin
TRAFFIC_S = 600.0
GROUP_FROM = (1, 2, 3, 4)  # the first level of each group
ARRIVALS_DECAY_S = 300.0
GAPS_DECAY_S = 7 * 86_400.0
MAX_LEVELS = 64  # whose last use is known; levels above count as this one
RUNS = 200  # the mean run time follows about so many of the last tasks
BOOTS = 20  # the mean boot time, so many boots
FIRST_RUN_S = 30.0  # the run time to expect until a task has ended


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: a window is calculated once for each
class Gaps:
    """A weight for each length of GRID_S. A gap counts as the next length that is not below it."""

    weights: tuple[float, ...] = (0.0,) * len(GRID_S)
    at: float = 0.0  # when a gap was last added, and the weights of the earlier ones were reduced


@dataclass(frozen=True, slots=True)
class LastUse:
    """When a level was last in use, and in which class of traffic that was."""

    at: float
    traffic: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of one pool."""

    boot_s: float  # mean boot time, in the beginning an estimate
    boots: int = 0
    run_s: float = FIRST_RUN_S  # mean run time
    runs: int = 0
    rate: float = 0.0  # arrivals per second at `rate_at`
    rate_at: float = 0.0
    gaps: tuple[tuple[Gaps, ...], ...] = ((Gaps(),) * len(GROUP_FROM),) * (len(TRAFFIC_FROM) + 1)
    last_use: tuple[LastUse | None, ...] = (None,) * MAX_LEVELS

    def arrivals_per_s(self, now: float) -> float:
        """Return the present rate of arrivals."""
        return self.rate * _kept(self.rate_at, now, ARRIVALS_DECAY_S)

    def traffic(self, now: float) -> int:
        """Return the present class of traffic."""
        arrivals = self.arrivals_per_s(now) * TRAFFIC_S
        return sum(arrivals >= first for first in TRAFFIC_FROM)

    def gaps_of(self, level: int, now: float) -> Gaps:
        """Return the gaps by which a worker that is idle at this level is judged."""
        last = self.last_use[_place(level)]
        return self.gaps[self.traffic(now) if last is None else last.traffic][group(level)]


def group(level: int) -> int:
    """Return the group of a level."""
    return sum(level >= first for first in GROUP_FROM) - 1


def arrived(known: Statistics, level: int, now: float) -> Statistics:
    """Add the arrival of a task, with which demand reaches the level."""
    known = replace(known, rate=known.arrivals_per_s(now) + 1 / ARRIVALS_DECAY_S, rate_at=now)
    last = known.last_use[_place(level)]
    if last is None or now <= last.at:
        return known
    place, row = group(level), known.gaps[last.traffic]
    row = (*row[:place], _added(row[place], now - last.at, now), *row[place + 1 :])
    return replace(known, gaps=(*known.gaps[: last.traffic], row, *known.gaps[last.traffic + 1 :]))


def booted(known: Statistics, boot_s: float) -> Statistics:
    """Add a boot that took so long."""
    boots = min(known.boots + 1, BOOTS)
    return replace(known, boots=boots, boot_s=known.boot_s + (boot_s - known.boot_s) / boots)


def ended(known: Statistics, level: int, run_s: float, now: float) -> Statistics:
    """Add the end of a task, with which demand falls below the level."""
    runs, place = min(known.runs + 1, RUNS), _place(level)
    last_use = (*known.last_use[:place], LastUse(now, known.traffic(now)), *known.last_use[place + 1 :])
    return replace(known, runs=runs, run_s=known.run_s + (run_s - known.run_s) / runs, last_use=last_use)


def _added(gaps: Gaps, gap_s: float, now: float) -> Gaps:
    kept = _kept(gaps.at, now, GAPS_DECAY_S)
    weights = [weight * kept for weight in gaps.weights]
    weights[min(bisect_left(GRID_S, gap_s), len(GRID_S) - 1)] += 1
    return Gaps(tuple(weights), now)


def _kept(at: float, now: float, decay_s: float) -> float:
    """Return which share of a weight is left. A clock that was ahead makes nothing more."""
    return exp(min(0.0, at - now) / decay_s)


def _place(level: int) -> int:
    return min(level, MAX_LEVELS) - 1
