"""How operations end. The rows alone decide, so another leader continues where the last one stopped.

    add             succeeded when the member is ready; failed when it is lost before
    drain           succeeded when the member is removed; failed when it is lost before
    bootstrap_ssh   succeeded when its node tasks are completed; failed with the first one that failed
    reconcile       the call itself says how it ended (leader_jobs/clusters.py)

An operation that does not end expires at its deadline.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.core.cluster_states import (
    OPEN_NODE_TASK,
    OPEN_OPERATION,
    MemberStatus,
    NodeTaskStatus,
    OperationKind,
    OperationStatus,
)
from orchestrator.core.clusters.rows import ClusterRow, MemberOperation, MemberRow


@dataclass(frozen=True, slots=True)
class OperationEnd:
    """The end of an operation. `error` is None if it succeeded."""

    operation: MemberOperation
    error: str | None


def outcomes(row: ClusterRow) -> Iterator[OperationEnd]:
    """Return the operations of a cluster that have ended, as its rows show."""
    members = {member.worker_id: member for member in row.members}
    for operation in row.operations:
        if operation.status not in OPEN_OPERATION:
            continue
        if operation.kind is OperationKind.BOOTSTRAP_SSH:
            yield from _of_node_tasks(row, operation)
        elif (member := members.get(operation.worker_id or "")) is not None:
            yield from _of_member(operation, member)


def _of_node_tasks(row: ClusterRow, operation: MemberOperation) -> Iterator[OperationEnd]:
    tasks = [task for task in row.node_tasks if task.operation_id == operation.id]
    if operation.status is OperationStatus.ACCEPTED or not tasks or any(one.status in OPEN_NODE_TASK for one in tasks):
        return
    unfinished = [one for one in tasks if one.status is not NodeTaskStatus.COMPLETED]
    error = f"its node task {unfinished[0].status}: {unfinished[0].error}" if unfinished else None
    yield OperationEnd(operation, error)


def _of_member(operation: MemberOperation, member: MemberRow) -> Iterator[OperationEnd]:
    is_over = member.status in (MemberStatus.REMOVED, MemberStatus.FAILED)
    if operation.kind is OperationKind.ADD:
        if member.status is MemberStatus.READY:
            yield OperationEnd(operation, None)
        elif is_over:
            yield OperationEnd(operation, f"the member is {member.status}: {member.reason}")
    elif operation.kind is OperationKind.DRAIN and is_over and operation.status is not OperationStatus.ACCEPTED:
        lost = member.status is MemberStatus.FAILED
        yield OperationEnd(operation, f"the member was lost: {member.reason}" if lost else None)
