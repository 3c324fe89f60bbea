"""Slurm clusters: who may change them, who takes their tasks, and what their readers see."""

import asyncio
import random
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from orchestrator.adapters.rows import need_of
from orchestrator.core.cluster_states import ClusterStatus, MemberRole, MemberStatus
from orchestrator.core.states import State
from orchestrator.diagnostics.cost import lines
from orchestrator.ports import BadArgument, NotLeader
from tests.db.conformance.builders import FLEET, START, Fleet, rows_read
from tests.db.conformance.cluster_builders import NAME, POOL, Cluster, count

MANY = 10_000
FEW = 5_000  # rows of tasks: a report looks at 1,000


@pytest.fixture
def cluster(fleet: Fleet) -> Cluster:
    """A cluster that nobody has requested yet."""
    return Cluster(fleet)


async def audited(fleet: Fleet) -> list[tuple[str, str]]:
    """The actions in the audit log, the oldest first."""
    entries = (await fleet.call("fleet_audit", p_fleet=FLEET, p_before=None, p_limit=100))["entries"]
    return [(entry["action"], entry["subject"]) for entry in reversed(entries)]


async def test_an_operator_creates_scales_and_deletes_a_cluster(fleet: Fleet, cluster: Cluster) -> None:
    """Each action is in the audit log; one that changes nothing is not."""
    rows = cluster.rows
    answer = await rows.create(NAME, POOL, nodes=2, actor="ann")
    assert (answer["outcome"], answer["cluster"]["status"]) == ("created", "requested")
    assert (answer["cluster"]["min_nodes"], answer["cluster"]["max_nodes"]) == (2, 2)
    assert (await rows.scale(NAME, nodes=3))["cluster"]["max_nodes"] == 3  # the bounds of a fixed size follow
    assert (await rows.scale(NAME, nodes=3))["outcome"] == "already"
    assert (await rows.scale(NAME, min_nodes=0, max_nodes=8))["cluster"]["nodes"] == 3
    with pytest.raises(BadArgument, match="size of the cluster is not valid"):
        await rows.scale(NAME, nodes=9)
    assert (await rows.scale("another", nodes=1))["outcome"] == "not_found"
    assert (await rows.delete(NAME, reason="done", actor="ann"))["outcome"] == "requested"
    assert (await rows.delete(NAME))["outcome"] == "already"
    assert (await rows.delete("another"))["outcome"] == "not_found"
    row = await cluster.report()
    assert (row.status, row.reason, row.delete_requested_at) == (ClusterStatus.DELETING, "done", START)
    with pytest.raises(BadArgument, match="is deleting"):
        await rows.scale(NAME, nodes=4)
    assert await audited(fleet) == [
        ("cluster.create", NAME), ("cluster.scale", NAME), ("cluster.scale", NAME), ("cluster.delete", NAME),
    ]  # fmt: skip


async def test_a_name_and_a_pool_have_one_cluster(fleet: Fleet, cluster: Cluster) -> None:
    """An ended cluster keeps its name, and gives its pool back."""
    rows = cluster.rows
    await cluster.create()
    with pytest.raises(BadArgument, match="there is a cluster train, which is requested"):
        await rows.create(NAME, "other", nodes=1)
    with pytest.raises(BadArgument, match="the pool slurm has a cluster"):
        await rows.create("second", POOL, nodes=1)
    assert await cluster.move(ClusterStatus.REQUESTED, ClusterStatus.FAILED, failure_code="NO_CAPACITY")
    with pytest.raises(BadArgument, match="which is failed"):
        await rows.create(NAME, POOL, nodes=1)
    await rows.create("second", POOL, nodes=1)
    for name, pool, size in (
        ("Bad", POOL, {}), ("a" * 42, POOL, {}), ("", POOL, {}), ("third", "a b", {}),
        ("third", "p", {"min_nodes": 3}), ("third", "p", {"max_nodes": 65}), ("third", "p", {"min_nodes": -1}),
    ):  # fmt: skip
        with pytest.raises(BadArgument):
            await rows.create(name, pool, nodes=2, **size)  # type: ignore[arg-type]
    listed = (await rows.clusters())["clusters"]
    assert [event.reason for event in (await cluster.report()).events] == ["test", "operator requested it"]
    assert [(row["id"], row["status"], row["members"]) for row in listed] == [
        ("second", "requested", {}), (NAME, "failed", {}),
    ]  # fmt: skip


