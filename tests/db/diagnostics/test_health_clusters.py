"""What the database says of clusters to `health`, and to the leader once a minute."""

from typing import Any

from orchestrator.adapters.cluster_rows import known_clusters
from orchestrator.core.cluster_states import ClusterStatus
from orchestrator.core.clusters.rows import ClusterRow
from tests.db.conformance.builders import FLEET, Fleet
from tests.db.conformance.cluster_builders import NAME, Cluster

DAY_S = 86_400


async def told(fleet: Fleet) -> tuple[ClusterRow, ...]:
    """The clusters in the report; the leader is told the same."""
    report: Any = await fleet.call("fleet_report", p_fleet=FLEET)
    asked: Any = await fleet.call("fleet_task_troubles", p_fleet=FLEET, p_handled=[])
    found = known_clusters(report["clusters"])
    assert known_clusters(asked["clusters"]) == found
    return found


async def failed(fleet: Fleet, name: str = NAME) -> Cluster:
    """A cluster that did not get its nodes."""
    one = Cluster(fleet, name)
    await one.create()
    fields = {"failure_code": "ALLOCATION_TIMEOUT"}
    assert await one.move(ClusterStatus.REQUESTED, ClusterStatus.ALLOCATING, ClusterStatus.FAILED, **fields)
    return one


async def test_a_live_cluster_has_its_members(fleet: Fleet) -> None:
    cluster = await Cluster(fleet).running()
    [row] = await told(fleet)
    assert (row.id, row.status) == (NAME, ClusterStatus.RUNNING)
    assert {one.worker_id for one in row.members} == {agent.id for agent in cluster.agents}


async def test_a_cluster_that_failed_is_told_until_its_pool_has_another_one_or_a_day_has_passed(fleet: Fleet) -> None:
    await failed(fleet)
    fleet.wait(DAY_S / 2)
    assert [row.failure_code for row in await told(fleet)] == ["ALLOCATION_TIMEOUT"]
    await failed(fleet, "second")
    assert [row.id for row in await told(fleet)] == ["second"]
    fleet.wait(DAY_S + 1)
    assert await told(fleet) == ()
    await failed(fleet, "third")
    await Cluster(fleet, "fourth").create()
    assert [row.id for row in await told(fleet)] == ["fourth"]


async def test_a_row_that_cannot_be_read_hides_no_other(fleet: Fleet) -> None:
    await Cluster(fleet).running()
    report: Any = await fleet.call("fleet_report", p_fleet=FLEET)
    odd = {**report["clusters"][0], "status": "exploded"}
    assert [row.id for row in known_clusters([odd, None, 7, *report["clusters"]])] == [NAME]
    assert known_clusters(None) == known_clusters({"a": 1}) == ()
