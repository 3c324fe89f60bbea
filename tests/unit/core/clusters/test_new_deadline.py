"""A cluster that begins always has a deadline, also after an operator has scaled it or a user has removed it."""

import pytest

from orchestrator.core.cluster_states import ClusterStatus
from orchestrator.core.clusters import actions as act
from orchestrator.core.clusters.plan import plan
from orchestrator.core.clusters.view import ClusterPolicy, ClusterView
from tests.unit.core.clusters import rows

POLICY = ClusterPolicy(lambda _: "sha", allocate_s=1_800, deploy_s=900)


@pytest.mark.parametrize(
    ("status", "members", "deadline_s"),
    [
        (ClusterStatus.ALLOCATING, 1, 1_800),
        (ClusterStatus.DEPLOYING, 4, 900),
        (ClusterStatus.DEPLOYING, 2, 2_700),  # two are to be rented first
    ],
)
def test_a_cluster_without_a_deadline_gets_one(status: ClusterStatus, members: int, deadline_s: float) -> None:
    there = tuple(rows.member(number) for number in range(1, members + 1))
    row = rows.cluster(status=status, min_nodes=4, members=there, deadline_at=None)
    remarks = [one for one in plan(ClusterView(row, rows.NOW), POLICY) if isinstance(one, act.Remark)]
    assert [one.deadline_s for one in remarks] == [deadline_s]


def test_a_cluster_with_a_deadline_keeps_it() -> None:
    row = rows.cluster(status=ClusterStatus.ALLOCATING, min_nodes=4, deadline_at=rows.SOON)
    assert not [one for one in plan(ClusterView(row, rows.NOW), POLICY) if isinstance(one, act.Remark)]