async def test_a_move_is_a_compare_and_set_under_a_term(fleet: Fleet, cluster: Cluster) -> None:
    """A state that has changed is stale; an earlier leader is refused; an illegal transition too."""
    await cluster.create()
    assert await cluster.move(ClusterStatus.REQUESTED, ClusterStatus.ALLOCATING, deadline_s=600, waiting_for="pods")
    row = await cluster.report()
    assert row.deadline_at is not None
    assert ((row.deadline_at - START).total_seconds(), row.waiting_for, row.reason) == (600, "pods", "test")
    assert not await cluster.move(ClusterStatus.REQUESTED, ClusterStatus.ALLOCATING)
    assert await cluster.rows.wait(fleet.term, NAME, waiting_for="another pod", conf_sha="abc")
    row = await cluster.report()
    assert (row.waiting_for, row.conf_sha, row.status) == ("another pod", "abc", ClusterStatus.ALLOCATING)
    with pytest.raises(BadArgument, match="cannot go from allocating to running"):
        await cluster.move(ClusterStatus.ALLOCATING, ClusterStatus.RUNNING)
    with pytest.raises(BadArgument, match="unknown key"):
        await cluster.rows.wait(fleet.term, NAME, pool="another")
    with pytest.raises(BadArgument):
        await cluster.rows.wait(fleet.term, NAME, nodes=9)
    assert await cluster.move(ClusterStatus.ALLOCATING, ClusterStatus.DEPLOYING)
    row = await cluster.report()
    assert (row.deadline_at, row.waiting_for) == (None, None)
    assert await cluster.move(ClusterStatus.DEPLOYING, ClusterStatus.RUNNING, smoke_at=START, smoke_evidence={"n": 2})
    assert not await cluster.rows.wait(fleet.term, "another", waiting_for="x")
    row = await cluster.report()
    assert (row.smoke_at, row.smoke_evidence) == (START, {"n": 2})
    fleet.term -= 1
    for call in (
        cluster.move(ClusterStatus.RUNNING, ClusterStatus.DEGRADED),
        cluster.rows.wait(fleet.term, NAME, waiting_for="x"),
        cluster.rows.join(fleet.term, NAME, "gpu-1", MemberRole.WORKER),
        cluster.rows.sweep(fleet.term),
    ):
        with pytest.raises(NotLeader):
            await call
    assert (await cluster.report()).status is ClusterStatus.RUNNING


async def test_leaders_that_move_at_once_move_once(fleet: Fleet, cluster: Cluster) -> None:
    """Of many equal moves one is done, and one event is written."""
    await cluster.create()
    done = await asyncio.gather(
        *(cluster.move(ClusterStatus.REQUESTED, ClusterStatus.ALLOCATING) for _ in range(20)),
        *(cluster.rows.wait(fleet.term, NAME, waiting_for=str(n)) for n in range(10)),
    )
    assert sum(done[:20]) == 1
    agents = [await fleet.agent(pool=POOL) for _ in range(8)]
    joined = await asyncio.gather(
        *(cluster.rows.join(fleet.term, NAME, agent.id, MemberRole.CONTROLLER) for agent in agents for _ in range(3))
    )
    assert sum(index is not None for index in joined) == 1  # one controller
    joined = await asyncio.gather(
        *(cluster.rows.join(fleet.term, NAME, agent.id, MemberRole.WORKER) for agent in agents for _ in range(3))
    )
    assert sorted(index for index in joined if index is not None) == list(range(1, 8))
    row = await cluster.report()
    assert len(row.members) == len({member.index_no for member in row.members}) == 8
    moved = await asyncio.gather(
        *(
            cluster.move_member(agent, MemberStatus.PENDING, to)
            for agent in agents
            for to in (MemberStatus.RECONCILING, MemberStatus.REMOVED, MemberStatus.FAILED)
        )
    )
    assert sum(moved) == 8
    transitions = [(event.subject.value, event.from_state) for event in (await cluster.report()).events]
    assert transitions.count(("cluster", "requested")) == 1
    assert transitions.count(("member", "pending")) == 8


