"""How many workers a pool of a replay may and must have, if that follows the time."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class SizeStep(NamedTuple):
    """The sizes from a moment on. None: those that the settings have."""

    since: float
    min_active: int | None
    max_active: int | None


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """`most` and `least`, and what replaces them from the moments of `steps` on. These are in the order of time."""

    most: int
    least: int = 0
    steps: Sequence[SizeStep] = ()

    @property
    def highest(self) -> int:
        """Return the most workers that the pool has at any time."""
        return max((self._most(one) for one in self.steps), default=self.most)

    def at(self, now: float) -> tuple[int, int, float | None]:
        """Return the least and the most workers now, and when that changes; None: never."""
        place = bisect_right(self.steps, now, key=lambda one: one.since)
        change = self.steps[place].since if place < len(self.steps) else None
        if not place:
            return self.least, self.most, change
        step = self.steps[place - 1]
        return self.least if step.min_active is None else step.min_active, self._most(step), change

    def _most(self, step: SizeStep) -> int:
        return self.most if step.max_active is None else step.max_active
