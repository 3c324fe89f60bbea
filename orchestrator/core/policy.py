"""The policy: what the settings and POOLS_FILE say about pools and task types, and all numbers of the planner.

Suffixes are units: `_s` seconds, `_usd` US dollars, `_gb` gigabytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.model import ScaleLimit, Worker
from orchestrator.core.provider import Offer
from orchestrator.core.worker_metadata import metadata

ASKED_DEADLINE_S = 600.0  # for a worker that a person asks for: an orchestrator may have to start first


class PoolKind(StrEnum):
    """What the size of a pool follows."""

    QUEUE = "queue"  # its tasks
    CLUSTER = "cluster"  # the nodes that its Slurm cluster wants; core/clusters/plan.py lets these follow the tasks


@dataclass(frozen=True, slots=True)
class ScheduledSize:
    """Sizes of a pool from each due time of a cron expression on (scheduled_sizes.py). None: as the pool has it."""

    cron: str
    zone: ZoneInfo
    min_active: int | None
    max_active: int | None


@dataclass(frozen=True, slots=True)
class Pool:
    """The policy of one pool."""

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
    handlers: tuple[str, ...] | None = None  # task types for which its workers get handlers; None: all
    env: tuple[str, ...] | None = None  # names of WORKER_ENV that its workers get; None: all
    min_cuda: str | None = None  # "12.4": of the machine's driver; None: the version in the image's name
    kind: PoolKind = PoolKind.QUEUE
    registry_auth: str | None = None  # the provider's name or id of the credentials for a private image
    install_slurm: bool = False  # a cluster pool: whether Slurm may be installed on pods whose image has none
    scheduled_sizes: tuple[ScheduledSize, ...] = ()
    sized_by: tuple[ScheduledSize, datetime] | None = None  # the entry in force, and since when
    scaling_policy: ScalingPolicy = ScalingPolicy.FIXED
    wait_price: float = 1.0  # seconds of one GPU that one second of a task's waiting is worth
    max_wait_s: float | None = None  # after which a task gets a boot in any case; None: four boots
    scale_limit: ScaleLimit | None = None  # an operator's for a time, if it is lower than max_active (scale_limits.py)

    @property
    def most(self) -> int:
        """Return how many workers it may have now."""
        return self.max_active if self.scale_limit is None else min(self.max_active, self.scale_limit.most)


@dataclass(frozen=True, slots=True)
class TaskType:
    """The declaration of one task type; None: the task decides."""

    name: str
    pool: str | None
    timeout_s: float | None
    max_attempts: int | None
    keep_processes: bool | None = None  # what a handler of it starts may outlive the task


@dataclass(frozen=True, slots=True)
class Policy:
    """All numbers that the planner needs. settings.py reads them from the environment."""

    fleet_id: str
    pools: tuple[Pool, ...]
    spawning_timeout_s: float  # hard cap on a whole bring-up
    spawning_grace_s: float  # after a spawn, for how long spawning workers are not cancelled if there is no work
    scale_down_grace_s: float  # after a scale-up, for how long no worker ends because of overcapacity
    drain_grace_s: float  # GRACEFUL_SHUTDOWN_TIMEOUT_SEC
    flush_deadline_s: float = 60
    heartbeat_timeout_s: float = 60
    task_stuck_s: float = 1200
    deadman_s: float = 900  # an agent without an answer for so long ends by itself
    orphan_grace_s: float = 75  # plus up to 30 s until the next list: deleted within 120 s of its first listing
    absence_age_s: float = 10  # a pod must be missing from complete lists for this long before it counts as gone
    delete_retry_s: float = 10
    public_key: str = ""
    code_sha: str = ""  # the hash of the agent, the user code and the handlers' names
    handled: tuple[str, ...] = ()  # the task types for which a new worker has handlers
    task_types: tuple[TaskType, ...] = ()
    own_program: bool = False  # WORKER_START_COMMAND: the programs of these pools claim tasks themselves
    max_failure_rate: float = 0.8  # of ended bring-ups; above it the breaker opens
    failure_window_s: float = 300
    failure_min_bringups: int = 5  # with fewer ended bring-ups, the rate does not count
    # WORKER_MAX_CONSECUTIVE_FAILURES: failures of different tasks, after which a worker claims no more
    max_failures: int = 5
    hourly_budget_usd: float | None = None  # MAX_HOURLY_COST_USD: of all live workers together
    daily_budget_usd: float | None = None  # of a UTC day
    retention_days: Mapping[str, float] = field(default_factory=dict)  # by kind of row; absent: the default of the SQL

    @property
    def heartbeat_s(self) -> float:
        """Return the seconds between two heartbeats of an agent: two may get lost before it counts as silent."""
        return self.heartbeat_timeout_s / 3

    def release(self, pool: Pool) -> str:
        """Return the release that a new worker of the pool would run: image@code."""
        return f"{pool.image}@{self.code_sha}"

    def asked_intent(self, worker_id: str, pool: Pool) -> dict[str, Any]:
        """Return the row of a worker that a person asks for. Its bring-up is not cancelled if there is no work."""
        return {
            "id": worker_id,
            "pool": pool.name,
            "gpu_type": None,  # the leader takes the first offer that has capacity
            "gpu_count": pool.gpu_count,
            "data_center": None,
            "reserved_usd": 0,
            "heartbeat_s": self.heartbeat_s,
            "lease_s": self.heartbeat_timeout_s,
            "own_program": self.own_program,
            "deadline_s": ASKED_DEADLINE_S,
            "actor": "operator",
            "reason": "asked for by the operator",
            "metadata": metadata(asked_for="operator"),
        }

    def succeeds(self, pool: Pool, worker: Worker) -> bool:
        """Whether this worker of an earlier release returned a task for which a new worker has a handler."""
        return worker.release != self.release(pool) and worker.metadata.lacks in self.handled