async def test_a_worker_of_the_pool_is_reserved_from_its_intent_on(fleet: Fleet, cluster: Cluster) -> None:
    """By the cluster that the intent names, or the live one of the pool; a worker of another pool is not."""
    await cluster.create()
    await fleet.spawn("gpu-a", pool=POOL)
    await fleet.spawn("gpu-b", pool=POOL, cluster=NAME)
    await fleet.spawn("gpu-c")
    workers = {row["id"]: row["cluster"] for row in (await fleet.snapshot())["workers"]}
    assert workers == {"gpu-a": NAME, "gpu-b": NAME, "gpu-c": None}
    assert [worker.id for worker in (await cluster.report()).unjoined] == ["gpu-a", "gpu-b"]


async def test_a_member_joins_when_its_worker_is_promoted(fleet: Fleet, cluster: Cluster) -> None:
    """Not before, not of another pool, and not twice; its place is the lowest free one."""
    await cluster.create()
    rows, worker = cluster.rows, MemberRole.WORKER
    agent = await fleet.agent(pool=POOL)
    assert await rows.join(fleet.term, NAME, agent.id, worker) is None  # nothing is allocated yet
    await cluster.move(ClusterStatus.REQUESTED, ClusterStatus.ALLOCATING)
    address = {"ssh_host": "203.0.113.7", "ssh_port": 2200, "fabric_addr": "10.0.0.1", "hostname": "abc"}
    assert await rows.join(fleet.term, NAME, agent.id, worker, **address, adapter_detail={"phase": "new"}) == 0
    assert await rows.join(fleet.term, NAME, agent.id, worker) is None
    for other in (await fleet.spawn(pool=POOL), (await fleet.agent()).id, "gpu-unknown"):
        assert await rows.join(fleet.term, NAME, other, worker) is None
    second = await fleet.agent(pool=POOL)
    assert await rows.join(fleet.term, NAME, second.id, worker) == 1
    (one, two) = (await cluster.report()).members
    assert (one.ssh_host, one.ssh_port, one.fabric_addr, one.hostname) == tuple(address.values())
    assert (one.node_name, one.adapter_detail, one.status) == (agent.id, {"phase": "new"}, MemberStatus.PENDING)
    assert one.worker is not None
    assert (one.worker.status, one.worker.nonce, one.worker.cluster) == (State.ACTIVE, agent.nonce, NAME)
    assert await cluster.move_member(agent, MemberStatus.PENDING, MemberStatus.FAILED)
    third = await fleet.agent(pool=POOL)
    assert await rows.join(fleet.term, NAME, third.id, worker) == 0
    assert two.index_no == 1
    with pytest.raises(BadArgument):
        await rows.join(fleet.term, NAME, (await fleet.agent(pool=POOL)).id, worker, index_no=64)


async def test_a_cluster_has_one_controller(fleet: Fleet, cluster: Cluster, hand: AsyncConnection[DictRow]) -> None:
    """A second one is stale, until the first one is lost; by hand it is refused."""
    await cluster.running()
    controller, other = cluster.agents
    ready = MemberStatus.READY
    assert not await cluster.move_member(other, ready, None, role="controller")
    with pytest.raises(psycopg.errors.UniqueViolation):
        await hand.execute("update cluster_members set role = 'controller'")
    assert await cluster.move_member(controller, ready, MemberStatus.FAILED)
    assert await cluster.move_member(other, ready, None, role="controller", adapter_detail={"slurmctld_state": "up"})
    roles = {member.worker_id: member.role for member in (await cluster.report()).members}
    assert roles[other.id] is MemberRole.CONTROLLER


