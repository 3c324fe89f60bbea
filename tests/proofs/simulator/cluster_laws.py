"""Laws about what the rows of a cluster say, and what happened on its pods (clusters.py has the list of laws)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.cluster_states import (
    LIVE_CLUSTER,
    ClusterStatus,
    MemberRole,
    MemberStatus,
    NodeTaskStatus,
    OperationKind,
    OperationStatus,
)
from orchestrator.core.clusters.facts import KEPT

if TYPE_CHECKING:
    from tests.proofs.simulator.cluster_world import ClusterWorld
    from tests.proofs.simulator.slurm_pods import Slurm
    from tests.proofs.simulator.sql.clusters import Row

SETTLED = (ClusterStatus.RUNNING, ClusterStatus.DEGRADED)
WORKING = ("allocated", "draining")  # what slurmctld calls a node with a job


def cluster_changed(world: ClusterWorld, row: Row, before: str | None) -> None:
    """Laws `reason` and `smoke`: a failed cluster says why, and one that runs has run a job."""
    if row["status"] == before:
        return
    if row["status"] == ClusterStatus.FAILED and not (row["reason"] and row["failure_code"]):
        world.broken("reason", f"{row['id']} failed, and says not why")
    if row["status"] == ClusterStatus.RUNNING:
        heads = [m for m in world.rows.live_members(row["id"]) if m["role"] == MemberRole.CONTROLLER]
        if not any(world.rack.pods[m["worker_id"]].smoked for m in heads):
            world.broken("smoke", f"{row['id']} runs, and no smoke job has succeeded from its controller")


def operation_changed(world: ClusterWorld, row: Row, before: str | None) -> None:
    """Law `told`: an operation that succeeded was done, and one that failed says why."""
    if row["status"] == before:
        return
    if row["status"] == OperationStatus.FAILED and not row["error"]:
        world.broken("told", f"{row['kind']} {row['id']} failed, and says not why")
    if row["status"] == OperationStatus.SUCCEEDED and not _was_done(world, row):
        world.broken("told", f"{row['kind']} {row['id']} of {row['worker_id']} succeeded, and was not done")


def _was_done(world: ClusterWorld, row: Row) -> bool:
    member = world.rows.members.get((row["cluster"], row["worker_id"]))
    match row["kind"]:
        case OperationKind.DRAIN:
            return member is not None and member["status"] == MemberStatus.REMOVED
        case OperationKind.RECONCILE:
            written_s = world.rack.pods[row["worker_id"]].written_s
            return written_s is not None and written_s >= world.kernel.now - _age_s(world, row)
        case OperationKind.BOOTSTRAP_SSH:
            tasks = [one for one in world.rows.node_tasks.values() if one["operation_id"] == row["id"]]
            return bool(tasks) and all(one["status"] == NodeTaskStatus.COMPLETED for one in tasks)
    return True


def _age_s(world: ClusterWorld, row: Row) -> float:
    return float((world.kernel.moment() - row["created_at"]).total_seconds())


def controller_kept(world: ClusterWorld, row: Row, before: str | None) -> None:
    """Law `kept`: a cluster that goes on does not drain its controller, whose state would be lost with all jobs."""
    leaves = row["status"] in (MemberStatus.DRAINING, MemberStatus.REMOVED) and before in KEPT
    cluster = world.rows.clusters[row["cluster"]]
    if leaves and row["role"] == MemberRole.CONTROLLER and cluster["status"] in SETTLED:
        world.broken("kept", f"{row['worker_id']} is the controller of {cluster['id']}, and is {row['status']}")


def node_released(world: ClusterWorld, row: Row, why: str) -> None:
    """Law `jobs`: no node is taken from a running job before its bound, although nothing is wrong with the cluster."""
    cluster, pod = world.rows.clusters[row["cluster"]], world.rack.pods[row["worker_id"]]
    if cluster["status"] not in LIVE_CLUSTER - {ClusterStatus.REQUESTED} or not _works(world, cluster, pod):
        return
    deleting = cluster["status"] == ClusterStatus.DELETING
    since, bound_s = cluster["status_since"], world.cluster_policy.delete_s
    if not deleting:
        since, bound_s = row["status_since"], world.cluster_policy.drain_s
    if (world.kernel.moment() - since).total_seconds() < bound_s:
        world.broken("jobs", f"{row['worker_id']}, {row['status']}, has a running job, and {why}")


def _works(world: ClusterWorld, cluster: Row, pod: Slurm) -> bool:
    """Whether the cluster's slurmctld hears the node and has a job on it."""
    heads = [m for m in world.rows.live_members(cluster["id"]) if m["role"] == MemberRole.CONTROLLER]
    for member in heads:
        head = world.rack.pods[member["worker_id"]]
        if head.lives and head.slurmctld is not None:
            return pod.lives and world.rack.states(head).get(pod.name) in WORKING
    return False
