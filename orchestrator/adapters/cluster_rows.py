"""Decodes the rows of clusters into the dataclasses of core/clusters/rows.py."""

from contextlib import suppress
from typing import Any

from orchestrator.adapters.rows import Row
from orchestrator.core.cluster_states import (
    ClusterStatus,
    ClusterSubject,
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
    ClusterReport,
    ClusterRow,
    Event,
    MemberOperation,
    MemberRow,
    MemberWorker,
    NodeTask,
)
from orchestrator.core.moments import maybe_moment, moment
from orchestrator.core.states import Stage, State


def report_of(row: Row) -> ClusterReport:
    """Decode the answer of fleet_cluster_report."""
    return ClusterReport(moment(row["now"]), tuple(cluster_of(one) for one in row["clusters"]))


def known_clusters(rows: Any) -> tuple[ClusterRow, ...]:
    """Decode the clusters of which a report is to tell; one that cannot be decoded is left out."""
    found = []
    for row in rows if isinstance(rows, list) else ():
        with suppress(KeyError, TypeError, ValueError):
            found.append(cluster_of(row))
    return tuple(found)


def cluster_of(row: Row) -> ClusterRow:
    """Decode one cluster of a report."""
    demand = row["demand"]
    return ClusterRow(
        id=row["id"],
        pool=row["pool"],
        status=ClusterStatus(row["status"]),
        nodes=row["nodes"],
        min_nodes=row["min_nodes"],
        max_nodes=row["max_nodes"],
        conf_sha=row["conf_sha"],
        reason=row["reason"],
        failure_code=row["failure_code"],
        waiting_for=row["waiting_for"],
        deadline_at=maybe_moment(row["deadline_at"]),
        created_at=moment(row["created_at"]),
        status_since=moment(row["status_since"]),
        smoke_at=maybe_moment(row["smoke_at"]),
        smoke_evidence=row["smoke_evidence"],
        delete_requested_at=maybe_moment(row["delete_requested_at"]),
        demand=ClusterDemand(int(demand["tasks"]), int(demand["nodes"]), int(demand["largest"])),
        members=tuple(member_of(one) for one in row["members"]),
        unjoined=tuple(member_worker_of(one) for one in row["unjoined"]),
        operations=tuple(operation_of(one) for one in row["operations"]),
        node_tasks=tuple(node_task_of(one) for one in row["node_tasks"]),
        events=tuple(event_of(one) for one in row["events"]),
        cost_usd=None if row["cost_usd"] is None else float(row["cost_usd"]),
    )


def member_of(row: Row) -> MemberRow:
    """Decode a member, with its worker if the row of that is still there."""
    return MemberRow(
        cluster=row["cluster"],
        worker_id=row["worker_id"],
        role=MemberRole(row["role"]),
        status=MemberStatus(row["status"]),
        node_name=row["node_name"],
        index_no=row["index_no"],
        ssh_host=row["ssh_host"],
        ssh_port=row["ssh_port"],
        fabric_addr=row["fabric_addr"],
        hostname=row["hostname"],
        adapter_detail=row["adapter_detail"],
        created_at=moment(row["created_at"]),
        status_since=moment(row["status_since"]),
        reason=row["reason"],
        worker=member_worker_of(row["worker"]) if row["worker"] else None,
    )


def member_worker_of(row: Row) -> MemberWorker:
    """Decode the worker of a member, or one that has not joined."""
    return MemberWorker(
        id=row["id"],
        status=State(row["status"]),
        stage=Stage(row["stage"]),
        gpu_count=row["gpu_count"],
        gpu_type=row["gpu_type"],
        data_center=row["data_center"],
        price_usd_per_hour=None if row["price_usd_per_hour"] is None else float(row["price_usd_per_hour"]),
        created_at=moment(row["created_at"]),
        promoted_at=maybe_moment(row["promoted_at"]),
        last_heartbeat=maybe_moment(row["last_heartbeat"]),
        drain_requested_at=maybe_moment(row["drain_requested_at"]),
        pod_id=row["pod_id"],
        ssh_host=row["ssh_host"],
        ssh_port=row["ssh_port"],
        nonce=row["nonce"],
        release=row["release"],
        cluster=row["cluster"],
    )


def operation_of(row: Row) -> MemberOperation:
    """Decode an operation."""
    return MemberOperation(
        id=row["id"],
        cluster=row["cluster"],
        worker_id=row["worker_id"],
        kind=OperationKind(row["kind"]),
        status=OperationStatus(row["status"]),
        actor=row["actor"],
        error=row["error"],
        evidence=row["evidence"] if isinstance(row["evidence"], dict) else None,  # a user may write anything there
        created_at=moment(row["created_at"]),
        status_since=moment(row["status_since"]),
        deadline_at=moment(row["deadline_at"]),
    )


def node_task_of(row: Row) -> NodeTask:
    """Decode a node task."""
    return NodeTask(
        id=row["id"],
        cluster=row["cluster"],
        worker_id=row["worker_id"],
        operation_id=row["operation_id"],
        kind=NodeTaskKind(row["kind"]),
        payload=row["payload"],
        via=NodeTaskVia(row["via"]),
        status=NodeTaskStatus(row["status"]),
        error=row["error"],
        created_at=moment(row["created_at"]),
        status_since=moment(row["status_since"]),
        deadline_at=moment(row["deadline_at"]),
    )


def event_of(row: Row) -> Event:
    """Decode an event."""
    return Event(
        id=row["id"],
        cluster=row["cluster"],
        worker_id=row["worker_id"],
        subject=ClusterSubject(row["subject"]),
        from_state=row["from_state"],
        to_state=row["to_state"],
        reason=row["reason"],
        at=moment(row["at"]),
    )