async def test_only_the_ready_controller_of_a_running_cluster_claims(fleet: Fleet, cluster: Cluster) -> None:
    """Others wait as if there were no tasks, and are told that they may not claim."""
    await cluster.running()
    controller, other = cluster.agents
    await fleet.submit(count=9, pool=POOL)
    answer = await other.claiming()
    assert (answer["tasks"], answer["may"], answer["state"]) == ([], False, "idle")
    (task,) = await controller.claim()
    (first,) = (answer := await controller.claiming())["tasks"]
    assert answer["may"]
    assert await controller.complete(task) == "ok"
    assert await other.claim() == []
    assert await cluster.move(ClusterStatus.RUNNING, ClusterStatus.DEGRADED)
    (second,) = await controller.claim()
    await cluster.move_member(controller, MemberStatus.READY, MemberStatus.RECONCILING)
    assert await controller.claim() == []
    await cluster.move_member(controller, MemberStatus.RECONCILING, MemberStatus.READY)
    (third,) = await controller.claim()
    assert not await cluster.move(ClusterStatus.DEGRADED, ClusterStatus.REQUESTED)  # it would release nodes with a task
    for task in (first, second, third):
        assert await controller.complete(task) == "ok"
    assert await cluster.move(ClusterStatus.DEGRADED, ClusterStatus.REQUESTED)
    assert await controller.claim() == []
    plain = await fleet.agent(pool="plain")
    await fleet.submit(pool="plain")
    assert len(await plain.claim()) == 1


async def test_the_snapshot_names_the_live_controller(fleet: Fleet, cluster: Cluster) -> None:
    """The planner lets it end after the other nodes."""
    await cluster.running()
    controller, other = cluster.agents
    (need,) = map(need_of, (await fleet.snapshot())["clusters"])
    assert (need.controller, set(need.members)) == (controller.id, {controller.id, other.id})
    await cluster.move_member(controller, MemberStatus.READY, MemberStatus.FAILED)
    (need,) = map(need_of, (await fleet.snapshot())["clusters"])
    assert need.controller is None


async def test_a_worker_of_a_cluster_that_has_ended_claims_nothing(
    fleet: Fleet, cluster: Cluster, hand: AsyncConnection[DictRow]
) -> None:
    """Neither when it failed nor when somebody deleted its rows."""
    await cluster.running()
    controller, _ = cluster.agents
    await fleet.submit(count=2, pool=POOL)
    await cluster.move(ClusterStatus.RUNNING, ClusterStatus.FAILED)
    assert await controller.claim() == []
    await hand.execute("delete from cluster_apps")
    assert await controller.claim() == []
    assert (await fleet.snapshot())["clusters"] == []
    assert (await fleet.call("fleet_changes", p_digest=None))["digest"]


async def test_the_end_of_a_cluster_ends_all_that_belongs_to_it(fleet: Fleet, cluster: Cluster) -> None:
    """Its members, operations and node tasks."""
    await cluster.running()
    await cluster.rows.reconcile(NAME)
    assert await cluster.move(ClusterStatus.RUNNING, ClusterStatus.DELETING, ClusterStatus.DELETED)
    row = await cluster.report()
    assert {member.status for member in row.members} == {MemberStatus.FAILED}
    assert {operation.status.value for operation in row.operations} == {"failed"}
    assert (await cluster.rows.report()).clusters == ()
    assert (await cluster.rows.reconcile("another"))["outcome"] == "not_found"
    with pytest.raises(BadArgument, match="is deleted"):
        await cluster.rows.reconcile(NAME)


