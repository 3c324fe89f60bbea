"""The control API's part for clusters: faults of the network, the clock and the daemons, and RunPod's own clusters."""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

from testbed.runpod import daemons
from testbed.runpod.api import Core
from testbed.runpod.control import Control, ControlRefused
from testbed.runpod.request_schemas import CreatePodBody, GpuBody
from testbed.runpod.state import ApiProblem, PodRecord
from testbed.services import debian

MAX_MEMBERS = 8
GPU = "NVIDIA H100 80GB HBM3"
ROLES = {"SLURM": ("SLURM_CONTROLLER", "SLURM_COMPUTE"), "RAY": ("RAY_HEAD", "RAY_WORKER")}
TYPES = (*ROLES, "TRAINING", "APPLICATION")


def _pod(core: Core, pod_id: str) -> PodRecord:
    pod = core.world.pods.get(pod_id)
    if pod is None or pod.gone:
        message = f"no such pod: {pod_id}"
        raise ControlRefused(message)
    return pod


async def cut_fabric(core: Core, body: Mapping[str, Any], path: Mapping[str, str]) -> Any:
    """Cut the global network between a pod and others, in both directions: {"from": [pod ids]}; an empty list heals.

    It holds for new connections of the pods' own processes; SSH does not use this network.
    """
    pod, others = _pod(core, path["id"]), [_pod(core, other) for other in body.get("from", [])]
    if without := [one.id for one in (pod, *others) if one.fabric_ip is None]:
        message = f"not on the global network: {', '.join(without)}"
        raise ControlRefused(message)
    if not core.host.fabric.cut(pod, others):
        message = "a line can be cut only on a machine with a C compiler; fix: apt-get install gcc libc6-dev"
        raise ControlRefused(message)
    return {"id": pod.id, "from": [other.id for other in others]}


async def set_clock(core: Core, body: Mapping[str, Any], path: Mapping[str, str]) -> Any:
    """Move the clock of a pod's daemons and `date`: {"seconds"}; setting fake_clocks must be on when it boots."""
    pod = _pod(core, path["id"])
    if not (pod.home.parent / "clock").exists() or debian.faketime() is None:
        message = "the pod's daemons have the machine's clock; fix: .ci/debian faketime, and the setting fake_clocks"
        raise ControlRefused(message)
    seconds = int(body.get("seconds", 0))
    daemons.set_clock(pod, seconds)
    return {"id": pod.id, "seconds": seconds}


async def kill_daemons(core: Core, body: Mapping[str, Any], path: Mapping[str, str]) -> Any:
    """SIGKILL daemons of a pod's Slurm: {"names": [...]}, all of them by default. Answers when they are gone."""
    pod, names = _pod(core, path["id"]), body.get("names", list(daemons.DAEMONS))
    if unknown := sorted(set(names) - set(daemons.DAEMONS)):
        message = f"unknown daemons: {', '.join(unknown)}; known: {', '.join(daemons.DAEMONS)}"
        raise ControlRefused(message)
    return {"id": pod.id, "killed": await asyncio.to_thread(daemons.kill, pod, names)}


async def change_key(core: Core, body: Mapping[str, Any], path: Mapping[str, str]) -> Any:
    """Give a pod's munge another key than its cluster's, and restart it. Answers when it runs again."""
    del body
    pod = _pod(core, path["id"])
    return {"id": pod.id, "restarted": await asyncio.to_thread(daemons.change_key, pod)}


async def create_cluster(core: Core, body: Mapping[str, Any], path: Mapping[str, str]) -> Any:
    """Make one of RunPod's own clusters, as somebody in the console would: {"name", "type", "pods", "gpu_type"}.

    Its members are in the pod list only with includeClusterPods, and cannot be changed by the pods' operations.
    """
    del path
    kind, count = body.get("type", "SLURM"), int(body.get("pods", 2))
    if kind not in TYPES or not 1 <= count <= MAX_MEMBERS:
        message = f"type must be one of {', '.join(TYPES)}, and pods from 1 to {MAX_MEMBERS}"
        raise ControlRefused(message)
    name, cluster = body.get("name", "cluster"), f"cluster_{secrets.token_hex(6)}"
    made: list[PodRecord] = []
    for rank in range(count):
        gpu = GpuBody(id=body.get("gpu_type", GPU), count=1)
        try:
            pod = core.world.create(CreatePodBody(name=f"{name}-{rank}", image="runpod/slurm", gpu=gpu), ())
        except ApiProblem as error:
            raise ControlRefused(error.detail) from error
        role = {"role": ROLES[kind][rank > 0]} if kind in ROLES else {}
        pod.cluster = {"id": cluster, "rank": rank, **role, "ip": f"10.65.0.{rank + 2}"}
        core.host.start(pod)
        made.append(pod)
    return {"id": cluster, "pods": [pod.id for pod in made]}


async def delete_cluster(core: Core, body: Mapping[str, Any], path: Mapping[str, str]) -> Any:
    """Delete one of RunPod's own clusters with its members."""
    del body
    members = [pod for pod in core.world.live() if pod.cluster and pod.cluster["id"] == path["id"]]
    for pod in members:
        core.end_pod(pod)
    return {"id": path["id"], "pods": [pod.id for pod in members]}


CONTROLS: tuple[tuple[str, str, Control], ...] = (
    ("POST", "/pods/{id}/fabric", cut_fabric),
    ("POST", "/pods/{id}/clock", set_clock),
    ("POST", "/pods/{id}/daemons/kill", kill_daemons),
    ("POST", "/pods/{id}/munge-key", change_key),
    ("POST", "/clusters", create_cluster),
    ("DELETE", "/clusters/{id}", delete_cluster),
)
