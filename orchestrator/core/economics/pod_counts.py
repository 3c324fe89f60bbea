"""How many workers of a replay boot, work and are idle, over time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from orchestrator.core.economics.what_if import PoolReplayed


@dataclass(frozen=True, slots=True)
class PodCount:
    """The mean number of workers within one step of time."""

    at: float  # when the step begins
    busy: float
    idle: float
    booting: float


def pod_counts(pools: Sequence[PoolReplayed], since: float, until: float, steps: int) -> list[PodCount]:
    """Return the workers of all pools together in so many steps between two moments."""
    step_s = max(until - since, 1.0) / steps
    live, busy, booting = _Means(since, step_s, steps), _Means(since, step_s, steps), _Means(since, step_s, steps)
    for one in pools:
        for worker in one.replayed.workers:
            ended = until if worker.ended is None else worker.ended
            live.add(worker.asked, ended)
            booting.add(worker.asked, ended if worker.ready is None else min(worker.ready, ended))
        for task, start in zip(one.history.tasks, one.replayed.tasks, strict=True):
            if start is not None:
                busy.add(start.at, start.at + task.duration_s)
    found = zip(live.values(), busy.values(), booting.values(), strict=True)
    return [
        PodCount(since + number * step_s, works, max(0.0, total - works - boots), boots)
        for number, (total, works, boots) in enumerate(found)
    ]


class _Means:
    """The mean number of spans in each step. A span costs no more than its two ends, however long it is."""

    def __init__(self, since: float, step_s: float, steps: int) -> None:
        self._since, self._step_s, self._steps = since, step_s, steps
        self._parts = [0.0] * (steps + 1)  # of steps
        self._whole = [0.0] * (steps + 1)  # what each step has more than the one before

    def add(self, began: float, ended: float) -> None:
        """Add a span; what is outside of the steps does not count."""
        first = min(max((began - self._since) / self._step_s, 0.0), self._steps)
        last = min(max((ended - self._since) / self._step_s, 0.0), self._steps)
        if last <= first:
            return
        begins, ends = int(first), int(last)
        if begins == ends:
            self._parts[begins] += last - first
            return
        self._parts[begins] += begins + 1 - first
        self._parts[ends] += last - ends
        self._whole[begins + 1] += 1
        self._whole[ends] -= 1

    def values(self) -> Iterable[float]:
        """Return the mean of each step."""
        sums = (part + whole for part, whole in zip(self._parts, accumulate(self._whole), strict=True))
        return [value for value, _ in zip(sums, range(self._steps), strict=False)]