async def test_the_snapshot_has_the_live_clusters(fleet: Fleet, cluster: Cluster) -> None:
    """With their members; a failed or removed one until its worker has ended."""
    assert (await fleet.snapshot())["clusters"] == []
    await cluster.running()
    controller, other = cluster.agents
    members = [
        {"worker_id": controller.id, "role": "controller", "status": "ready"},
        {"worker_id": other.id, "role": "worker", "status": "ready"},
    ]
    shown = {"id": NAME, "pool": POOL, "status": "running", "nodes": 2, "members": members}
    assert (await fleet.snapshot())["clusters"] == [shown]
    await cluster.move_member(other, MemberStatus.READY, MemberStatus.FAILED)
    assert (await fleet.snapshot())["clusters"][0]["members"] == [members[0], members[1] | {"status": "failed"}]
    await fleet.end(other.id, State.ACTIVE)
    await fleet.move(other.id, State.TERMINATING, State.TERMINATED)
    assert (await fleet.snapshot())["clusters"][0]["members"] == members[:1]
    await cluster.move_member(controller, MemberStatus.READY, MemberStatus.DRAINING)
    await cluster.move_member(controller, MemberStatus.DRAINING, MemberStatus.REMOVED)
    assert (await fleet.snapshot())["clusters"][0]["members"] == [members[0] | {"status": "removed"}]
    await fleet.call("fleet_lead", p_fleet="second", p_holder="us", p_ttl_s=60)
    assert (await fleet.call("fleet_snapshot", p_fleet="second"))["clusters"] == []


async def test_who_cannot_listen_notices_each_change(fleet: Fleet, cluster: Cluster) -> None:
    """A cluster's state and size, and its members'."""
    await cluster.create(min_nodes=0, max_nodes=4)
    digests = [(await fleet.call("fleet_changes", p_digest=None))["digest"]]

    async def changed() -> bool:
        digests.append((await fleet.call("fleet_changes", p_digest=None))["digest"])
        return bool(digests[-1] != digests[-2])

    assert not await changed()
    await cluster.rows.scale(NAME, nodes=3)
    assert await changed()
    await cluster.move(ClusterStatus.REQUESTED, ClusterStatus.ALLOCATING)
    assert await changed()
    agent = await cluster.member(MemberStatus.PENDING)
    assert await changed()
    await cluster.move_member(agent, MemberStatus.PENDING, MemberStatus.RECONCILING)
    assert await changed()


async def test_demand_counts_nodes(fleet: Fleet, cluster: Cluster) -> None:
    """Of ready and running tasks of the pool; one for a number that the handler refuses."""
    await cluster.running()
    await cluster.rows.scale(NAME, max_nodes=9)
    await fleet.submit({"params": {"nodes": 4}, "priority": 9}, pool=POOL)
    (task,) = await cluster.agents[0].claim()
    strange: list[Any] = [None, "3", 65, 0, -1, 2.5, True, {"a": 1}, "many", [2], 10**400]
    await fleet.submit(*({"params": {"nodes": one}} for one in strange), {"params": {}}, pool=POOL)
    await fleet.submit({"params": {"nodes": 9}}, pool="other")
    await fleet.submit({"params": {"nodes": 9}, "run_after": "2027-01-01T00:00:00Z"}, pool=POOL)
    demand = (await cluster.report()).demand
    assert (demand.tasks, demand.nodes, demand.largest) == (13, 4 + 12, 4)
    await cluster.agents[0].complete(task)
    assert (await cluster.report()).demand.largest == 1
    (row,) = (await cluster.rows.report()).clusters
    assert (row.demand.tasks, row.cost_usd) == (12, None)


