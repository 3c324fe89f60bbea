"""Statistics from recorded runs: what happened since they were last calculated, or all of it again."""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from typing import NamedTuple

from orchestrator.core.economics import statistics
from orchestrator.core.economics.statistics import MAX_LEVELS, Statistics

MAX_RUN_S = 30 * 86_400.0


def can_be_true(arrived: float, started: float, ended: float) -> bool:
    """Whether an attempt can have had these times: clocks go back, and people edit rows."""
    if not (isfinite(arrived) and isfinite(started) and isfinite(ended)):
        return False
    return arrived <= ended and started <= ended <= started + MAX_RUN_S


class Run(NamedTuple):
    """An attempt that has ended. Seconds of the clock of the statistics."""

    arrived: float  # from when a worker could have run it
    started: float
    ended: float


def learn(
    known: Statistics,
    runs: Sequence[Run],
    opened: Sequence[float],
    *,
    since: float,
    until: float,
    open_now: int,
    most: int,
) -> Statistics:
    """Return the statistics with the arrivals and ends after `since` and until `until`, in the order of time.

    `runs` are all that ended after `since`, and `opened` the arrivals of all tasks that are ready or run now, whose
    number is `open_now`. Both may have more than `until` needs. The number of open tasks at `since` follows from these
    three, so errors do not add up from call to call. A pool of at most `most` workers has so many levels.
    """
    arrivals = [at for at in (*(run.arrived for run in runs), *opened) if at > since]
    ends = [(run.ended, run.ended - run.started) for run in runs if run.ended > since]
    level = max(0, open_now - len(arrivals) + len(ends))
    events = sorted([(at, True, 0.0) for at in arrivals] + [(at, False, run_s) for at, run_s in ends])
    for at, is_arrival, run_s in events:  # at the same moment, ends come first
        if at > until:
            break
        if is_arrival:
            level += 1
            known = statistics.arrived(known, max(1, min(level, most)), at)
        else:
            known = statistics.ended(known, max(1, min(level, most)), run_s, at)
            level = max(0, level - 1)
    return known


def after_a_gap(known: Statistics) -> Statistics:
    """Return the statistics for a time after one of which nothing is known: a level may have been in use meanwhile."""
    return replace(known, last_use=(None,) * MAX_LEVELS)
