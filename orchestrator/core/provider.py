"""What the provider has, offers and is asked for: pods, offers, volumes."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class PodStatus(StrEnum):
    """RunPod's REST v2 `status`."""

    PROVISIONING = "PROVISIONING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    EXITED = "EXITED"
    ERROR = "ERROR"
    TERMINATED = "TERMINATED"
    UNKNOWN = "UNKNOWN"  # none of these: the pod exists, and its state is unknown


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod in the provider's list."""

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
    machine_id: str | None  # the provider's host, or the public SSH address if the provider names no host
    price_usd_per_hour: float | None
    created_at: datetime | None
    database_id: str | None = None  # the owner: env ORCHESTRATOR_DATABASE_ID; None: an earlier release created it
    ssh_user: str | None = None  # the SSH user; None: root
    owner_unknown: bool = False  # its env is unreadable: it may be ours, so nothing is done to it

    def is_of(self, fleet_id: str, database_id: str | None) -> bool:
        """Whether the pod belongs to this fleet, and not to a fleet of the same name in another database."""
        return self.fleet_id == fleet_id and self.database_id in (None, database_id)

    def is_foreign(self, fleet_id: str, database_id: str | None) -> bool:
        """Whether the pod belongs to a fleet of this name in another database."""
        return self.fleet_id == fleet_id and not self.is_of(fleet_id, database_id)


@dataclass(frozen=True, slots=True)
class Offer:
    """One GPU type in one data centre (None: any) of one cloud."""

    gpu_type: str
    data_center: str | None
    cloud: str

    @property
    def key(self) -> str:
        """The offer's name in the `offers` table and in decisions."""
        return f"{self.gpu_type}|{self.data_center or '*'}|{self.cloud}"


@dataclass(frozen=True, slots=True)
class OfferState:
    """The stored state of an offer."""

    key: str
    cooldown_until: datetime | None
    refusals: int  # in a row
    last_refusal: datetime | None
    last_success: datetime | None
    probe_budget: int | None = None  # create calls that may run at once; None: it was never refused


@dataclass(frozen=True, slots=True)
class PodSpec:
    """The content of a create call."""

    name: str  # the worker id: unique, so that the pod of a lost reply can be found by name
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
    env: Mapping[str, str]  # every reader of the pod can see it: no secret except the bootstrap nonce
    volume_id: str | None
    volume_mount_path: str
    database_id: str | None = None  # the owner
    min_cuda: str | None = None  # "12.4": the lowest CUDA version that the machine's driver must support
    registry_id: str | None = None  # of the provider's credentials for a private image
    global_networking: bool = False  # a private address that other pods of the account reach


@dataclass(frozen=True, slots=True)
class Volume:
    """The provider's answer about a network volume."""

    data_center: str | None
    problem: str | None  # why it cannot be used


def short_gpu(gpu_type: str) -> str:
    """Return a GPU type as people name it: `RTX 4090`."""
    return gpu_type.removeprefix("NVIDIA ").removeprefix("GeForce ")


def place_of(key: str) -> str:
    """Return the key of an offer in words: `RTX 4090, any data centre, secure cloud`."""
    gpu, _, rest = key.partition("|")
    center, _, cloud = rest.partition("|")
    if not cloud:  # another program wrote it
        return key
    return f"{short_gpu(gpu)}, {'any data centre' if center in {'*', ''} else center}, {cloud.lower()} cloud"
