"""The facts in which rules find conditions: one typed record of a fleet at one moment. fact_sources.py makes it.

A fact that was unavailable, or was not requested, is None or empty. No rule guesses it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from orchestrator.core.actions import PoolDecision
from orchestrator.core.blocked import Blocked
from orchestrator.core.clusters.rows import ClusterRow
from orchestrator.core.findings import GuardFinding
from orchestrator.core.model import Demand, EndedBringUp, Pause
from orchestrator.core.plurals import counted
from orchestrator.core.provider import OfferState
from orchestrator.core.states import READY, Stage, WaitingOn
from orchestrator.core.worker_metadata import WorkerMetadata
from orchestrator.diagnostics.drift import Drift

Row = Mapping[str, Any]
CONNECTED = "✅ Connected"  # what is said of a pod that our key opens
HEAD = 500  # tasks of a pool, ready or waiting for a time, whose handler is looked for (fleet_task_troubles)
RECENT_S = 900.0  # afterwards a failed bring-up says nothing about the present
NO_DRIFT = Drift((), (), 0, (), 0)


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A live worker."""

    id: str
    pool: str
    state: str
    stage: str | None
    state_since: datetime
    last_heartbeat_at: datetime  # its last heartbeat, or the beginning of its state
    tasks_running: int
    unfit: str | None = None  # why it claims nothing although it could
    findings: tuple[GuardFinding, ...] = ()
    busy_share: float | None = None
    usd: float = 0
    waiting_on: str = ""
    waiting_for: str = ""
    heartbeat_s: float | None = None  # the pause between two heartbeats
    metadata: WorkerMetadata = field(default_factory=WorkerMetadata)
    explanation: Row = field(default_factory=dict)  # its explanation
    connection: str = ""  # what came of connecting over SSH
    agent: str | None = None  # the state of its agent's process, as seen over SSH
    stage_since: datetime | None = None
    deadline_at: datetime | None = None  # of its stage
    data_center: str | None = None
    store_wait_since: datetime | None = None  # since when a result of it has waited for the object store
    empty_since: datetime | None = None  # since when an active worker has held no task; None: not known
    cluster: str | None = None  # the Slurm cluster that reserves it

    @property
    def is_ready(self) -> bool:
        """Whether it was promoted and has not begun to end."""
        return self.state in READY

    @property
    def is_unheard(self) -> bool:
        """Whether it stays although it is silent: its agent gets no answer, or the orchestrator has no network."""
        return self.waiting_on == WaitingOn.OPERATOR and (self.is_ready or self.stage == Stage.DRAINING)


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """The queue of one pool, and its last decision."""

    demand: Demand
    decision: PoolDecision | None = None
    next_due_at: datetime | None = None
    mean_task_s: float | None = None
    # Kind of blocked reason -> since when recorded decisions name it. None: not read, as by the leader.
    since: Mapping[str, datetime] | None = None

    @property
    def name(self) -> str:
        """The pool."""
        return self.demand.pool

    @property
    def ready_tasks(self) -> int:
        """Tasks that wait for nothing but a worker, those of a paused pool included."""
        return self.demand.claimable + self.demand.blocked.get("paused", 0)

    @property
    def blocked(self) -> Sequence[Blocked]:
        """What the pool wants and does not get."""
        return self.decision.blocked if self.decision else ()


