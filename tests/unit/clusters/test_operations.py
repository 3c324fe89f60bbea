"""How operations run and end, as the rows of their members and node tasks show."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.clusters.operations import begun, outcomes
from orchestrator.core.cluster_states import MemberStatus, NodeTaskStatus, OperationKind, OperationStatus
from orchestrator.core.clusters.rows import ClusterRow
from tests.unit.core.clusters.rows import cluster, member, node_task, operation

ADD, DRAIN, KEY = OperationKind.ADD, OperationKind.DRAIN, OperationKind.BOOTSTRAP_SSH
ACCEPTED, DISPATCHED, RUNNING = OperationStatus.ACCEPTED, OperationStatus.DISPATCHED, OperationStatus.RUNNING
NODE = member(1).node_name


def seen(kind: OperationKind, status: OperationStatus, member_status: MemberStatus, **fields: Any) -> ClusterRow:
    """A cluster with one operation on one member."""
    one = replace(member(1), status=member_status, reason="no job runs on its node")
    asked = operation(7, kind=kind, status=status, worker_id=one.worker_id)
    return cluster(members=(one,), operations=(asked,), **fields)


@pytest.mark.parametrize(
    ("kind", "status", "member_status", "runs"),
    [
        (ADD, ACCEPTED, MemberStatus.PENDING, False),
        (ADD, ACCEPTED, MemberStatus.RECONCILING, True),
        (ADD, RUNNING, MemberStatus.RECONCILING, False),  # it is recorded already
        (DRAIN, ACCEPTED, MemberStatus.DRAINING, False),  # somebody else drains it: the request is refused
        (DRAIN, DISPATCHED, MemberStatus.READY, False),
        (DRAIN, DISPATCHED, MemberStatus.DRAINING, True),
        (OperationKind.RECONCILE, DISPATCHED, MemberStatus.READY, False),  # the call itself says how it ended
    ],
)
def test_an_operation_runs_once_its_member_shows_it(
    kind: OperationKind, status: OperationStatus, member_status: MemberStatus, runs: bool
) -> None:
    found = [(one.operation.id, dict(one.evidence)) for one in begun(seen(kind, status, member_status))]
    assert found == ([(7, {"node": NODE})] if runs else [])


def test_a_key_is_on_its_way_while_its_node_task_is_open() -> None:
    row = seen(KEY, DISPATCHED, MemberStatus.READY, node_tasks=(node_task(3),))
    assert [dict(one.evidence) for one in begun(row)] == [{"node_tasks": [{"id": 3, "via": "agent"}]}]
    assert list(begun(replace(row, node_tasks=()))) == []
    assert list(outcomes(row)) == []


@pytest.mark.parametrize("status", [DISPATCHED, RUNNING])
def test_the_end_of_an_operation_has_its_evidence(status: OperationStatus) -> None:
    (added,) = outcomes(seen(ADD, status, MemberStatus.READY))
    assert (added.error, added.evidence) == (None, {"node": NODE})
    (drained,) = outcomes(seen(DRAIN, status, MemberStatus.REMOVED))
    assert (drained.error, drained.evidence) == (None, {"node": NODE, "why": "no job runs on its node"})
    done = node_task(3, status=NodeTaskStatus.COMPLETED)
    (keyed,) = outcomes(seen(KEY, status, MemberStatus.READY, node_tasks=(done,)))
    assert (keyed.error, keyed.evidence) == (None, {"node_tasks": [{"id": 3, "via": "agent"}]})
