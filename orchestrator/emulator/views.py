"""What the API says of the truth: RunPod's JSON for pods, offers and volumes."""

import base64
import binascii
import time
from collections.abc import Sequence
from typing import Any

from orchestrator.emulator.catalog import CLOUDS, DATA_CENTERS, GPU_TYPES, NetworkVolume
from orchestrator.emulator.world import PodRecord, Problem, World, isoformat

PUBLIC_IP = "127.0.0.1"
ACTIONS = {
    "PROVISIONING": ["terminate"],
    "STARTING": ["stop", "terminate"],
    "RUNNING": ["stop", "restart", "terminate"],
    "EXITED": ["start", "terminate"],
    "ERROR": ["terminate"],
    "TERMINATED": [],
}
HIGH_STOCK, MEDIUM_STOCK = 10, 3  # GPUs


def pod_json(pod: PodRecord, *, flicker: bool = False) -> dict[str, Any]:
    """The Pod object of REST v2; `flicker` hides the runtime for this one read."""
    gpu = GPU_TYPES[pod.gpu_type]
    direct = {"host": PUBLIC_IP, "port": pod.ssh_port, "username": "root"} if pod.ssh_visible else None
    proxy = {"host": "ssh.runpod.io", "port": 22, "username": f"{pod.id}-{pod.machine_id[:8]}"}
    return {
        "id": pod.id,
        "name": pod.name,
        "status": pod.status,
        "actions": ACTIONS[pod.status],
        "image": pod.request.image,
        "disk": pod.request.disk,
        "ports": pod.request.ports,
        "env": pod.env,
        "mounts": pod.request.mounts.model_dump(exclude_none=True, exclude_defaults=True),
        "gpu": {
            "id": pod.gpu_type,
            "count": pod.gpu_count,
            "vcpuCount": gpu.vcpu_per_gpu * pod.gpu_count,
            "memory": gpu.ram_gb_per_gpu * pod.gpu_count,
        },
        "cloud": pod.cloud,
        "dataCenterId": pod.data_center if pod.assigned_at is not None else None,
        "cudaVersion": "12.8" if pod.assigned_at is not None else None,
        "ssh": {"proxy": proxy, "direct": direct},
        "cost": pod.usd_per_hour,
        "runtime": None if flicker else _runtime(pod),
        **({"machineId": pod.machine_id} if pod.fault("same_machine") else {}),
        "createdAt": isoformat(pod.created_at),
        "startedAt": isoformat(pod.started_at),
    }


def _runtime(pod: PodRecord) -> dict[str, Any] | None:
    if pod.status != "RUNNING" or pod.runtime_null or pod.started_at is None:
        return None
    ports = [{"private": 22, "public": pod.ssh_port, "type": "tcp", "ip": PUBLIC_IP}] if pod.ssh_visible else []
    gpus = 0 if pod.fault("zero_gpus") else pod.gpu_count
    return {
        "uptime": int(time.time() - pod.started_at),
        "gpus": [{"util": 0, "memoryUtil": 0} for _ in range(gpus)],
        "ports": ports,
    }


def page(items: Sequence[PodRecord], cursor: str | None, limit: int) -> tuple[list[PodRecord], dict[str, Any]]:
    """One page of pods, newest first, and its `pagination`; a cursor names the last pod of the page before."""
    if cursor is not None:
        try:
            last = int(base64.urlsafe_b64decode(cursor.encode()).decode())
        except (ValueError, binascii.Error) as error:
            raise Problem(400, "invalid cursor") from error
        items = [pod for pod in items if pod.order < last]
    chosen, rest = list(items[:limit]), items[limit:]
    following = base64.urlsafe_b64encode(str(chosen[-1].order).encode()).decode() if rest else None
    return chosen, {"nextCursor": following, "hasNextPage": bool(rest)}


def gpu_json(world: World, gpu_type: str, *, count: int, availability: bool) -> dict[str, Any]:
    """One GPU type of the catalogue, with what can be rented of it when asked for."""
    gpu = GPU_TYPES[gpu_type]
    shown: dict[str, Any] = {
        "id": gpu.id,
        "displayName": gpu.display_name,
        "memory": round(gpu.memory_mib / 1024),
        "secureCloud": True,
        "communityCloud": True,
        "price": {"secure": gpu.secure_usd_per_hour, "community": gpu.community_usd_per_hour},
    }
    if availability:
        shown["availability"] = [
            {
                "dataCenterId": center,
                "cloud": cloud,
                "stockStatus": _stock(world.stock_of(gpu.id, center, cloud) // count),
            }
            for center in DATA_CENTERS
            for cloud in CLOUDS
        ]
    return shown


def _stock(pods: int) -> str:
    if pods >= HIGH_STOCK:
        return "HIGH"
    if pods >= MEDIUM_STOCK:
        return "MEDIUM"
    return "LOW" if pods > 0 else "NONE"


def volume_json(volume: NetworkVolume) -> dict[str, Any]:
    """A network volume."""
    return {"id": volume.id, "name": volume.name, "size": volume.size_gb, "dataCenterId": volume.data_center}
