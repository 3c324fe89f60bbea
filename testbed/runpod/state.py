"""The true state: which pods exist, which hold a GPU, and the bill. serializers.py makes the API's JSON of it."""

import random
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testbed.runpod.catalog import (
    CLOUDS,
    DATA_CENTERS,
    GPU_TYPES,
    NETWORK_VOLUMES,
    REGISTRIES,
    NetworkVolume,
    RegistryCredentials,
)
from testbed.runpod.faults import BALANCE_TEXT, CAPACITY_TEXTS, Fault
from testbed.runpod.request_schemas import CreatePodBody

ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
ID_CHARACTERS = 14
SAME_MACHINE = "m-again"  # of the fault same_machine without a detail
DEFAULT_STOCK = 1_000  # GPUs per offer
DEFAULT_BALANCE_USD = 1_000.0
MAX_DISK_GB = 2_000
SECONDS_PER_HOUR = 3_600
NO_GLOBAL_NETWORK = "global networking is not available in data center {center}"
LIVE_STATUSES = ("PROVISIONING", "STARTING", "RUNNING")  # hold a GPU


class ApiProblem(Exception):
    """An answer that is an error: application/problem+json."""

    def __init__(self, status: int, detail: str, errors: Sequence[str] = (), headers: Mapping[str, str] | None = None):
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = list(errors)
        self.headers = dict(headers or {})


@dataclass(slots=True)
class PodRecord:
    """One pod, as it is."""

    id: str
    name: str
    request: CreatePodBody
    env: dict[str, str]
    gpu_type: str
    gpu_count: int
    cloud: str
    data_center: str
    machine_id: str
    usd_per_hour: float
    home: Path
    created_at: float  # epoch seconds, like the other times
    order: int  # of creation; the list is newest first
    faults: tuple[Fault, ...] = ()
    status: str = "PROVISIONING"
    assigned_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    gone: bool = False  # from the API
    ssh_port: int | None = None
    ssh_visible: bool = False
    fabric_ip: str | None = None  # its address on the global network
    cluster: dict[str, Any] | None = None  # its membership in one of RunPod's own clusters
    runtime_null: bool = False
    system_log: list[tuple[float, str]] = field(default_factory=list)
    api_key: str = field(default_factory=lambda: f"rpa_{secrets.token_hex(16)}", repr=False)  # for this pod alone

    def fault(self, kind: str) -> Fault | None:
        """The fault of this kind that the pod was born with."""
        return next((fault for fault in self.faults if fault.kind == kind), None)

    def log(self, line: str) -> None:
        """Write to the pod's system log."""
        self.system_log.append((time.time(), line))

    def billed_s(self, now: float, since: float = 0.0) -> float:
        """Seconds billed between two moments: from the machine's assignment until deletion."""
        if self.assigned_at is None:
            return 0.0
        return max(0.0, min(now, self.ended_at or now) - max(since, self.assigned_at))

    def billed_usd(self, now: float, since: float = 0.0) -> float:
        """Dollars billed between two moments."""
        return self.billed_s(now, since) * self.usd_per_hour / SECONDS_PER_HOUR