async def test_a_report_is_bounded(fleet: Fleet, cluster: Cluster, hand: AsyncConnection[DictRow]) -> None:
    """Fifty members and ten thousand tasks: its parts are limited, and it reads no whole table."""
    await cluster.running(50)
    await cluster.rows.reconcile(NAME)
    await hand.execute(
        """insert into tasks (task_type, pool, params) select 't', %s, jsonb_build_object('nodes', 1 + i %% 8)
             from generate_series(1, %s) i""", (POOL, MANY),
    )  # fmt: skip
    await hand.execute(
        """insert into cluster_events (cluster, subject, to_state, at)
           select %s, 'cluster', 'running', now() from generate_series(1, %s)""", (NAME, MANY),
    )  # fmt: skip
    row = await cluster.report()
    assert (len(row.members), len(row.operations), len(row.events)) == (50, 50, 100)
    assert row.demand.tasks == 1000
    assert row.demand.largest == 8
    for cluster_id in (None, NAME):
        async with hand.transaction():
            tables = ("tasks", "cluster_events", "workers", "cluster_members", "member_operations")
            before = [await rows_read(hand, table) for table in tables]
            await hand.execute("select fleet_cluster_report(%s, %s, %s)", (FLEET, cluster_id, fleet.now))
            read = {table: await rows_read(hand, table) - old for table, old in zip(tables, before, strict=True)}
        assert {table: n for table, n in read.items() if n > FEW} == {}
    await hand.execute("truncate tasks")


async def test_params_that_are_large_do_not_stop_a_report(
    fleet: Fleet, cluster: Cluster, hand: AsyncConnection[DictRow]
) -> None:
    """What lies behind 16 MB of params counts as one node."""
    await cluster.create(2, max_nodes=8)
    large = Jsonb({"nodes": 8, "x": random.Random(1).randbytes(500_000).hex()})
    await hand.execute(
        "insert into tasks (task_type, pool, params) select 't', %s, %s from generate_series(1, 24)", (POOL, large)
    )
    demand = (await cluster.report()).demand
    assert demand.tasks == 24
    assert 24 < demand.nodes < 24 * 8
    assert demand.largest == 8


async def test_the_cost_of_a_cluster_is_that_of_its_workers(fleet: Fleet, cluster: Cluster) -> None:
    """In its report, and in each worker's line of the fleet's costs."""
    await cluster.running()
    await fleet.agent()
    fleet.wait(3600)
    row = await cluster.report()
    assert row.cost_usd == pytest.approx(2 * 3.6)
    cost = await fleet.call("fleet_cost", p_fleet=FLEET, p_since=START, p_until=None)
    found = [(line.name, line.count, round(line.usd, 2)) for line in lines(cost, "cluster")]
    assert found == [(NAME, 2, 7.2), ("(no cluster)", 1, 3.6)]


async def test_no_users_statement_breaks_a_cluster(
    fleet: Fleet, cluster: Cluster, hand: AsyncConnection[DictRow]
) -> None:
    """The tables refuse these rows. Other rows do not affect the fleet."""
    await cluster.running()
    for statement in (
        "update cluster_apps set nodes = 65",
        "update cluster_apps set nodes = 1",
        "update cluster_apps set status = 'requested', status = 'x'",
        "update cluster_apps set status = null",
        "update cluster_apps set id = 'X!'",
        "update cluster_members set index_no = 0",
        "update cluster_members set node_name = 'A B'",
        "update cluster_members set cluster = 'unknown'",
        "update cluster_members set ssh_port = 0",
        "update cluster_members set adapter_detail = '[]'",
        "insert into node_tasks (cluster, worker_id, kind, via, deadline_at) values ('train', 'w', 'rm', 'ssh', now())",
    ):
        with pytest.raises(psycopg.Error):
            await hand.execute(statement.encode())
    await hand.execute("alter table cluster_apps add column role text, add column cluster text default 'x'")
    try:
        assert (await cluster.report()).status is ClusterStatus.RUNNING
        assert await cluster.move(ClusterStatus.RUNNING, ClusterStatus.DEGRADED)
        assert len((await fleet.snapshot())["clusters"]) == 1
    finally:
        await hand.execute("alter table cluster_apps drop column role, drop column cluster")
    await hand.execute("delete from workers")
    assert all(member.worker is None for member in (await cluster.report()).members)
    await hand.execute("delete from cluster_apps")
    assert await count(hand, "cluster_members") == await count(hand, "cluster_events") == 0
