"""The present and wanted size of a pool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.blocked import Blocked
from orchestrator.core.economics.rule import Decision
from orchestrator.core.model import ClusterNeed, Demand, Worker


@dataclass(frozen=True, slots=True)
class LearnedSize:
    """What the learned rule decides for a pool, on top of its present workers."""

    decision: Decision
    wanted: int  # workers, before MAX_ACTIVE_GPUS
    ends: tuple[tuple[Worker, str], ...]  # idle workers whose window is over, each with the arithmetic
    review_at: float | None  # when to ask again if nothing happens, in seconds since 1970
    inputs: Mapping[str, object]  # for the decision row


@dataclass(frozen=True, slots=True)
class Size:
    """The present and wanted size of a pool."""

    demand: Demand
    ready: list[Worker]
    spawning: list[Worker]
    ending: list[Worker]  # terminating, or ended in this tick
    busy: int
    running: int  # running tasks that count as demand: those of workers that stay
    wanted: int  # before MAX_ACTIVE_GPUS
    target: int
    awaited: str | None = None  # why a first worker of the present release is needed, if it is (rollout.py)
    replacement: Worker | None = None  # that worker, while it spawns
    unfit: Sequence[Worker] = ()  # ready ones that are no capacity; they count towards MAX_ACTIVE_GPUS
    suspects: int = 0  # that stay warm without work, so that no other worker is started for that
    cluster: ClusterNeed | None = None  # of a cluster pool, while it has a live cluster
    unwanted: tuple[Worker, ...] = ()  # of a cluster pool: workers that its cluster does not keep
    refused: Blocked | None = None  # of a cluster pool: why not all of the missing workers can be paid
    learned: LearnedSize | None = None  # of a pool with SCALING_POLICY=learned
    warm: int = 0  # workers that stay in any case

    @property
    def live(self) -> int:
        """Return the number of workers that are, or will be, capacity."""
        return len(self.ready) + len(self.spawning)

    @property
    def missing(self) -> int:
        """Return the number of missing workers; negative if there are too many."""
        return self.target - self.live

    @property
    def asked(self) -> int:
        """Return how many spawns the pool wants now: the missing workers, or one for the present release."""
        return max(self.missing, 1 if self.awaited and self.replacement is None else 0)