def isoformat(moment: float | None) -> str | None:
    """Epoch seconds as RunPod writes them."""
    if moment is None:
        return None
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class World:
    """Pods, stock, prices, volumes and money of one account."""

    def __init__(self, state_dir: Path, *, seed: int) -> None:
        self.state_dir = state_dir
        self.seed = seed
        self.pods: dict[str, PodRecord] = {}
        self.balance_usd = DEFAULT_BALANCE_USD  # before what the pods have cost
        self.stock: dict[tuple[str, str, str], int] = {}  # (GPU type, data centre, cloud) -> GPUs in all
        self.prices: dict[tuple[str, str, str], float] = {}
        self.volumes: list[NetworkVolume] = list(NETWORK_VOLUMES)
        self.registries: list[RegistryCredentials] = list(REGISTRIES)
        self.ssh_keys: list[str] = []
        self._random = random.Random(f"world:{seed}")

    def live(self) -> list[PodRecord]:
        """The pods that the API knows, newest first."""
        return sorted((pod for pod in self.pods.values() if not pod.gone), key=lambda pod: -pod.order)

    def find(self, pod_id: str) -> PodRecord:
        """The pod of that id, or the API's 404."""
        pod = self.pods.get(pod_id)
        if pod is None or pod.gone:
            raise ApiProblem(404, "pod not found")
        return pod

    def stock_of(self, gpu_type: str, data_center: str, cloud: str) -> int:
        """GPUs that can still be rented there."""
        held = sum(
            pod.gpu_count
            for pod in self.pods.values()
            if pod.ended_at is None
            and pod.status in LIVE_STATUSES
            and (pod.gpu_type, pod.data_center, pod.cloud) == (gpu_type, data_center, cloud)
        )
        return self.stock.get((gpu_type, data_center, cloud), DEFAULT_STOCK) - held

    def price_of(self, gpu_type: str, data_center: str, cloud: str) -> float:
        """Dollars per hour of one GPU there."""
        return self.prices.get((gpu_type, data_center, cloud), GPU_TYPES[gpu_type].usd_per_hour(cloud))

    def set_offer(self, offer: Mapping[str, Any]) -> None:
        """Set stock and price of every offer that matches; a missing key matches all."""
        for gpu_type in [offer["gpu_type"]] if offer.get("gpu_type") else list(GPU_TYPES):
            for data_center in [offer["data_center"]] if offer.get("data_center") else list(DATA_CENTERS):
                for cloud in [offer["cloud"]] if offer.get("cloud") else list(CLOUDS):
                    if "stock" in offer:
                        self.stock[gpu_type, data_center, cloud] = int(offer["stock"])
                    if "price_usd_per_hour" in offer:
                        self.prices[gpu_type, data_center, cloud] = float(offer["price_usd_per_hour"])

    def remaining_usd(self, now: float) -> float:
        """The account's balance."""
        return self.balance_usd - sum(pod.billed_usd(now) for pod in self.pods.values())

    def create(self, body: CreatePodBody, faults: Sequence[Fault]) -> PodRecord:
        """Rent a machine for a checked request; Problem if there is none, no money, or no such thing."""
        now = time.time()
        if self.remaining_usd(now) <= 0:
            raise ApiProblem(402, BALANCE_TEXT)
        if body.gpu is None:
            raise ApiProblem(400, CAPACITY_TEXTS[4])  # this account rents no CPU pods
        if body.gpu.id not in GPU_TYPES:
            raise ApiProblem(400, f"gpu type {body.gpu.id!r} not found")
        if body.disk > MAX_DISK_GB:
            raise ApiProblem(400, CAPACITY_TEXTS[1])
        gpu, cloud, data_center = GPU_TYPES[body.gpu.id], *self._place(body)
        if (body.gpu.minRamPerGpu or 0) > gpu.ram_gb_per_gpu or (body.gpu.minVcpuCountPerGpu or 0) > gpu.vcpu_per_gpu:
            raise ApiProblem(400, CAPACITY_TEXTS[2])
        pod_id = "".join(self._random.choices(ID_ALPHABET, k=ID_CHARACTERS))
        machine_id = "".join(self._random.choices(ID_ALPHABET, k=12))
        same = next((fault for fault in faults if fault.kind == "same_machine"), None)
        record = PodRecord(
            id=pod_id,
            name=body.name,
            request=body,
            env=dict(body.env),
            gpu_type=gpu.id,
            gpu_count=body.gpu.count,
            cloud=cloud,
            data_center=data_center,
            machine_id=(same.detail or SAME_MACHINE) if same else machine_id,
            usd_per_hour=self.price_of(gpu.id, data_center, cloud) * body.gpu.count,
            home=self.state_dir / "pods" / pod_id / "home",
            created_at=now,
            order=len(self.pods),
            faults=tuple(faults),
        )
        if self.ssh_keys and "PUBLIC_KEY" not in record.env:
            record.env["PUBLIC_KEY"] = "\n".join(self.ssh_keys)
        self.pods[pod_id] = record
        record.log(f"create container {body.image or body.templateId}")
        return record

    def _place(self, body: CreatePodBody) -> tuple[str, str]:
        """Choose (cloud, data centre) among those asked for that have stock."""
        gpu = body.gpu
        if gpu is None:
            raise ApiProblem(400, CAPACITY_TEXTS[4])
        centers = body.dataCenterIds or list(DATA_CENTERS)
        unknown = [center for center in centers if center not in DATA_CENTERS]
        if unknown:
            raise ApiProblem(400, f"data center {unknown[0]!r} not found")
        if body.registry is not None and body.registry not in {one.id for one in self.registries}:
            raise ApiProblem(400, f"registry {body.registry!r} not found")
        for mount in body.mounts.network:
            volume = next((volume for volume in self.volumes if volume.id == mount.volumeId), None)
            if volume is None:
                raise ApiProblem(400, f"network volume {mount.volumeId!r} not found")
            centers = [center for center in centers if center == volume.data_center]
        if body.globalNetworking and not any(DATA_CENTERS[center].global_network for center in centers):
            raise ApiProblem(400, NO_GLOBAL_NETWORK.format(center=", ".join(centers)))
        centers = [center for center in centers if DATA_CENTERS[center].global_network or not body.globalNetworking]
        for cloud in [body.cloud] if body.cloud else CLOUDS:
            free = [center for center in centers if self.stock_of(gpu.id, center, cloud) >= gpu.count]
            if free:
                return cloud, self._random.choice(free)
        raise ApiProblem(400, CAPACITY_TEXTS[0])

    def end(self, pod: PodRecord, status: str = "TERMINATED") -> None:
        """Take the pod off the API and stop its billing."""
        pod.gone = True
        pod.status = status
        pod.ended_at = pod.ended_at or time.time()

    def ledger(self) -> dict[str, Any]:
        """Return the true state of every pod that ever existed."""
        now = time.time()
        rows = [
            {
                "id": pod.id,
                "name": pod.name,
                "status": pod.status,
                "created_at": isoformat(pod.created_at),
                "assigned_at": isoformat(pod.assigned_at),
                "started_at": isoformat(pod.started_at),
                "ended_at": isoformat(pod.ended_at),
                "seconds": round(pod.billed_s(now), 3),
                "usd": round(pod.billed_usd(now), 6),
                "home": str(pod.home),
                "gpu_type": pod.gpu_type,
                "data_center": pod.data_center,
                "machine_id": pod.machine_id,
                "cluster": pod.cluster and pod.cluster["id"],
            }
            for pod in sorted(self.pods.values(), key=lambda pod: pod.order)
        ]
        return {
            "pods": rows,
            "usd_total": round(sum(pod.billed_usd(now) for pod in self.pods.values()), 6),
            "alive": sum(pod.ended_at is None and pod.cluster is None for pod in self.pods.values()),
            "balance_usd": round(self.remaining_usd(now), 6),
        }
