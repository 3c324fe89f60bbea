"""Operations and node tasks of clusters: requested once, ended once, within a deadline, by whom they concern."""

import asyncio

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.core.cluster_states import (
    ClusterStatus,
    MemberStatus,
    NodeTaskKind,
    NodeTaskStatus,
    NodeTaskVia,
    OperationKind,
    OperationStatus,
)
from orchestrator.ports import BadArgument, NotLeader, UnknownWorker
from tests.db.conformance.builders import FLEET, Agent, Fleet, Row
from tests.db.conformance.cluster_builders import NAME, Cluster, count

PAYLOAD = {"user": "root", "key": "ssh-ed25519 AAAA"}
KEY = NodeTaskKind.AUTHORIZED_KEY
DAY_S = 86_400
ACCEPTED, DISPATCHED, RUNNING = OperationStatus.ACCEPTED, OperationStatus.DISPATCHED, OperationStatus.RUNNING
QUEUED, SENT, COMPLETED = NodeTaskStatus.QUEUED, NodeTaskStatus.DISPATCHED, NodeTaskStatus.COMPLETED


@pytest.fixture
async def cluster(fleet: Fleet) -> Cluster:
    """A running cluster of two."""
    return await Cluster(fleet).running()


async def node_task(cluster: Cluster, agent: Agent, via: NodeTaskVia = NodeTaskVia.AGENT, **more: float) -> int:
    """A queued node task."""
    term, deadline_s = cluster.fleet.term, more.get("deadline_s", 600)
    given = {"kind": KEY, "payload": PAYLOAD, "via": via, "deadline_s": deadline_s, "operation_id": None}
    found = await cluster.rows.node_task(term, NAME, agent.id, **given)  # type: ignore[arg-type]
    assert found is not None
    return found


async def done(agent: Agent, task_id: int, *, ok: bool = True, error: str | None = None) -> str:
    """How the agent's report of an end is received."""
    return str((await agent.call("node_task_done", p_id=task_id, p_ok=ok, p_error=error))["outcome"])


async def status(cluster: Cluster, task_id: int) -> tuple[NodeTaskStatus, str | None]:
    """The state of a node task, with its error."""
    (found,) = (task for task in (await cluster.report()).node_tasks if task.id == task_id)
    return found.status, found.error


async def test_an_operator_requests_an_operation_once(fleet: Fleet, cluster: Cluster) -> None:
    """For each member, or for one by its worker's id or node's name; an open one is not repeated."""
    rows, (one, two) = cluster.rows, cluster.agents
    answer = await rows.reconcile(NAME, one.id, actor="ann")
    assert answer["outcome"] == "accepted"
    (operation,) = answer["operations"]
    assert (operation["worker_id"], operation["kind"], operation["actor"]) == (one.id, "reconcile", "ann")
    assert (await rows.reconcile(NAME, one.id))["outcome"] == "already"
    answer = await rows.reconcile(NAME)
    assert [row["worker_id"] for row in answer["operations"]] == [one.id, two.id]
    assert answer["operations"][0] == operation
    assert (await rows.bootstrap_ssh(NAME))["outcome"] == "accepted"
    assert (await rows.drain(NAME, two.id))["outcome"] == "accepted"
    assert (await rows.drain(NAME, "gpu-9"))["outcome"] == "not_found"
    await cluster.move_member(two, MemberStatus.READY, MemberStatus.FAILED)
    assert (await rows.drain(NAME, two.id))["outcome"] == "not_found"
    with pytest.raises(BadArgument, match="a drain needs a worker"):
        await rows.drain(NAME, None)  # type: ignore[arg-type]
    await cluster.move_member(one, MemberStatus.READY, MemberStatus.FAILED)
    assert (await rows.reconcile(NAME))["outcome"] == "no_members"
    entries = (await fleet.call("fleet_audit", p_fleet=FLEET, p_before=None, p_limit=100))["entries"]
    assert [entry["action"] for entry in reversed(entries)][1:] == [
        "cluster.reconcile", "cluster.reconcile", "cluster.bootstrap_ssh", "cluster.drain",
    ]  # fmt: skip


async def test_requests_at_once_make_one_operation(cluster: Cluster, hand: AsyncConnection[DictRow]) -> None:
    """Of operators and of the leader."""
    rows, term = cluster.rows, cluster.fleet.term
    await asyncio.gather(
        *(rows.reconcile(NAME) for _ in range(8)),
        *(rows.operate(term, NAME, cluster.agents[0].id, OperationKind.RECONCILE, deadline_s=60) for _ in range(8)),
    )
    assert await count(hand, "member_operations") == 2


