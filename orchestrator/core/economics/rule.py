"""What a rule of scaling sees of a pool, and what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class IdleWorker:
    """An idle worker."""

    asked: float
    since: float


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool at one moment."""

    now: float
    waiting: Sequence[float]  # arrivals of the queued tasks, oldest first; a rule reads no more than it needs
    queued: int
    busy: Sequence[float]  # when the running tasks started
    booting: Sequence[float]  # when the workers that boot were asked for
    idle: Sequence[IdleWorker]  # the one with the oldest last use first
    most: int  # workers that the pool may have
    least: int = 0  # workers that it always has

    @property
    def live(self) -> int:
        """Return the number of its workers."""
        return len(self.busy) + len(self.booting) + len(self.idle)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a rule decides for a pool now."""

    starts: int = 0
    ends: tuple[int, ...] = ()  # places in `PoolView.idle`
    review_at: float | None = None  # when to ask again, if nothing happens before
    why: str = ""  # empty if nothing starts or ends


class Rule(Protocol):
    """A rule of scaling with what it has learned of one pool. Events come in the order of their times.

    A level is the number of workers that the queued and the running tasks would use at once.
    """

    def arrived(self, level: int, now: float) -> None:
        """Learn that a task has arrived; the level is now this one."""

    def booted(self, boot_s: float) -> None:
        """Learn that a worker is ready `boot_s` after it was asked for."""

    def ended(self, level: int, run_s: float, now: float) -> None:
        """Learn that a task has ended after `run_s`; the level was this one until now."""

    def decide(self, view: PoolView) -> Decision:
        """Return what to start or end now."""
        ...
