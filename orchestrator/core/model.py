"""What the planner sees of a fleet: frozen values with properties derived from them, without other behaviour.

All datetimes are timezone-aware UTC. Suffixes are units: `_s` seconds, `_usd` US dollars, `_gb` gigabytes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from orchestrator.core.cluster_states import ClusterStatus, MemberStatus
from orchestrator.core.economics.policies import ReviewCandidate, ScalingPolicy
from orchestrator.core.economics.statistics import Statistics
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.findings import GuardFinding
from orchestrator.core.liveness import ObservationWindow
from orchestrator.core.provider import OfferState, Pod, Volume
from orchestrator.core.states import Stage, State, WaitingOn
from orchestrator.core.worker_metadata import WorkerMetadata

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")  # worker ids and pod names; always with fullmatch


@dataclass(frozen=True, slots=True)
class Demand:
    """The task queue of one pool, counted."""

    pool: str
    claimable: int
    running: int
    blocked: Mapping[str, int]  # cause (dependencies, concurrency, scheduled, paused) -> tasks; not part of the demand
    oldest_claimable_at: datetime | None

    @property
    def queued(self) -> int:
        """Return the number of all Queued tasks: the ready ones and those that wait for something."""
        return self.claimable + sum(self.blocked.values())


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A worker whose last tasks all failed, and what the same tasks did on other workers of its release."""

    since: datetime
    failures: int  # different tasks since its last success
    types: frozenset[str]  # of these tasks
    codes: tuple[str, ...]
    suspect: bool = True  # enough of these tasks failed only here; otherwise it only pauses
    until: datetime | None = None  # from when on it claims again; None: not before another worker has tried its tasks
    trials: int = 0  # how often it claimed again, and its tasks failed again
    done_elsewhere: int = 0  # of these tasks, those that another worker completed
    failed_elsewhere: int = 0  # of these tasks, those that failed on another machine too
    meanwhile: bool = False  # whether other workers completed such tasks at once while they failed here
    alike: bool = False  # whether such tasks fail on other workers at first too
    unlike: bool = False  # whether so many completed there that chance does not explain the failures here
    release_works: bool = True  # whether a worker of its release has completed such a task


