"""How operations run and end. The rows alone decide, so another leader continues where the last one stopped.

    add             running while the member is configured; succeeded when it is ready; failed when it is lost before
    drain           running while the node drains; succeeded when the member is removed; failed when it is lost before
    bootstrap_ssh   running while a node task is open; succeeded when all are completed; failed with the first failure
    reconcile       dispatched until the call itself says how it ended (leader_jobs/clusters.py)

The evidence says on which node, or by which node tasks.

An operation that does not end expires at its deadline.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.core.cluster_states import (
    OPEN_NODE_TASK,
    OPEN_OPERATION,
    MemberStatus,
    NodeTaskStatus,
    OperationKind,
    OperationStatus,
)
from orchestrator.core.clusters.rows import ClusterRow, MemberOperation, MemberRow, NodeTask


@dataclass(frozen=True, slots=True)
class OperationStep:
    """What the rows show of an operation: it runs, or it has ended. `error` is None unless it failed."""

    operation: MemberOperation
    error: str | None
    evidence: Mapping[str, Any]


def begun(row: ClusterRow) -> Iterator[OperationStep]:
    """Return the operations that run, as the rows show, and that are not recorded as running yet."""
    members = {member.worker_id: member for member in row.members}
    for operation in row.operations:
        status, member = operation.status, members.get(operation.worker_id or "")
        is_taken = status is OperationStatus.DISPATCHED
        if operation.kind is OperationKind.BOOTSTRAP_SSH and is_taken:
            tasks = _node_tasks(row, operation)
            if any(one.status in OPEN_NODE_TASK for one in tasks):
                yield OperationStep(operation, None, _keyed(tasks))
        elif member is None:
            continue
        elif operation.kind is OperationKind.ADD and (is_taken or status is OperationStatus.ACCEPTED):
            if member.status is MemberStatus.RECONCILING:
                yield OperationStep(operation, None, {"node": member.node_name})
        elif operation.kind is OperationKind.DRAIN and is_taken and member.status is MemberStatus.DRAINING:
            yield OperationStep(operation, None, {"node": member.node_name})


def outcomes(row: ClusterRow) -> Iterator[OperationStep]:
    """Return the operations of a cluster that have ended, as its rows show."""
    members = {member.worker_id: member for member in row.members}
    for operation in row.operations:
        if operation.status not in OPEN_OPERATION:
            continue
        if operation.kind is OperationKind.BOOTSTRAP_SSH:
            yield from _of_node_tasks(row, operation)
        elif (member := members.get(operation.worker_id or "")) is not None:
            yield from _of_member(operation, member)


def _of_node_tasks(row: ClusterRow, operation: MemberOperation) -> Iterator[OperationStep]:
    tasks = _node_tasks(row, operation)
    if operation.status is OperationStatus.ACCEPTED or not tasks or any(one.status in OPEN_NODE_TASK for one in tasks):
        return
    unfinished = [one for one in tasks if one.status is not NodeTaskStatus.COMPLETED]
    error = f"its node task {unfinished[0].status}: {unfinished[0].error}" if unfinished else None
    yield OperationStep(operation, error, _keyed(tasks))


def _node_tasks(row: ClusterRow, operation: MemberOperation) -> list[NodeTask]:
    return [task for task in row.node_tasks if task.operation_id == operation.id]


def _keyed(tasks: list[NodeTask]) -> Mapping[str, Any]:
    return {"node_tasks": [{"id": one.id, "via": str(one.via)} for one in tasks]}


def _of_member(operation: MemberOperation, member: MemberRow) -> Iterator[OperationStep]:
    is_over, node = member.status in (MemberStatus.REMOVED, MemberStatus.FAILED), {"node": member.node_name}
    if operation.kind is OperationKind.ADD:
        if member.status is MemberStatus.READY:
            yield OperationStep(operation, None, node)
        elif is_over:
            yield OperationStep(operation, f"the member is {member.status}: {member.reason}", node)
    elif operation.kind is OperationKind.DRAIN and is_over and operation.status is not OperationStatus.ACCEPTED:
        lost = member.status is MemberStatus.FAILED
        error = f"the member was lost: {member.reason}" if lost else None
        yield OperationStep(operation, error, node if lost else {**node, "why": member.reason})
