"""Tasks that ask for more nodes than their cluster may have: each fails by itself, and harms no other one."""

from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from tests.db.conformance.builders import Fleet
from tests.db.conformance.cluster_builders import NAME, POOL, Cluster

WHY = "It asks for 5 nodes, and cluster train may have 2"


@pytest.fixture
def cluster(fleet: Fleet) -> Cluster:
    """A cluster that nobody has requested yet."""
    return Cluster(fleet)


async def wants(fleet: Fleet, nodes: Any, priority: int = 0) -> str:
    """A task that asks for so many nodes; its id."""
    (task,) = await fleet.submit({"params": {"command": ["true"], "nodes": nodes}, "priority": priority}, pool=POOL)
    return task


async def ends(fleet: Fleet, task: str) -> tuple[str, str | None, str | None, int]:
    """How a task stands."""
    row = await fleet.task(task)
    return row["status"], row["failure_code"], row["error_message"], row["attempts"]


async def test_a_controller_is_not_given_a_task_that_is_too_large_and_takes_the_next_one(
    fleet: Fleet, cluster: Cluster
) -> None:
    await cluster.running()
    large, fitting = await wants(fleet, 5, priority=9), await wants(fleet, 2)
    (task,) = await cluster.agents[0].claim()
    assert task["id"] == fitting
    await fleet.maintain(1)
    assert await ends(fleet, large) == ("Failed", "SLURM_TOO_LARGE", WHY, 0)


async def test_a_claim_that_finds_only_such_tasks_leaves_them_to_maintenance(fleet: Fleet, cluster: Cluster) -> None:
    await cluster.running()
    tasks = [await wants(fleet, 5) for _ in range(30)]
    for _ in range(3):
        assert await cluster.agents[0].claim() == []
    await fleet.maintain(1)
    assert {(await ends(fleet, task))[:2] for task in tasks} == {("Failed", "SLURM_TOO_LARGE")}


async def test_a_task_that_is_too_large_starts_no_node_and_fails_with_the_next_sweep(
    fleet: Fleet, cluster: Cluster
) -> None:
    """The cluster has no node, so nobody claims: only the leader can end it."""
    await cluster.create(1, min_nodes=0, max_nodes=2)
    large, later = await wants(fleet, 5), await wants(fleet, 2)
    demand = (await cluster.report()).demand
    assert (demand.tasks, demand.nodes, demand.largest) == (1, 2, 2)
    await cluster.rows.sweep(fleet.term)
    assert await ends(fleet, large) == ("Failed", "SLURM_TOO_LARGE", WHY, 0)
    assert (await ends(fleet, later))[0] == "Queued"


async def test_a_task_waits_for_a_cluster_that_can_run_it_while_its_own_one_is_deleted(
    fleet: Fleet, cluster: Cluster
) -> None:
    await cluster.running()
    large = await wants(fleet, 5)
    await cluster.rows.delete(NAME)
    await cluster.rows.sweep(fleet.term)
    assert (await ends(fleet, large))[0] == "Queued"


async def test_a_task_that_fits_into_a_larger_limit_is_retried(fleet: Fleet, cluster: Cluster) -> None:
    await cluster.running()
    large = await wants(fleet, 5)
    assert await cluster.agents[0].claim() == []
    await fleet.maintain(1)
    await cluster.rows.scale(NAME, max_nodes=5)
    await fleet.call("task_retry", p_id=large)
    (task,) = await cluster.agents[0].claim()
    assert task["id"] == large


@pytest.mark.parametrize(("nodes", "counted"), [("2.0", 2), ("0", 1), ("65", 1), ('"many"', 1), ("null", 1)])
async def test_nodes_count_as_the_handler_reads_them(
    fleet: Fleet, cluster: Cluster, hand: AsyncConnection[DictRow], nodes: str, counted: int
) -> None:
    """One that the handler refuses counts as one node."""
    await cluster.create(2)
    statement = "insert into tasks (task_type, pool, params) values ('t', %s, ('{\"nodes\": ' || %s || '}')::jsonb)"
    await hand.execute(statement, (POOL, nodes))
    assert (await cluster.report()).demand.nodes == counted


async def test_a_task_that_a_trigger_keeps_from_failing_harms_no_other_one(
    fleet: Fleet, cluster: Cluster, hand: AsyncConnection[DictRow]
) -> None:
    await cluster.running()
    large, fitting = await wants(fleet, 5, priority=9), await wants(fleet, 1)
    await hand.execute(
        "create function keeps() returns trigger language plpgsql as $$ begin "
        "if new.status = 'Failed' then raise 'no'; end if; return new; end $$"
    )
    await hand.execute("create trigger keeps before update on tasks for each row execute function keeps()")
    try:
        await cluster.rows.sweep(fleet.term)
        (task,) = await cluster.agents[0].claim()
        assert (task["id"], (await ends(fleet, large))[0]) == (fitting, "Failed")  # whatever the table shows
        assert (await cluster.report()).demand.tasks == 1
    finally:
        await hand.execute("drop function keeps() cascade")