async def test_the_leader_takes_an_operation_to_its_end(fleet: Fleet, cluster: Cluster) -> None:
    """Each step is a compare-and-set under its term; the end keeps the error and the evidence."""
    rows, term = cluster.rows, fleet.term
    operation = await rows.operate(term, NAME, cluster.agents[1].id, OperationKind.ADD, deadline_s=60)
    assert operation is not None
    assert await rows.operate(term, NAME, cluster.agents[1].id, OperationKind.ADD, deadline_s=60) == operation
    assert await rows.move_operation(term, operation, [ACCEPTED], DISPATCHED)
    assert not await rows.move_operation(term, operation, [ACCEPTED], DISPATCHED)
    assert await rows.move_operation(term, operation, [DISPATCHED], RUNNING)
    with pytest.raises(BadArgument, match="this operation cannot go from running to accepted"):
        await rows.move_operation(term, operation, [RUNNING], ACCEPTED)
    failed = OperationStatus.FAILED
    assert await rows.move_operation(term, operation, [RUNNING], failed, error="no route", evidence={"rc": 1})
    (row,) = (await cluster.report()).operations
    assert (row.status, row.error, row.evidence, row.actor) == (failed, "no route", {"rc": 1}, "orchestrator")
    assert await rows.operate(term, "another", None, OperationKind.ADD, deadline_s=60) is None
    assert await rows.operate(term, NAME, "gpu-9", OperationKind.ADD, deadline_s=60) is None
    for call in (
        rows.operate(term - 1, NAME, None, OperationKind.ADD, deadline_s=60),
        rows.move_operation(term - 1, operation, [failed], failed),
    ):
        with pytest.raises(NotLeader):
            await call


async def test_another_fleet_moves_nothing_of_this_one(fleet: Fleet, cluster: Cluster) -> None:
    """Clusters, members, operations and node tasks belong to one fleet."""
    term = (await fleet.call("fleet_lead", p_fleet="second", p_holder="us", p_ttl_s=60))["term"]
    other = {"p_fleet": "second", "p_term": term}
    task = await node_task(cluster, cluster.agents[0])
    operation = await cluster.rows.operate(fleet.term, NAME, None, OperationKind.ADD, deadline_s=1)
    said = {"p_reason": "x", "p_fields": {}}
    calls: tuple[tuple[str, Row], ...] = (
        ("cluster_move", {"p_cluster": NAME, "p_from": ["running"], "p_status": "degraded"} | said),
        ("cluster_wait", {"p_cluster": NAME, "p_fields": {}}),
        ("cluster_member_move", {"p_cluster": NAME, "p_worker_id": cluster.agents[0].id, "p_from": ["ready"],
                                 "p_status": "failed"} | said),
        ("cluster_operation_move", {"p_id": operation, "p_from": ["accepted"], "p_status": "failed", "p_error": None,
                                    "p_evidence": None}),
        ("node_task_move", {"p_id": task, "p_from": ["queued"], "p_status": "failed", "p_error": None}),
    )  # fmt: skip
    for function, args in calls:
        assert (await fleet.call(f"fleet_{function}", **other, **args))["outcome"] == "stale", function
    fleet.wait(1000)
    assert await fleet.call("fleet_cluster_sweep", **other) == {"operations": 0, "node_tasks": 0}
    assert (await fleet.call("fleet_cluster_report", p_fleet="second", p_cluster=NAME))["clusters"] == []


async def test_a_leader_takes_a_node_task_from_a_silent_agent(fleet: Fleet, cluster: Cluster) -> None:
    """Then `via` is ssh, and the agent can neither get it nor report its end; a task that has ended stays as it is."""
    one, two = cluster.agents
    queued, sent = await node_task(cluster, one), await node_task(cluster, two)
    await two.beat()
    for task in (queued, sent):
        assert await cluster.rows.take_node_task(fleet.term, task)
        assert not await cluster.rows.take_node_task(fleet.term, task)
        (row,) = (row for row in (await cluster.report()).node_tasks if row.id == task)
        assert (row.via, row.status) == (NodeTaskVia.SSH, SENT)
    assert "node_tasks" not in await one.beat()
    assert await done(two, sent) == "fenced"
    assert await cluster.rows.move_node_task(fleet.term, sent, [SENT], COMPLETED)
    other = (await fleet.call("fleet_lead", p_fleet="second", p_holder="us", p_ttl_s=60))["term"]
    for fleet_id, term in (("second", other), (FLEET, fleet.term)):
        answer = await fleet.call("fleet_node_task_take", p_fleet=fleet_id, p_term=term, p_id=sent)
        assert answer["outcome"] == "stale"
    with pytest.raises(NotLeader):
        await cluster.rows.take_node_task(fleet.term - 1, queued)


async def test_a_node_task_reaches_its_agent_with_a_heartbeat(fleet: Fleet, cluster: Cluster) -> None:
    """With each of them until its end is reported, and no other agent's."""
    one, two = cluster.agents
    task = await node_task(cluster, one)
    assert await node_task(cluster, one) == task
    over_ssh = await node_task(cluster, one, NodeTaskVia.SSH)
    assert over_ssh != task
    assert await status(cluster, task) == (QUEUED, None)
    assert await done(one, task) == "fenced"  # it was not sent
    assert "node_tasks" not in await two.beat()
    for _ in range(2):
        assert (await one.beat())["node_tasks"] == [{"id": task, "kind": KEY, "payload": PAYLOAD}]
    assert await status(cluster, task) == (SENT, None)
    assert await done(two, task) == "fenced"
    earlier = Agent(fleet, one.id, "an earlier launch")
    assert await done(earlier, task) == "fenced"
    assert await done(one, over_ssh) == "fenced"
    assert await status(cluster, task) == (SENT, None)
    assert await done(one, task) == "ok"
    assert await done(one, task, ok=False) == "already"
    assert await status(cluster, task) == (COMPLETED, None)
    assert "node_tasks" not in await one.beat()
    again = await node_task(cluster, one)
    assert again != task
    await one.beat()
    assert await done(one, again, ok=False, error="read-only file system") == "ok"
    assert await status(cluster, again) == (NodeTaskStatus.FAILED, "read-only file system")
    with pytest.raises(UnknownWorker):
        await done(Agent(fleet, "gpu-9", "n"), task)


