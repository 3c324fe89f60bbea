"""What the planner looks at: frozen values, no behaviour beyond what can be read off them.

All datetimes are timezone-aware UTC. Suffixes are units: `_s` seconds, `_usd` US dollars, `_gb` gigabytes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.liveness import ObservationWindow
from orchestrator.core.states import Stage, State, WaitingOn

LOGS_LATE = "logs_late"  # in a row's metadata: why its logs do not arrive; null once they do
DATABASE = "database_id"  # in a row's metadata: the database whose orchestrator asked for its pod
SSH_USER = "ssh_user"  # in a row's metadata: the account that SSH logs into, where it is not root
LACKS = "lacks"  # in a row's metadata: a type of task that its release has no handler for, and the leader's has
MAX_FAILURES = "max_failures"  # in a row's metadata: WORKER_MAX_CONSECUTIVE_FAILURES when its pod was asked for
DELETES = "deletes"  # in a row's metadata: how often its pod's deletion was asked for, from the second time on
UNREACHED = "unreached"  # in a row's metadata: how often in a row its end found nobody at the pod
ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")  # worker ids and pod names; always with fullmatch


class PodStatus(StrEnum):
    """RunPod's REST v2 `status`."""

    PROVISIONING = "PROVISIONING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    EXITED = "EXITED"
    ERROR = "ERROR"
    TERMINATED = "TERMINATED"
    UNKNOWN = "UNKNOWN"  # none of these: it is there, and whether it lives nobody can tell


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod as the provider's list shows it."""

    id: str
    name: str
    status: PodStatus
    fleet_id: str | None  # ownership: env ORCHESTRATOR_FLEET_ID; None means not ours
    worker_id: str | None  # env ORCHESTRATOR_WORKER_ID
    has_runtime: bool
    ssh_host: str | None
    ssh_port: int | None
    gpu_type: str | None
    gpu_count: int | None
    data_center: str | None
    machine_id: str | None  # the provider's host; where it names none, the public address of its SSH
    price_usd_per_hour: float | None
    created_at: datetime | None
    database_id: str | None = None  # whose rows name it: env ORCHESTRATOR_DATABASE_ID; None: an earlier release made it
    ssh_user: str | None = None  # the account that SSH logs into; None: root
    owner_unknown: bool = False  # its env cannot be read: it may be ours, and is not taken for anybody's

    def is_of(self, fleet_id: str, database_id: str | None) -> bool:
        """Whether it is this fleet's, and not another database's fleet of the same name."""
        return self.fleet_id == fleet_id and self.database_id in (None, database_id)

    def is_strange(self, fleet_id: str, database_id: str | None) -> bool:
        """Whether it is of a fleet of this name in another database."""
        return self.fleet_id == fleet_id and not self.is_of(fleet_id, database_id)


@dataclass(frozen=True, slots=True)
class Offer:
    """Something that can be rented: one GPU type in one data centre (None: anywhere) of one cloud."""

    gpu_type: str
    data_center: str | None
    cloud: str

    @property
    def key(self) -> str:
        """The offer's name in the `offers` table and in decisions."""
        return f"{self.gpu_type}|{self.data_center or '*'}|{self.cloud}"


@dataclass(frozen=True, slots=True)
class OfferState:
    """What is remembered of an offer."""

    key: str
    cooldown_until: datetime | None
    refusals: int  # in a row
    last_refusal: datetime | None
    last_success: datetime | None
    probe_budget: int | None = None  # create calls that may be under way at once; None: it was never refused


@dataclass(frozen=True, slots=True)
class PodSpec:
    """What a create call asks for."""

    name: str  # the worker id: unique, so that a lost reply can be adopted by name
    fleet_id: str
    image: str
    gpu_type: str
    gpu_count: int
    cloud: str
    data_center: str | None
    disk_gb: int
    min_memory_gb: int
    min_vcpu: int
    ports: tuple[str, ...]
    public_key: str
    env: Mapping[str, str]  # the provider shows it to every reader of the pod: nothing secret but the bootstrap nonce
    volume_id: str | None
    volume_mount_path: str
    database_id: str | None = None  # whose rows name it
    min_cuda: str | None = None  # "12.4": the lowest CUDA version that the machine's driver must support


