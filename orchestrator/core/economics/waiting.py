"""The waiting that one more worker saves: a short simulation of what is queued and of what is expected."""

from collections.abc import Sequence
from heapq import heapify, heapreplace

MAX_TASKS = 500  # of one simulation
MIN_RUN_S = 0.1  # without it, a worker serves without end in no time


def arrivals(queued: int, rate: float, until_s: float) -> list[float]:
    """Return when the tasks of a simulation arrive: those that are queued now, then one every 1/rate seconds."""
    now = [0.0] * min(queued, MAX_TASKS)
    more = min(int(rate * until_s), MAX_TASKS - len(now))
    return now + [number / rate for number in range(1, more + 1)]


def starts(arriving: Sequence[float], free: Sequence[float], run_s: float) -> list[float]:
    """Return the starts of tasks that take `run_s` each, first come, first served, by workers that become free then."""
    workers, run_s = list(free), max(run_s, MIN_RUN_S)
    heapify(workers)
    began = []
    for arrival in arriving:
        start = workers[0] if workers[0] > arrival else arrival  # noqa: FURB136  max() takes half of the time
        heapreplace(workers, start + run_s)
        began.append(start)
    return began


def remaining_s(usual_s: float, age_s: float) -> float:
    """Return how long something takes on. If it exceeds the usual time, half of its age more is expected."""
    return max(usual_s - age_s, age_s / 2)