@dataclass(frozen=True, slots=True)
class Worker:
    """A live `workers` row."""

    id: str
    pool: str
    state: State
    stage: Stage
    state_since: datetime
    stage_since: datetime
    created_at: datetime
    deadline_at: datetime
    next_attempt_at: datetime
    waiting_on: WaitingOn
    waiting_for: str | None
    pod_id: str | None
    ssh_host: str | None
    ssh_port: int | None
    host_key: str | None
    gpu_type: str | None
    gpu_count: int
    data_center: str | None
    price_usd_per_hour: float | None
    reserved_usd: float
    nonce: str | None  # the current launch of its agent
    code_sha: str | None
    token_jti: str | None
    last_heartbeat: datetime | None
    drain_requested_at: datetime | None  # an operator asked for its end
    stop_requested_at: datetime | None  # an operator asked for its end without waiting for its tasks
    exit_cause: ExitCause | None
    failure_code: FailureCode | None
    tasks_running: int
    own_program: bool  # WORKER_START_COMMAND: the program claims tasks itself
    release: str | None = None  # image@code that it runs
    progress_at: datetime | None = None  # the last sign of life of its running tasks
    slowest_task: str | None = None
    empty_since: datetime | None = None  # since when an active worker has held no task
    reserved_usd_per_hour: float = 0
    metadata: WorkerMetadata = field(default_factory=WorkerMetadata)
    log_bytes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # launch -> stream -> last reported size
    machine_id: str | None = None  # the provider's host, if known
    held_back: HeldBack | None = None  # why it claims no more tasks
    disk_full_since: datetime | None = None  # since when its agent has reported too little disk space
    store_wait_since: datetime | None = None  # since when a result has waited for the object store, as it last reported
    findings: tuple[GuardFinding, ...] = ()  # of its last heartbeat
    claim_no: int = 0  # the number of its last claim without a task; it grows with each of them
    cluster: str | None = None  # the Slurm cluster that reserves it

    @property
    def is_fit(self) -> bool:
        """Whether its own state allows it to complete tasks."""
        if (self.held_back is not None and self.held_back.suspect) or self.disk_full_since is not None:
            return False
        return not any(finding.severity.blocks for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Absence:
    """How long complete lists have not shown a pod."""

    lists: int
    since: datetime  # the first such list
    until: datetime  # the newest such list
    watched_s: float  # the part of this time without long pauses between lists, in which the pod may have been back
    shown: datetime | None = None  # the last list with the pod, if this process saw one


@dataclass(frozen=True, slots=True)
class EndedBringUp:
    """A bring-up that is over: promoted or failed, and how a promoted worker ended."""

    worker_id: str
    pool: str
    at: datetime
    promoted: bool
    exit_cause: ExitCause | None  # None while a promoted worker is live
    failure_code: str | None
    release: str | None
    ending_since: datetime | None = None  # when a promoted worker began to end
    worked: bool = False  # the promoted worker has completed a task
    boot_s: float | None = None  # of a promoted worker, from the intent to the promotion
    offer: str | None = None  # key of the offer for its pod


@dataclass(frozen=True, slots=True)
class PodPrice:
    """What the newest pod of an offer cost, of those whose price RunPod has named."""

    offer: str
    usd_per_gpu_hour: float
    created_at: datetime  # of its worker's row
    ended_at: datetime | None  # None: it is live
    ended_for_budget: int  # pods of the offer that the budget ended, the newest ones in a row


@dataclass(frozen=True, slots=True)
class FaultedWorker:
    """A worker that ended because of a fault of its machine (gpu_fault, host_fault)."""

    worker_id: str
    failure_code: FailureCode | None
    at: datetime  # when it began to end


@dataclass(frozen=True, slots=True)
class Spent:
    """The money that a fleet has spent and reserved."""

    today_usd: float  # since midnight UTC, with the live workers
    committed_usd: float  # the cost of terminating all live workers
    hourly_usd: float  # of all live workers


EVERY_POOL = "*"  # the key of a pause of every pool, and of a limit of the whole fleet


@dataclass(frozen=True, slots=True)
class Pause:
    """Why a pool spawns no workers, and until when. None: until an operator resumes it."""

    reason: str
    until: datetime | None


@dataclass(frozen=True, slots=True)
class ScaleLimit:
    """How many workers an operator allows at most in a pool or in the whole fleet, and until when."""

    pool: str  # or EVERY_POOL: the whole fleet
    most: int
    reason: str
    until: datetime
    fleet_most: int | None = None  # of a pool's share of the limit of the whole fleet: that limit

    @property
    def allowed(self) -> int:
        """Return the number that the operator gave."""
        return self.most if self.fleet_most is None else self.fleet_most

    @property
    def where(self) -> str:
        """Return what it limits, in words."""
        return "the whole fleet" if self.pool == EVERY_POOL else f"pool {self.pool}"


@dataclass(frozen=True, slots=True)
class LearnedPool:
    """What the learned rule knows of a pool. Times are seconds since 1970 on the database's clock."""

    known: Statistics
    waiting: tuple[float, ...] = ()  # arrivals of the tasks that are ready, the oldest ones, oldest first
    busy_since: Mapping[str, float] = field(default_factory=dict)  # worker -> when it claimed its oldest running task
    last_end: Mapping[str, float] = field(default_factory=dict)  # worker -> when its last task ended, if that is recent
    reviewed: ReviewCandidate | None = None  # the cheapest rule of the last week, if a review knows it


@dataclass(frozen=True, slots=True)
class StoreOutage:
    """The object store is unusable, for this process or for half of the workers."""

    since: datetime
    why: str
    refused: bool = False  # it refuses our calls: an operator must act
    waiting: int = 0  # workers that wait for it, if only workers cannot reach it
    ready: int = 0  # ready workers


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """What the pod of a silent worker answered over SSH."""

    at: datetime
    address: tuple[str | None, int | None]  # host, port
    calls_unanswered: bool | None  # its agent records calls without an answer; None: SSH did not reach the pod
    unreached_s: float = 0  # since the first try in a row that did not reach it
    has_network: bool = True  # this process had a network then: RunPod answered, or most other workers were heard


@dataclass(frozen=True, slots=True)
class ClusterNeed:
    """A live Slurm cluster: how many nodes it wants from its pool, and the members that it has."""

    id: str
    pool: str
    status: ClusterStatus
    nodes: int
    members: Mapping[str, MemberStatus]  # worker -> status, also of removed and failed ones whose worker is live
    controller: str | None = None  # the live member with slurmctld, whose agent runs the tasks


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One observation: the provider's complete pod list, then the database's rows. The input of a tick's plan."""

    now: datetime  # the database's clock
    window: ObservationWindow  # the time in which heartbeats could be received: silence counts only in it
    pods: tuple[Pod, ...] | None  # None: there is no complete list, so nothing is known about pods
    workers: tuple[Worker, ...]  # live rows only, sorted by id
    demand: tuple[Demand, ...]
    expired_leases: int  # running tasks whose lease has expired
    offers: Mapping[str, OfferState]
    absent: Mapping[str, Absence]  # pod id or worker id -> absence from complete lists
    orphan_since: Mapping[str, datetime]  # pod id -> when it was first seen without a live row
    in_flight: frozenset[str]  # worker and pod ids with a running action
    bringing_up: frozenset[str]  # worker ids whose bring-up runs in this process
    last_spawn_at: Mapping[str, datetime]  # pool -> the newest intent, also of ended workers
    paused: Mapping[str, Pause]  # by pool, or EVERY_POOL
    ended: tuple[EndedBringUp, ...] = ()  # bring-ups of the last day, at most 100 a pool, newest last
    pod_prices: tuple[PodPrice, ...] = ()  # one of an offer, of bring-ups that ended within a day
    promoted_releases: frozenset[str] = frozenset()  # in the last 30 days
    faults: tuple[FaultedWorker, ...] = ()  # of the last hour, at most 100
    spent: Spent = Spent(0, 0, 0)
    avoid: Mapping[str, datetime] = field(default_factory=dict)  # "machine:<id>", "place:<center>|<GPU>" -> until when
    prices: Mapping[str, float] = field(default_factory=dict)  # "<GPU>|<cloud>" -> $/h of one GPU; only with a budget
    volumes: Mapping[str, Volume] = field(default_factory=dict)  # by name; without those that were not requested yet
    registry_problems: Mapping[str, str] = field(default_factory=dict)  # registry credentials by name -> why unusable
    unanswered_at: Mapping[str, datetime] = field(
        default_factory=dict
    )  # worker -> when the gateway last could not answer its call, which shows that the worker runs
    pod_answers: Mapping[str, PodAnswer] = field(default_factory=dict)  # worker -> the last answer of its pod
    heard_again_at: Mapping[str, datetime] = field(default_factory=dict)  # worker -> when its last silence ended
    claim_seen_at: Mapping[str, datetime] = field(
        default_factory=dict
    )  # idle worker -> when this process first saw its present claim number
    unlisted: str | None = None  # why there is no list of pods, or none newer than `pods`
    database_id: str | None = None  # the database of these rows
    store_outage: StoreOutage | None = None  # no worker claims, and no pod starts
    database_s: float = 0  # how long the database took for its half
    foreign_pods: tuple[Pod, ...] = ()  # of a fleet of this name in another database; not in `pods`
    exited: Mapping[str, Absence] = field(default_factory=dict)  # pod id -> for how long lists have shown it as ended
    clusters: tuple[ClusterNeed, ...] = ()  # live ones, one of a pool
    scale_limits: Mapping[str, ScaleLimit] = field(default_factory=dict)  # by pool, or EVERY_POOL
    scaling_policies: Mapping[str, ScalingPolicy] = field(default_factory=dict)  # operators' choices, the same
    learned: Mapping[str, LearnedPool] = field(default_factory=dict)  # by pool with SCALING_POLICY=learned

    def last_contact(self, worker: Worker) -> datetime:
        """Return when this orchestrator last heard of a worker: its heartbeat, or a call that got no answer."""
        beat = worker.last_heartbeat or worker.state_since
        return max(beat, self.unanswered_at.get(worker.id, beat))

    def pause_of(self, pool: str) -> Pause | None:
        """Return the pause of a pool, if there is one."""
        return self.paused.get(EVERY_POOL) or self.paused.get(pool)
