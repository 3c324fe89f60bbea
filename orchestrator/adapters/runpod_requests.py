"""The content of requests to RunPod: what a new pod gets, and who owns it. runpod_replies.py reads the answers."""

from datetime import UTC, datetime
from typing import Any

from orchestrator.adapters.runpod_replies import DATABASE_VARIABLE, FLEET_VARIABLE, WORKER_VARIABLE
from orchestrator.core.provider import PodSpec


def create_body(spec: PodSpec) -> dict[str, Any]:
    """Return the body of a create request. The SDK's create_pod accepts only exact CUDA versions, not a lowest one."""
    ownership = {FLEET_VARIABLE: spec.fleet_id, WORKER_VARIABLE: spec.name}
    if spec.database_id:
        ownership[DATABASE_VARIABLE] = spec.database_id
    gpu: dict[str, Any] = {"id": spec.gpu_type, "count": spec.gpu_count}
    gpu |= {"minRamPerGpu": spec.min_memory_gb, "minVcpuCountPerGpu": spec.min_vcpu}
    if spec.min_cuda:
        gpu["minCudaVersion"] = spec.min_cuda
    body: dict[str, Any] = {
        "name": spec.name,
        "image": spec.image,
        "cloud": spec.cloud,
        "gpu": gpu,
        "disk": spec.disk_gb,
        "ports": list(spec.ports),
        "startSsh": True,
        "env": {**spec.env, "PUBLIC_KEY": spec.public_key, **ownership},
    }
    if spec.registry_id:
        body["registry"] = spec.registry_id
    if spec.global_networking:
        body["globalNetworking"] = True
    if spec.data_center:
        body["dataCenterIds"] = [spec.data_center]
    if spec.volume_id:
        body["mounts"] = {"network": [{"volumeId": spec.volume_id, "path": spec.volume_mount_path}]}
    return body


def rfc3339(moment: datetime) -> str:
    """Return a time as the API takes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