@dataclass(frozen=True, slots=True)
class Demand:
    """The task queue of one pool, counted."""

    pool: str
    claimable: int
    running: int
    blocked: Mapping[str, int]  # cause (dependencies, scheduled, paused) -> tasks; never scales anything
    oldest_claimable_at: datetime | None


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A worker whose last tasks all failed claims no more."""

    since: datetime
    failures: int  # different tasks in a row
    types: frozenset[str]  # of these tasks
    codes: tuple[str, ...]
    done_elsewhere_at: datetime | None  # when another worker last completed a task of one of these types


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
    drain_requested_at: datetime | None  # an operator wants it gone
    stop_requested_at: datetime | None  # … without waiting for what it runs
    exit_cause: ExitCause | None
    failure_code: FailureCode | None
    tasks_running: int
    own_program: bool  # WORKER_START_COMMAND: it may claim tasks in its own way
    release: str | None = None  # image@code that it runs
    progress_at: datetime | None = None  # when the slowest of its running tasks last told of progress
    slowest_task: str | None = None
    empty_since: datetime | None = None  # of an active one that holds no task: since when
    reserved_usd_per_hour: float = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    log_bytes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # launch -> stream -> size last heard of
    machine_id: str | None = None  # the provider's host, as far as it tells
    held_back: HeldBack | None = None  # why it claims no more
    disk_full_since: datetime | None = None  # its agent reports that it has too little room to claim
    waits_for_store: bool = False  # its last heartbeat said that a result waits for the object store

    @property
    def is_fit(self) -> bool:
        """Whether it may claim tasks, as far as its own state is concerned."""
        return self.held_back is None and self.disk_full_since is None


@dataclass(frozen=True, slots=True)
class Pool:
    """The policy of one kind of worker."""

    name: str
    offers: tuple[Offer, ...]
    image: str
    gpu_count: int
    disk_gb: int
    min_memory_gb: int
    min_vcpu: int
    volume_name: str | None
    volume_mount_path: str
    min_active: int
    max_active: int  # 0 is the off switch
    tasks_per_gpu: int
    keep_idle: int
    idle_timeout_s: float
    overcapacity_idle_timeout_s: float
    batch: int = 1  # tasks that an agent claims at once
    handlers: tuple[str, ...] | None = None  # task types whose handlers its workers get; None: all
    env: tuple[str, ...] | None = None  # names of WORKER_ENV that its workers get; None: all
    min_cuda: str | None = None  # "12.4": of the machine's driver; None: what the image's name tells


@dataclass(frozen=True, slots=True)
class TaskType:
    """What is declared of one type of task; None leaves it to the task."""

    name: str
    pool: str | None
    timeout_s: float | None
    max_attempts: int | None


@dataclass(frozen=True, slots=True)
class Policy:
    """Every number the planner needs; made from the environment by settings.py."""

    fleet_id: str
    pools: tuple[Pool, ...]
    spawning_timeout_s: float  # hard cap on a whole bring-up
    spawning_grace_s: float  # after a spawn, how long spawning workers are not cancelled for want of work
    scale_down_grace_s: float  # after a scale-up, how long nothing is scaled down for overcapacity
    drain_grace_s: float  # GRACEFUL_SHUTDOWN_TIMEOUT_SEC
    flush_deadline_s: float = 60
    heartbeat_timeout_s: float = 60
    task_stuck_s: float = 1200
    orphan_grace_s: float = 75  # with the 30 s in which nobody looks: gone within 120 s of its first listing
    absence_age_s: float = 10  # a pod must be missing from complete lists for this long before it counts as gone
    delete_retry_s: float = 10
    public_key: str = ""
    code_sha: str = ""  # of what is sent to every pod: agent, user code and the names of its handlers
    handled: tuple[str, ...] = ()  # the types of task that a worker started now has handlers for
    task_types: tuple[TaskType, ...] = ()
    own_program: bool = False  # WORKER_START_COMMAND: the programs of these pools take tasks themselves
    max_failure_rate: float = 0.8  # of ended bring-ups; above it the breaker opens
    failure_window_s: float = 300
    failure_min_bringups: int = 5  # fewer ended bring-ups say nothing
    max_failures: int = 5  # WORKER_MAX_CONSECUTIVE_FAILURES: of different tasks, after which a worker claims no more
    hourly_budget_usd: float | None = None  # MAX_HOURLY_COST_USD: of all live workers together
    daily_budget_usd: float | None = None  # of a UTC day

    def release(self, pool: Pool) -> str:
        """What a worker of the pool would run now: image@code."""
        return f"{pool.image}@{self.code_sha}"

    def succeeds(self, pool: Pool, worker: Worker) -> bool:
        """Whether a task came back from this worker of an earlier release that one started now has a handler for."""
        return worker.release != self.release(pool) and worker.metadata.get(LACKS) in self.handled


@dataclass(frozen=True, slots=True)
class Absence:
    """How long complete lists have not shown a pod."""

    lists: int
    since: datetime  # the first of them
    until: datetime  # the newest: what has happened since is not known
    watched_s: float  # of the time between, where no list was long in coming: one that went unread may have shown it
    shown: datetime | None = None  # the last one that did show it, as far as this process knows


@dataclass(frozen=True, slots=True)
class EndedBringUp:
    """A bring-up that is over: promoted, or not and why; and what became of the worker that was promoted."""

    worker_id: str
    pool: str
    at: datetime
    promoted: bool
    exit_cause: ExitCause | None  # None while a promoted one has not begun to end
    failure_code: str | None
    release: str | None
    ending_since: datetime | None = None  # when a promoted one began to end
    worked: bool = False  # a promoted one has completed a task
    boot_s: float | None = None  # from the intent to the promotion, of a promoted one


@dataclass(frozen=True, slots=True)
class Spent:
    """The money of a fleet."""

    today_usd: float  # since midnight UTC, what runs now included
    committed_usd: float  # what ending all live workers in good order may still cost
    hourly_usd: float  # of all live workers


@dataclass(frozen=True, slots=True)
class Pause:
    """Why and until when a pool spawns nothing; None: until an operator resumes it."""

    reason: str
    until: datetime | None


@dataclass(frozen=True, slots=True)
class StoreAway:
    """The object store cannot be used: by this process, or by half of the workers."""

    since: datetime
    why: str
    refused: bool = False  # it answers, and refuses our calls: an operator must act
    waiting: int = 0  # workers that wait for it, if it is away for workers only
    ready: int = 0  # of so many


@dataclass(frozen=True, slots=True)
class Volume:
    """What the provider says of a network volume, asked for by name."""

    data_center: str | None
    problem: str | None  # why there is no using it


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One observation: the provider's complete list and the database's half, taken one after the other."""

    now: datetime  # the database's clock
    window: ObservationWindow  # when whoever spoke would have been heard: silence counts only then
    pods: tuple[Pod, ...] | None  # None: the provider gave no complete list, so nothing is known about pods
    workers: tuple[Worker, ...]  # live rows only, sorted by id
    demand: tuple[Demand, ...]
    expired_leases: int  # running tasks whose lease is over
    offers: Mapping[str, OfferState]
    absent: Mapping[str, Absence]  # pod id or worker id -> absence from complete lists
    orphan_since: Mapping[str, datetime]  # pod id -> when it was first seen without a live row
    in_flight: frozenset[str]  # worker and pod ids on which an action is being executed
    bringing_up: frozenset[str]  # worker ids whose bring-up is under way in this process
    last_spawn_at: Mapping[str, datetime]  # pool -> the newest intent, ended ones included
    paused: Mapping[str, Pause]  # by pool; "*" is every pool
    ended: tuple[EndedBringUp, ...] = ()  # bring-ups of the last day, at most 100 a pool, newest last
    proven: frozenset[str] = frozenset()  # releases that were promoted in the last 30 days
    spent: Spent = Spent(0, 0, 0)
    avoid: Mapping[str, datetime] = field(default_factory=dict)  # "machine:<id>", "place:<center>|<GPU>" -> until when
    prices: Mapping[str, float] = field(default_factory=dict)  # "<GPU>|<cloud>" -> $/h of one GPU; only with a budget
    volumes: Mapping[str, Volume] = field(default_factory=dict)  # by name; what was not asked yet is missing
    knocked: Mapping[str, datetime] = field(default_factory=dict)  # worker -> when we last gave it no answer: it lives
    unlisted: str | None = None  # why there is no list of pods, or none newer than `pods`
    database_id: str | None = None  # which database these rows are of
    store_away: StoreAway | None = None  # nobody claims, and no pod starts
    strangers: tuple[Pod, ...] = ()  # of a fleet of this name in another database; not among `pods`
    exited: Mapping[str, Absence] = field(default_factory=dict)  # pod id -> for how long lists show it as ended

    def pause_of(self, pool: str) -> Pause | None:
        """The pause that holds for a pool."""
        return self.paused.get("*") or self.paused.get(pool)
