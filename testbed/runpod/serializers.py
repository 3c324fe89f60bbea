"""The JSON of RunPod's API for pods, offers and volumes, made from the true state."""

import base64
import binascii
import time
from collections.abc import Sequence
from typing import Any

from testbed.runpod.catalog import DATA_CENTERS, GPU_TYPES, DataCenter, NetworkVolume
from testbed.runpod.state import ApiProblem, PodRecord, World, isoformat

PUBLIC_IP = "127.0.0.1"
ACTIONS = {
    "PROVISIONING": ["terminate"],
    "STARTING": ["stop", "terminate"],
    "RUNNING": ["stop", "restart", "terminate"],
    "EXITED": ["start", "terminate"],
    "ERROR": ["terminate"],
    "TERMINATED": [],
}
ENDED = frozenset({"EXITED", "TERMINATED"})  # nothing is charged by the hour for them, so that they cost 0
SSH_PORT = 22
CUDA_VERSION = "12.8"  # of every machine
HIGH_STOCK, MEDIUM_STOCK = 10, 3  # GPUs
MAX_GPUS = 8  # of one pod


def pod_json(pod: PodRecord, *, flicker: bool = False) -> dict[str, Any]:
    """The Pod object of REST v2; `flicker` hides the runtime for this one read."""
    gpu = GPU_TYPES[pod.gpu_type]
    assigned = pod.assigned_at is not None
    direct = _endpoint(PUBLIC_IP, pod.ssh_port or 0, "root") if pod.ssh_visible else None
    proxy = _endpoint("ssh.runpod.io", 22, f"{pod.id}-{pod.machine_id[:8]}") if assigned else None
    return {
        "id": pod.id,
        "name": pod.name,
        "status": pod.status,
        "actions": ACTIONS[pod.status],
        "image": pod.request.image or "",
        "args": pod.request.args or "",
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
        "registry": pod.request.registry,
        "template": pod.request.templateId,
        "locked": False,
        "globalNetworking": _networking(pod),
        **({"cluster": pod.cluster} if pod.cluster else {}),
        "cloud": pod.cloud,
        "dataCenterId": pod.data_center if assigned else None,
        "cudaVersion": CUDA_VERSION if assigned else None,
        "ssh": {"proxy": proxy, "direct": direct},
        "cost": 0.0 if pod.status in ENDED else pod.usd_per_hour,
        "runtime": None if flicker else _runtime(pod),
        # Undocumented: on loopback the address of SSH cannot tell machines apart.
        **({"machineId": pod.machine_id} if pod.fault("same_machine") else {}),
        "createdAt": isoformat(pod.created_at),
        "startedAt": isoformat(pod.started_at),
    }


def _networking(pod: PodRecord) -> dict[str, Any]:
    """Whether the pod has an address on the global network, and which; the name is other pods' way to it."""
    if pod.fabric_ip is None:
        return {"enabled": False}
    return {"enabled": True, "ip": pod.fabric_ip, "internalDns": f"{pod.id}.runpod.internal"}


def _endpoint(host: str, port: int, username: str) -> dict[str, Any]:
    """One way to a pod's SSH."""
    elsewhere = "" if port == SSH_PORT else f" -p {port}"
    return {"host": host, "port": port, "username": username, "command": f"ssh {username}@{host}{elsewhere}"}


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
            raise ApiProblem(400, "invalid cursor") from error
        items = [pod for pod in items if pod.order < last]
    chosen, rest = list(items[:limit]), items[limit:]
    following = base64.urlsafe_b64encode(str(chosen[-1].order).encode()).decode() if rest else None
    return chosen, {"nextCursor": following, "hasNextPage": bool(rest)}


def gpu_json(world: World, gpu_type: str, *, count: int, availability: bool, cloud: str = "SECURE") -> dict[str, Any]:
    """One GPU type of the catalogue, with what can be rented of it in one cloud when asked for."""
    gpu = GPU_TYPES[gpu_type]
    shown: dict[str, Any] = {
        "id": gpu.id,
        "name": gpu.display_name,
        "pool": None,
        "manufacturer": "NVIDIA",
        "memory": round(gpu.memory_mib / 1024),
        "secure": True,
        "community": True,
        "maxCount": {"secure": MAX_GPUS, "community": MAX_GPUS},
        "price": {"secure": gpu.secure_usd_per_hour, "community": gpu.community_usd_per_hour},
    }
    if availability:
        free = {center: world.stock_of(gpu.id, center, cloud) // count for center in DATA_CENTERS}
        shown["availability"] = _stock(sum(free.values()))
        shown["dataCenters"] = [
            {"id": center, "name": DATA_CENTERS[center].name, "availability": _stock(pods)}
            for center, pods in free.items()
        ]
        shown["cudaVersions"] = [{"version": CUDA_VERSION, "available": sum(free.values()) > 0}]
    return shown


def _stock(pods: int) -> str:
    if pods >= HIGH_STOCK:
        return "HIGH"
    if pods >= MEDIUM_STOCK:
        return "MEDIUM"
    return "LOW" if pods > 0 else "NONE"


def data_center_json(center: DataCenter) -> dict[str, Any]:
    """A data centre."""
    return {
        "id": center.id,
        "name": center.name,
        "region": center.region,
        "globalNetwork": center.global_network,
        "networkVolumeTypes": ["STANDARD"],
        "compliance": [],
    }


def volume_json(volume: NetworkVolume) -> dict[str, Any]:
    """A network volume."""
    place = {"dataCenter": volume.data_center, "type": "STANDARD"}
    return {"id": volume.id, "name": volume.name, "size": volume.size_gb, **place}
