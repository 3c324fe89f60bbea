"""A node task that waits for an agent is done over SSH once the agent has been silent for a minute."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrator.core.cluster_states import MemberRole, NodeTaskStatus, NodeTaskVia
from orchestrator.core.clusters.actions import ClusterAction, TakeOverKey
from orchestrator.core.clusters.operations import HEARD_S
from orchestrator.core.clusters.plan import plan
from orchestrator.core.clusters.view import ClusterPolicy, ClusterView
from tests.unit.core.clusters.rows import DETAIL, NOW, cluster, member, node_task, worker

POLICY = ClusterPolicy(lambda _: "sha")


def taken(silent_s: float | None, in_flight: frozenset[str] = frozenset(), **task: Any) -> list[ClusterAction]:
    """The node tasks that the plan takes from the agent of the first of two members."""
    heard_at = None if silent_s is None else NOW - timedelta(seconds=silent_s)
    first = member(1, role=MemberRole.CONTROLLER, worker=worker(1, last_heartbeat=heard_at), **task.pop("member", {}))
    row = cluster(nodes=2, members=(first, member(2)), node_tasks=(node_task(1, **task), node_task(2, worker_id="x")))
    return [one for one in plan(ClusterView(row, NOW, in_flight=in_flight), POLICY) if isinstance(one, TakeOverKey)]


@pytest.mark.parametrize("status", [NodeTaskStatus.QUEUED, NodeTaskStatus.DISPATCHED])
def test_a_silent_agent_loses_its_node_task(status: NodeTaskStatus) -> None:
    """Whether it got the task or not; an agent that is heard keeps it."""
    assert taken(HEARD_S + 1, status=status) == taken(None, status=status) == [TakeOverKey(worker(1).id, 1)]
    assert taken(HEARD_S - 1, status=status) == []


@pytest.mark.parametrize(
    "task",
    [
        {"via": NodeTaskVia.SSH},
        {"status": NodeTaskStatus.COMPLETED},
        {"in_flight": frozenset({worker(1).id})},
        {"member": {"adapter_detail": DETAIL | {"unreached_since": NOW.isoformat()}}},
    ],
    ids=["over SSH already", "done", "another action runs", "SSH does not reach the pod either"],
)
def test_a_node_task_that_cannot_be_taken_stays(task: dict[str, Any]) -> None:
    assert taken(HEARD_S + 1, **task) == []


def test_each_of_two_members_is_taken_over_for_itself() -> None:
    """The second one too."""
    silent = NOW - timedelta(seconds=HEARD_S + 1)
    members = [replace(member(n), worker=worker(n, last_heartbeat=silent)) for n in (1, 2)]
    row = cluster(
        nodes=2, members=tuple(members), node_tasks=tuple(node_task(n, worker_id=worker(n).id) for n in (1, 2))
    )
    found = [one for one in plan(ClusterView(row, NOW), POLICY) if isinstance(one, TakeOverKey)]
    assert {one.node_task_id for one in found} == {1, 2}
