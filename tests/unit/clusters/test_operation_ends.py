"""How operations end, by what the rows show."""

import pytest

from orchestrator.clusters.operations import outcomes
from orchestrator.core.cluster_states import MemberStatus, NodeTaskStatus, OperationKind, OperationStatus
from tests.unit.core.clusters import rows

DISPATCHED, OF_ONE = OperationStatus.DISPATCHED, rows.worker(1).id


def ends(kind: OperationKind, status: MemberStatus, operation: OperationStatus = DISPATCHED) -> list[str | None]:
    """The errors of the ends of one operation on one member."""
    asked = rows.operation(1, kind=kind, worker_id=OF_ONE, status=operation)
    member = rows.member(1, status=status, reason="its pod is gone")
    return [one.error for one in outcomes(rows.cluster(members=(member,), operations=(asked,)))]


@pytest.mark.parametrize(
    ("status", "drain", "add"),
    [
        (MemberStatus.PENDING, [], []),
        (MemberStatus.READY, [], [None]),
        (MemberStatus.DRAINING, [], []),
        (MemberStatus.REMOVED, [None], ["the member is removed: its pod is gone"]),
        (MemberStatus.FAILED, ["the member was lost: its pod is gone"], ["the member is failed: its pod is gone"]),
    ],
)
def test_an_operation_on_a_member_ends_as_the_member_does(
    status: MemberStatus, drain: list[str | None], add: list[str | None]
) -> None:
    assert ends(OperationKind.DRAIN, status) == drain
    assert ends(OperationKind.ADD, status) == add
    assert ends(OperationKind.RECONCILE, status) == []  # its call says how it ended


def test_a_drain_that_nobody_has_taken_is_refused_and_has_no_end_of_its_own() -> None:
    assert ends(OperationKind.DRAIN, MemberStatus.FAILED, OperationStatus.ACCEPTED) == []
    assert ends(OperationKind.DRAIN, MemberStatus.REMOVED, OperationStatus.EXPIRED) == []


def test_a_key_is_there_when_every_node_task_has_put_it() -> None:
    def error(*statuses: NodeTaskStatus) -> list[str | None]:
        asked = rows.operation(1, kind=OperationKind.BOOTSTRAP_SSH, worker_id=OF_ONE, status=DISPATCHED)
        given = tuple(rows.node_task(n, operation_id=1, status=one, error="full") for n, one in enumerate(statuses))
        return [one.error for one in outcomes(rows.cluster(operations=(asked,), node_tasks=given))]

    completed = NodeTaskStatus.COMPLETED
    assert error() == error(completed, NodeTaskStatus.DISPATCHED) == []
    assert error(completed, completed) == [None]
    assert error(completed, NodeTaskStatus.FAILED) == ["its node task failed: full"]
    assert error(NodeTaskStatus.EXPIRED) == ["its node task expired: full"]
