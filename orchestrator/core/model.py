"""What the planner looks at: frozen values, no behaviour beyond what can be read off them.

All datetimes are timezone-aware UTC. Suffixes are units: `_s` seconds, `_usd` US dollars, `_gb` gigabytes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from orchestrator.core.states import ExitCause, FailureCode, Stage, State, WaitingOn

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")  # worker ids and pod names; always with fullmatch


class PodStatus(StrEnum):
    """RunPod's REST v2 `status`."""

    PROVISIONING = "PROVISIONING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    EXITED = "EXITED"
    ERROR = "ERROR"
    TERMINATED = "TERMINATED"


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
    gpu_count: int
    data_center: str | None
    machine_id: str | None
    price_usd_per_hour: float | None
    created_at: datetime | None


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
    env: Mapping[str, str]  # nothing secret: the provider shows it to whoever may read the pod
    volume_id: str | None
    volume_mount_path: str


@dataclass(frozen=True, slots=True)
class Demand:
    """The task queue of one pool, counted."""

    pool: str
    claimable: int
    running: int
    blocked: Mapping[str, int]  # cause (dependencies, scheduled, paused) -> tasks; never scales anything
    oldest_claimable_at: datetime | None


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
    metadata: Mapping[str, Any] = field(default_factory=dict)
    log_bytes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # launch -> stream -> size last heard of
    machine_id: str | None = None  # the provider's host, as far as it tells


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


@dataclass(frozen=True, slots=True)
class Policy:
    """Every number the planner needs; made from the environment by settings.py."""

    fleet_id: str
    pools: tuple[Pool, ...]
    spawning_timeout_s: float  # hard cap on a whole climb
    spawning_grace_s: float  # after a spawn, how long spawning workers are not cancelled for want of work
    scale_down_grace_s: float  # after a scale-up, how long nothing is scaled down for overcapacity
    drain_grace_s: float  # GRACEFUL_SHUTDOWN_TIMEOUT_SEC
    flush_deadline_s: float = 60
    heartbeat_timeout_s: float = 60
    task_stuck_s: float = 1200
    orphan_grace_s: float = 90
    absence_age_s: float = 10  # a pod must be missing from complete lists for this long before it counts as gone
    delete_retry_s: float = 10
    public_key: str = ""


@dataclass(frozen=True, slots=True)
class Absence:
    """How long complete lists have not shown a pod."""

    lists: int
    since: datetime


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One observation: the provider's complete list and the database's half, taken one after the other."""

    now: datetime  # the database's clock
    steady_since: datetime  # since when this orchestrator leads and observes without a gap: silence counts from here
    pods: tuple[Pod, ...] | None  # None: the provider gave no complete list, so nothing is known about pods
    workers: tuple[Worker, ...]  # live rows only, sorted by id
    demand: tuple[Demand, ...]
    expired_leases: int  # running tasks whose lease is over
    offers: Mapping[str, OfferState]
    absent: Mapping[str, Absence]  # pod id or worker id -> absence from complete lists
    orphan_since: Mapping[str, datetime]  # pod id -> when it was first seen without a live row
    in_flight: frozenset[str]  # worker and pod ids on which an action is being executed
    climbing: frozenset[str]  # worker ids whose bring-up is under way in this process
    last_spawn_at: Mapping[str, datetime]  # pool -> the newest intent, ended ones included
    paused: str | None  # the reason, when an operator paused spawning
