"""Rows of clusters for tests: one of four nodes, its members, operations and node tasks."""

from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrator.core.cluster_states import (
    ClusterStatus,
    MemberRole,
    MemberStatus,
    NodeTaskKind,
    NodeTaskStatus,
    NodeTaskVia,
    OperationKind,
    OperationStatus,
)
from orchestrator.core.clusters.rows import (
    ClusterDemand,
    ClusterRow,
    MemberOperation,
    MemberRow,
    MemberWorker,
    NodeTask,
)
from orchestrator.core.states import Stage, State

NOW = datetime(2026, 11, 25, 22, 0, tzinfo=UTC)
BORN = NOW - timedelta(minutes=5)
SOON = NOW + timedelta(minutes=1)
DETAIL = {"phase": "slurm_ready", "slurmctld_state": "up", "slurmd_state": "idle", "munge_ok": True}


def worker(number: int, **fields: Any) -> MemberWorker:
    """A promoted worker with one GPU at two dollars."""
    given: dict[str, Any] = {
        "id": f"gpu-20261125_22000{number}-0000000{number}", "status": State.ACTIVE, "stage": Stage.PROMOTED,
        "gpu_count": 1, "gpu_type": "NVIDIA H100 80GB HBM3", "data_center": "US-KS-2", "price_usd_per_hour": 2.0,
        "created_at": BORN, "promoted_at": BORN, "last_heartbeat": NOW, "drain_requested_at": None,
        "pod_id": f"pod{number}", "ssh_host": "213.173.110.7", "ssh_port": 12080 + number,
        "nonce": "boot-1", "release": "r1", "cluster": "train",
    }  # fmt: skip
    return MemberWorker(**(given | fields))


def member(number: int, **fields: Any) -> MemberRow:
    """A ready member on that worker."""
    held = worker(number)
    given: dict[str, Any] = {
        "cluster": "train", "worker_id": held.id, "role": MemberRole.WORKER, "status": MemberStatus.READY,
        "node_name": held.id.replace("_", "-"), "index_no": number - 1, "ssh_host": held.ssh_host,
        "ssh_port": held.ssh_port, "fabric_addr": f"10.65.0.{number}", "hostname": f"c0ffee{number}",
        "adapter_detail": DETAIL, "created_at": BORN, "status_since": BORN, "reason": None, "worker": held,
    }  # fmt: skip
    return MemberRow(**(given | fields))


def operation(number: int, **fields: Any) -> MemberOperation:
    """A reconcile of every member."""
    given: dict[str, Any] = {
        "id": number, "cluster": "train", "worker_id": None, "kind": OperationKind.RECONCILE,
        "status": OperationStatus.ACCEPTED, "actor": "cli:operator", "error": None, "evidence": None,
        "created_at": BORN, "status_since": BORN, "deadline_at": SOON,
    }  # fmt: skip
    return MemberOperation(**(given | fields))


def node_task(number: int, **fields: Any) -> NodeTask:
    """The managed key for the agent of the first worker."""
    given: dict[str, Any] = {
        "id": number, "cluster": "train", "worker_id": worker(1).id, "operation_id": 7,
        "kind": NodeTaskKind.AUTHORIZED_KEY, "payload": {}, "via": NodeTaskVia.AGENT, "status": NodeTaskStatus.QUEUED,
        "error": None, "created_at": BORN, "status_since": BORN, "deadline_at": SOON,
    }  # fmt: skip
    return NodeTask(**(given | fields))


def cluster(**fields: Any) -> ClusterRow:
    """A running cluster of four nodes without work."""
    given: dict[str, Any] = {
        "id": "train", "pool": "train", "status": ClusterStatus.RUNNING, "nodes": 4, "min_nodes": 0, "max_nodes": 4,
        "conf_sha": None, "reason": None, "failure_code": None, "waiting_for": None, "deadline_at": None,
        "created_at": BORN, "status_since": BORN, "smoke_at": None, "smoke_evidence": None,
        "delete_requested_at": None, "demand": ClusterDemand(0, 0, 0), "members": (), "unjoined": (),
        "operations": (), "node_tasks": (), "events": (), "cost_usd": 1.32,
    }  # fmt: skip
    return ClusterRow(**(given | fields))