@dataclass(frozen=True, slots=True)
class Outage:
    """Why something does not work, and since when."""

    why: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a fleet."""

    now: datetime
    environment: Row = field(default_factory=dict)
    database_error: str | None = None
    database_s: float = 0  # how long its report took, or a tick's snapshot
    functions: Row = field(default_factory=dict)  # name -> status and probe
    provider_error: str | None = None
    provider_unseen: str | None = None  # why RunPod does not serve this process, although the leader has no trouble
    balance_usd: float | None = None  # None: RunPod does not show it to this key
    is_led: bool | None = None  # None: not known
    leader_silent: str | None = None  # that the leader does not renew its lease
    tick_failed: Outage | None = None
    store_away: Outage | None = None  # S3, as the leader or this process sees it
    store_s: float = 0  # how long S3 took to answer this process; 0: not asked
    store_unseen: str | None = None  # why S3 does not serve this process, although the leader has no trouble with it
    bucket_place: str | None = None  # its region or data centre; None: not known
    paused: Mapping[str, Pause] = field(default_factory=dict)
    queued: int = 0
    pools: Sequence[PoolFacts] = ()
    workers: Sequence[WorkerFacts] = ()
    live: int = 0  # live workers, those of which nothing more is known included
    unknown_workers: Mapping[str, str] = field(default_factory=dict)  # id -> why nothing is known of it
    ended: Sequence[EndedBringUp] = ()  # of a day, the newest last
    offers: Mapping[str, OfferState] = field(default_factory=dict)
    handled: Sequence[str] = ()  # types of task with a handler; empty: not known
    waiting_types: Sequence[Row] = ()  # ready tasks by pool and type
    unpublished_tasks: Sequence[Row] = ()  # whose row shows an earlier status for more than 10 s, by pool and error
    schema_problems: Sequence[Row] = ()  # what in the database differs from what the functions need: what, why, fix
    webhooks: Row = field(default_factory=dict)  # messages that were not delivered
    schedules: Sequence[Row] = ()  # that submit no task: name, why
    clusters: Sequence[ClusterRow] = ()  # live ones, and of pools without one the newest if it failed within a day
    controllers: Mapping[str, str | None] = field(default_factory=dict)  # live cluster -> its ready controller
    lost_tasks: Sequence[Row] = ()  # of a day, with the worker that was lost last
    drift: Drift = NO_DRIFT
    expired_leases: int = 0
    failed_bringups: Sequence[Row] = ()  # of a day, or of RECENT_S as the leader asks; by code and stage
    failed_tasks: Sequence[Row] = ()  # by type and code
    failed_within: str = "a day"
    last_day_usd: float = 0
    usual_day_usd: float | None = None
    unreachable: Mapping[str, Row] = field(default_factory=dict)  # place -> url and error
    other_code: Sequence[str] = ()  # workers with another agent than this version's

    def ready_tasks(self, pool: str | None = None) -> int:
        """Tasks of a pool, or of all, that wait for nothing but a worker."""
        return sum(one.ready_tasks for one in self.pools if pool in (None, one.name))

    def is_sampled(self, pool: str) -> bool:
        """Whether more tasks of a pool may need a handler than `waiting_types` counts."""
        return any(one.name == pool and one.ready_tasks + one.demand.blocked.get("scheduled", 0) > HEAD
                   for one in self.pools)  # fmt: skip

    def lacks_workers(self, pool: str) -> bool:
        """Whether ready tasks of a pool wait because nothing can take them."""
        return bool(self.ready_tasks(pool)) and not self.capacity(pool)

    def capacity(self, pool: str) -> int:
        """Workers of a pool that can take its tasks. Of a cluster, only the controller does."""
        here = (one for one in self.workers if one.pool == pool and one.is_ready)
        return sum(not (one.unfit or one.is_unheard) and self._claims(one) for one in here)

    def _claims(self, worker: WorkerFacts) -> bool:
        return worker.cluster is None or self.controllers.get(worker.cluster, worker.id) == worker.id

    def oldest_ready_at(self, pool: str) -> datetime | None:
        """When the oldest ready task of a pool was submitted; None if that is not known."""
        return next((one.demand.oldest_claimable_at for one in self.pools if one.name == pool), None)

    def ago_s(self, then: datetime) -> float:
        """Seconds from a moment to now."""
        return (self.now - then).total_seconds()


@dataclass(frozen=True, slots=True)
class Asked:
    """What no tick reads, and the leader asks once a minute."""

    balance_usd: float | None = None
    store_s: float = 0
    bucket_place: str | None = None
    handled: Sequence[str] = ()
    waiting_types: Sequence[Row] = ()
    unpublished_tasks: Sequence[Row] = ()
    schema_problems: Sequence[Row] = ()
    webhooks: Row = field(default_factory=dict)
    schedules: Sequence[Row] = ()
    clusters: Sequence[ClusterRow] = ()
    lost_tasks: Sequence[Row] = ()
    failed_tasks: Sequence[Row] = ()  # of a quarter of an hour, if most attempts fail
    failed_bringups: Sequence[Row] = ()  # of a quarter of an hour


NOT_ASKED = Asked()


def minutes(seconds: float) -> str:
    """A time as it is said: `12 minutes`, `1 minute`, `less than a minute`."""
    whole = round(seconds / 60)
    return counted(whole, "minute") if whole else "less than a minute"