async def test_heartbeats_that_come_together_carry_node_tasks_too(fleet: Fleet, cluster: Cluster) -> None:
    """The gateway's batch."""
    one, two = cluster.agents
    task = await node_task(cluster, two)
    beats: list[Row] = [
        {"worker_id": agent.id, "nonce": agent.nonce, "jti": f"jti-{agent.id}", "health": None, "logs": {}}
        for agent in (one, two)
    ]
    answers = await fleet.call("fleet_heartbeats", p_beats=beats)
    assert "node_tasks" not in answers[one.id]
    assert [sent["id"] for sent in answers[two.id]["node_tasks"]] == [task]


async def test_the_leader_does_a_node_task_over_ssh(cluster: Cluster) -> None:
    """It dispatches and ends the row itself."""
    rows, term = cluster.rows, cluster.fleet.term
    task = await node_task(cluster, cluster.agents[0], NodeTaskVia.SSH)
    assert await rows.move_node_task(term, task, [QUEUED], SENT)
    assert not await rows.move_node_task(term, task, [QUEUED], SENT)
    assert await rows.move_node_task(term, task, [SENT], COMPLETED)
    assert await status(cluster, task) == (COMPLETED, None)
    with pytest.raises(BadArgument, match="this node task cannot go from completed to queued"):
        await rows.move_node_task(term, task, [COMPLETED], QUEUED)


async def test_what_misses_its_deadline_expires(fleet: Fleet, cluster: Cluster) -> None:
    """Operations and node tasks, once; an agent that comes later is told that it is too late."""
    one, _ = cluster.agents
    await cluster.rows.reconcile(NAME, one.id)
    sent, queued = await node_task(cluster, one), await node_task(cluster, one, NodeTaskVia.SSH, deadline_s=599)
    await one.beat()
    assert await cluster.rows.sweep(fleet.term) == {"operations": 0, "node_tasks": 0}
    fleet.wait(599)
    assert await cluster.rows.sweep(fleet.term) == {"operations": 0, "node_tasks": 1}
    fleet.wait(1)
    assert "node_tasks" not in await one.beat()
    assert await cluster.rows.sweep(fleet.term) == {"operations": 0, "node_tasks": 1}
    assert await done(one, sent) == "already"
    for task in (sent, queued):
        assert await status(cluster, task) == (NodeTaskStatus.EXPIRED, "its deadline has passed")
    fleet.wait(DAY_S)
    assert await cluster.rows.sweep(fleet.term) == {"operations": 1, "node_tasks": 0}
    (operation,) = (await cluster.report()).operations
    assert operation.status is OperationStatus.EXPIRED


async def test_retention_deletes_what_ended_long_ago(
    fleet: Fleet, cluster: Cluster, hand: AsyncConnection[DictRow]
) -> None:
    """After 30 days: of a live cluster its ended rows, and an ended cluster as a whole."""
    tables = ("cluster_apps", "cluster_members", "member_operations", "node_tasks", "cluster_events")
    one, two = cluster.agents
    for agent in (one, two):
        await node_task(cluster, agent)
        await agent.beat()
    (task,) = (found.id for found in (await cluster.report()).node_tasks if found.worker_id == one.id)
    await done(one, task)
    operation = await cluster.rows.operate(fleet.term, NAME, one.id, OperationKind.ADD, deadline_s=60)
    assert operation is not None
    await cluster.rows.move_operation(fleet.term, operation, [ACCEPTED], OperationStatus.FAILED, error="x")
    await cluster.move_member(two, MemberStatus.READY, MemberStatus.FAILED)
    fleet.wait(30 * DAY_S - 1)
    await fleet.fleet("retention")
    before = [await count(hand, table) for table in tables]
    assert before[:4] == [1, 2, 1, 2]
    fleet.wait(2)
    await fleet.fleet("retention")
    after = [await count(hand, table) for table in tables]
    assert after == [1, 2, 0, 1, 0]  # the failed member's worker has not ended
    await cluster.move(ClusterStatus.RUNNING, ClusterStatus.DELETING, ClusterStatus.DELETED)
    fleet.wait(30 * DAY_S + 1)
    await fleet.fleet("retention")
    assert [await count(hand, table) for table in tables] == [0] * 5
    assert (await cluster.rows.create(NAME, "slurm", nodes=1))["outcome"] == "created"
