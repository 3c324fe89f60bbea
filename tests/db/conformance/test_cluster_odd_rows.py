"""What a user's own SQL does to the rows of clusters harms that row alone."""

from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.core.cluster_states import ClusterStatus, MemberStatus, NodeTaskKind, NodeTaskVia
from tests.db.conformance.builders import Fleet
from tests.db.conformance.cluster_builders import NAME, POOL, Cluster

KEY = NodeTaskKind.AUTHORIZED_KEY
DIGITS = "1" + "0" * 5_000
DEEP = "[" * 3_000 + "]" * 3_000


@pytest.fixture
async def cluster(fleet: Fleet) -> Cluster:
    """Two ready members on a running cluster."""
    return await Cluster(fleet).running()


async def queued(cluster: Cluster, member: int, payload: dict[str, Any]) -> int:
    """The id of a node task for a member's agent."""
    made = await cluster.rows.node_task(
        cluster.fleet.term, NAME, cluster.agents[member].id, operation_id=None, kind=KEY, payload=payload,
        via=NodeTaskVia.AGENT, deadline_s=300,
    )  # fmt: skip
    assert made is not None
    return made


async def test_an_event_about_something_else_does_not_hide_the_clusters(
    cluster: Cluster, hand: AsyncConnection[DictRow]
) -> None:
    await hand.execute(
        "insert into cluster_events (cluster, subject, to_state, at) values (%s, 'my note', 'x', now())", [NAME]
    )
    assert [row.id for row in (await cluster.rows.report()).clusters] == [NAME]
    assert "x" not in {event.to_state for event in (await cluster.report()).events}


async def test_a_long_reason_of_an_event_does_not_make_the_report_long(
    cluster: Cluster, hand: AsyncConnection[DictRow]
) -> None:
    await hand.execute(
        """insert into cluster_events (cluster, worker_id, subject, from_state, to_state, reason, at)
           values (%s, repeat('w', 5000000), 'member', repeat('x', 5000000), repeat('x', 5000000),
                   repeat('x', 5000000), now())""",
        [NAME],
    )
    newest = (await cluster.report()).events[0]
    texts = [newest.worker_id, newest.from_state, newest.to_state, newest.reason]
    assert all(text is not None and len(text) <= 2_000 for text in texts)


async def test_evidence_that_is_no_object_does_not_hide_the_operation(
    cluster: Cluster, hand: AsyncConnection[DictRow]
) -> None:
    await cluster.rows.reconcile(NAME)
    await hand.execute("update member_operations set evidence = '[1]'")
    assert [one.evidence for one in (await cluster.report()).operations] == [None, None]


@pytest.mark.parametrize("value", [DEEP, DIGITS])
async def test_an_agent_does_not_get_a_node_task_that_it_cannot_decode(
    cluster: Cluster, hand: AsyncConnection[DictRow], value: str
) -> None:
    odd, good = await queued(cluster, 0, {"key": "odd"}), await queued(cluster, 0, {"key": "good"})
    write = "update node_tasks set payload = jsonb_build_object('key', %s::jsonb) where id = %s"
    await hand.execute(write, [value, odd])
    assert [one["id"] for one in (await cluster.agents[0].beat())["node_tasks"]] == [good]
    cluster.fleet.wait(301)
    assert (await cluster.rows.sweep(cluster.fleet.term))["node_tasks"] == 2


async def test_a_row_that_a_trigger_keeps_from_changing_does_not_keep_the_others_from_expiring(
    cluster: Cluster, hand: AsyncConnection[DictRow]
) -> None:
    odd, good = await queued(cluster, 0, {"key": "odd"}), await queued(cluster, 1, {"key": "good"})
    await cluster.rows.reconcile(NAME)
    await hand.execute(
        f"""create function stay() returns trigger language plpgsql as $$
            begin if old.id = {odd} then raise exception 'stay'; end if; return new; end $$;
            create trigger stay before update on node_tasks for each row execute function stay()"""
    )
    try:
        cluster.fleet.wait(3_600)
        assert await cluster.rows.sweep(cluster.fleet.term) == {"operations": 2, "node_tasks": 1}
        statuses = {one.id: one.status.value for one in (await cluster.report()).node_tasks}
        assert statuses == {odd: "queued", good: "expired"}
    finally:
        await hand.execute("drop trigger stay on node_tasks; drop function stay")


@pytest.mark.parametrize(
    ("nodes", "largest"), [(4, 4), (4.0, 4), ("4", 1), (2.5, 1), (0, 1), (-1, 1), (1e300, 1), ([4], 1), (None, 1)]
)
async def test_only_a_whole_number_asks_for_nodes(fleet: Fleet, nodes: object, largest: int) -> None:
    """As the handler: it refuses any other value at once, after the nodes were rented."""
    cluster = Cluster(fleet)
    await cluster.create(1, max_nodes=8)
    await fleet.submit({"params": {"nodes": nodes}, "pool": POOL})
    assert (await cluster.report()).demand.largest == largest


async def test_a_cluster_does_not_release_its_nodes_after_its_controller_has_claimed_a_task(cluster: Cluster) -> None:
    await cluster.fleet.submit({"pool": POOL})
    assert await cluster.agents[0].claim()
    assert not await cluster.move(ClusterStatus.RUNNING, ClusterStatus.REQUESTED, nodes=0)
    report = await cluster.report()
    assert (report.status, report.nodes) == (ClusterStatus.RUNNING, 2)


async def test_a_cluster_releases_its_nodes_if_none_of_them_has_a_task(fleet: Fleet) -> None:
    cluster = Cluster(fleet)
    await cluster.create(1, min_nodes=0)
    await cluster.move(ClusterStatus.REQUESTED, ClusterStatus.ALLOCATING)
    await cluster.member(MemberStatus.READY)
    await cluster.move(ClusterStatus.ALLOCATING, ClusterStatus.DEPLOYING, ClusterStatus.RUNNING)
    assert await cluster.move(ClusterStatus.RUNNING, ClusterStatus.REQUESTED, nodes=0)


async def test_a_cluster_that_is_scaled_up_while_it_begins_gets_a_new_deadline(fleet: Fleet) -> None:
    """The old one was for the nodes that it had: at its end, all of them would end."""
    cluster = Cluster(fleet)
    await cluster.create(2)
    await cluster.move(ClusterStatus.REQUESTED, ClusterStatus.ALLOCATING, deadline_s=60, waiting_for="its nodes")
    await cluster.rows.scale(NAME, nodes=1)
    assert (await cluster.report()).deadline_at is not None
    await cluster.rows.scale(NAME, nodes=3)
    assert (await cluster.report()).deadline_at is None  # the leader sets it
