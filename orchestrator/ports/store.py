"""The rows of the fleet, as the loop reads and writes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from orchestrator.core.economics.history import Run
from orchestrator.core.economics.policies import ReviewCandidate, ScalingPolicy
from orchestrator.core.economics.statistics import Statistics
from orchestrator.core.failures import FailureCode
from orchestrator.core.host_strikes import Strike
from orchestrator.core.model import (
    ClusterNeed,
    Demand,
    EndedBringUp,
    FaultedWorker,
    Pause,
    PodPrice,
    ScaleLimit,
    Spent,
    StoreOutage,
    Worker,
)
from orchestrator.core.policy import TaskType
from orchestrator.core.provider import OfferState
from orchestrator.core.states import Stage, State

LEASE_TTL_S = 15.0
LEAD_EVERY_S = 5.0  # how often its holder renews it


@dataclass(frozen=True, slots=True)
class Lease:
    """The answer to `fleet_lead`; `term` is the fencing epoch when `leader`, else the present leader's."""

    leader: bool
    term: int
    holder: str
    expires_at: datetime
    since: datetime  # when this term began


@dataclass(frozen=True, slots=True)
class DatabaseHalf:
    """One statement's view of the database."""

    now: datetime
    workers: tuple[Worker, ...]
    demand: tuple[Demand, ...]
    expired_leases: int
    offers: Mapping[str, OfferState]
    last_spawn_at: Mapping[str, datetime]
    paused: Mapping[str, Pause]
    ended: tuple[EndedBringUp, ...]
    promoted_releases: frozenset[str]
    spent: Spent
    avoid: Mapping[str, datetime]
    database_id: str | None  # made once for each database; None: its schema is older than that
    faults: tuple[FaultedWorker, ...] = ()  # none in an older schema
    clusters: tuple[ClusterNeed, ...] = ()  # the same
    pod_prices: tuple[PodPrice, ...] = ()  # the same
    scale_limits: Mapping[str, ScaleLimit] = field(default_factory=dict)  # the same; by pool, or EVERY_POOL
    scaling_policies: Mapping[str, ScalingPolicy] = field(default_factory=dict)  # the same


@dataclass(frozen=True, slots=True)
class PoolHistory:
    """What has happened in a pool since a moment, and what is open. Times are seconds since 1970."""

    now: float
    since: float
    runs: tuple[tuple[Run, str], ...]  # that ended after `since`, each with its worker
    opened: tuple[float, ...]  # arrivals after `since` of tasks that are ready or running
    open_tasks: int  # the number of these tasks
    waiting: tuple[float, ...]  # arrivals of the oldest ready tasks, oldest first
    busy_since: Mapping[str, float]  # worker -> when it claimed its oldest running task
    stored: Statistics | None  # as they were stored at `since`
    is_lost: bool  # statistics were stored that cannot be used
    reviewed: ReviewCandidate | None = None  # the cheapest rule of the last week, if a review knows it


@dataclass(frozen=True, slots=True)
class StageAttempt:
    """How one attempt at a bring-up stage ended."""

    outcome: str  # ok | failed | timeout | cancelled | lost
    failure_code: FailureCode | None = None
    exception_type: str | None = None
    evidence: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class LogRange:
    """A piece of one stream, `[first, last)` in bytes, and where it lies."""

    worker_id: str
    boot_id: str
    stream: str
    seq: int
    first: int
    last: int
    sha256: str  # of the raw bytes
    key: str


