"""Private networks in the create call, and pods of clusters that RunPod itself runs."""

from typing import Any

from orchestrator.adapters.runpod_replies import pod
from orchestrator.adapters.runpod_requests import create_body
from orchestrator.core.provider import PodSpec


def spec(**changes: Any) -> PodSpec:
    fields: dict[str, Any] = {
        "name": "gpu-1", "fleet_id": "prod", "image": "image", "gpu_type": "NVIDIA H100", "gpu_count": 1,
        "cloud": "SECURE", "data_center": "EU-RO-1", "disk_gb": 50, "min_memory_gb": 32, "min_vcpu": 8,
        "ports": ("22/tcp",), "public_key": "key", "env": {}, "volume_id": None, "volume_mount_path": "/workspace",
    }  # fmt: skip
    return PodSpec(**fields | changes)


def test_only_a_pod_of_a_cluster_pool_asks_for_a_private_network() -> None:
    assert create_body(spec(global_networking=True))["globalNetworking"] is True
    assert "globalNetworking" not in create_body(spec())


def test_a_pod_of_runpods_own_cluster_is_never_ours_even_if_its_environment_says_so() -> None:
    """If the record is wrong, a pod of ours is neither deleted nor gone."""
    env = {"ORCHESTRATOR_FLEET_ID": "prod", "ORCHESTRATOR_WORKER_ID": "gpu-1"}
    record = {"id": "abc", "name": "gpu-1", "status": "RUNNING", "env": env}
    ours = pod(record)
    theirs = pod(record | {"cluster": {"id": "cluster_abc123", "rank": 0}})
    assert ours is not None
    assert theirs is not None
    assert (ours.fleet_id, ours.worker_id) == ("prod", "gpu-1")
    assert (theirs.fleet_id, theirs.worker_id, theirs.owner_unknown) == (None, None, True)


def test_an_unreadable_cluster_field_makes_no_pod_of_ours_foreign() -> None:
    env = {"ORCHESTRATOR_FLEET_ID": "prod", "ORCHESTRATOR_WORKER_ID": "gpu-1"}
    odd_ones: tuple[object, ...] = (None, {}, [], "cluster", {"id": 7})
    for odd in odd_ones:
        read = pod({"id": "abc", "name": "gpu-1", "status": "RUNNING", "env": env, "cluster": odd})
        assert read is not None
        assert read.fleet_id == "prod"