class Store(Protocol):
    """The rows of the fleet. Every `term` argument is checked by the database (NotLeader)."""

    async def lead(self, holder: str, ttl_s: float) -> Lease: ...
    async def resign(self, holder: str, term: int) -> None: ...
    async def maintain(self, term: int) -> None:
        """Do what the queue needs each second: due tasks, limits, pending publications, a part of the audit."""
        ...

    async def snapshot(self) -> DatabaseHalf: ...
    async def histories(self, since: Mapping[str, float | None]) -> Mapping[str, PoolHistory]:
        """What has happened in pools since these moments; None: since the statistics that are stored, or 14 days."""
        ...

    async def learn(self, term: int, pools: Mapping[str, tuple[Statistics, float]]) -> None:
        """Store the statistics of pools, each with the moment until which they know what has happened."""
        ...

    async def spawn(self, term: int, worker: Mapping[str, Any]) -> bool:
        """Insert an intent with its reservation; False if the id exists already. OverBudget with the arithmetic."""
        ...

    async def move(
        self,
        term: int,
        worker_id: str,
        *,
        from_states: Sequence[State],
        to_state: State | None = None,
        stage: Stage | None = None,
        reason: str,
        fields: Mapping[str, Any] | None = None,
    ) -> Worker:
        """Compare-and-set on one worker: state, stage and `fields` together. LostRace if the state has changed."""
        ...

    async def worker(self, worker_id: str) -> Mapping[str, Any]:
        """The row of one worker with its events, its attempts at each stage and the tasks it held."""
        ...

    async def open_attempt(self, term: int, worker_id: str, stage: Stage) -> int: ...
    async def note_attempt(
        self, term: int, attempt_id: int, code: FailureCode | None, evidence: Mapping[str, Any]
    ) -> None:
        """Record the suspected code and the evidence of a running attempt."""
        ...

    async def close_attempt(self, term: int, attempt_id: int, result: StageAttempt) -> None: ...
    async def rescue(
        self, term: int, *, worker_id: str | None = None, over_s: float = 0
    ) -> Sequence[Mapping[str, Any]]:
        """Requeue (or at last fail) tasks whose lease has been over for `over_s`; all of a worker that is named."""
        ...

    async def keep_tasks(self, term: int, worker_id: str) -> None:
        """Renew the leases of a worker's tasks: its agent calls, and its calls do not arrive."""
        ...

    async def note_offer(self, term: int, key: str, *, refused: bool, code: str | None) -> None: ...
    async def strike(self, term: int, strike: Strike, *, code: str, evidence: Mapping[str, Any]) -> Mapping[str, Any]:
        """Record a strike against a machine or a place. Return its strikes, and until when it is avoided."""
        ...

    async def hosts(self, *, avoided: bool = False) -> Sequence[Mapping[str, Any]]:
        """Machines and places that failed, newest first; with `avoided` only those that are avoided now."""
        ...

    async def record_decision(self, term: int, decision: Mapping[str, Any]) -> None: ...
    async def declare_pools(self, term: int, task_types: Sequence[TaskType]) -> None:
        """Store the pool and limits of each task type, and drop earlier declarations."""
        ...

    async def declare_programs(self, term: int, pools: Sequence[str], stuck_s: float) -> None:
        """Store the pools whose programs claim tasks.

        In others, a task without a holder is requeued after `stuck_s`.
        """
        ...

    async def declare_release(self, term: int, releases: Mapping[str, str], task_types: Sequence[str]) -> None:
        """Store the present release and its handled types for each pool, for this term."""
        ...

    async def note_tick(self, term: int, error: str | None, *, for_s: float) -> None:
        """Store that ticks fail, for `for_s` seconds; None: a tick succeeded again."""
        ...

    async def hold_claims(self, term: int, away: StoreOutage | None, *, for_s: float) -> None:
        """Hold all claims during an outage of the object store. None: the outage is over."""
        ...

    async def log_begin(self, term: int, piece: LogRange) -> None:
        """Ledger row before the upload; its range can never be given to another object."""
        ...

    async def log_shipped(self, term: int, piece: LogRange) -> None: ...
    async def log_ends(self, worker_id: str) -> Sequence[Mapping[str, Any]]:
        """Return the ledger's last piece of each stream, and the last one that has arrived."""
        ...

    async def log_lost(
        self, term: int, worker_id: str, boot_id: str, stream: str, first: int, last: int | None, reason: str
    ) -> None:
        """Declare bytes from `first` on lost with their host; `last` None when the end was never known."""
        ...

    async def metrics(self, since: datetime | None) -> Mapping[str, Any]:
        """{"claimed", "ended": [{"outcome", "code", "n"}], "until"} of tasks since a moment, and what is pending now.

        That is "log_bytes_pending", and "unpublished": {"n", "oldest_s"}.
        """
        ...

    async def retention(self, term: int, days: Mapping[str, float]) -> Mapping[str, int] | None: ...
