"""The leader's job for clusters against the real database, with pods that answer as a test says."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from psycopg import AsyncConnection, DataError, IntegrityError
from psycopg.rows import DictRow
from structlog.testing import capture_logs

from orchestrator.adapters.store import SqlStore
from orchestrator.clusters import probing
from orchestrator.clusters.access import Members
from orchestrator.clusters.execute import ClusterExecutor
from orchestrator.clusters.probing import Prober, ProbeSettings
from orchestrator.core.cluster_states import ClusterStatus, MemberStatus, OperationStatus
from orchestrator.core.clusters.plan import NO_POOL_S
from orchestrator.core.clusters.rows import ClusterReport
from orchestrator.core.clusters.view import ClusterPolicy, Configuration
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import Worker
from orchestrator.core.states import State
from orchestrator.leader_jobs import clusters as leader_job
from orchestrator.leader_jobs.clusters import Clusters
from orchestrator.ports import Completed, Session, Unavailable
from orchestrator.ports.clusters import ClusterRows
from tests.db.conformance.builders import FLEET, Fleet
from tests.db.conformance.cluster_builders import NAME, POOL, Cluster
from tests.unit.core import build

OTHER = "other"
SHA = "a" * 64
KEY = bytes(32)
STEPS = 10


@dataclass
class Pod:
    """What one pod answers: a probe with `lines`, or an exception; every other script with its success."""

    lines: Mapping[str, str] = field(default_factory=dict)
    raises: Exception | None = None  # instead of an answer
    smoke: bytes = b""  # what the script of the smoke job prints
    ran: list[str] = field(default_factory=list)  # the scripts that are no probes
    closed = False

    async def run(self, command: str, *, stdin: bytes = b"", timeout_s: float) -> Completed:
        del stdin, timeout_s
        if self.raises is not None:
            raise self.raises
        if "echo end=" in command:
            text = "".join(f"{name}={value}\n" for name, value in self.lines.items())
            return Completed(0, f"{text}end=\n".encode(), b"")
        self.ran.append(command)
        if "cluster-smoke" in command:
            return Completed(0, self.smoke, b"")
        return Completed(0, b"configured=yes\nstarted=x\nrestarted=yes\ndrained=yes\nremoved=yes\nkey=yes\n", b"")


@dataclass
class Pods:
    """The pods by worker id; another one does not answer."""

    pods: dict[str, Pod] = field(default_factory=dict)

    @asynccontextmanager
    async def session(self, worker: Worker, *, timeout_s: float) -> AsyncIterator[Session]:
        del timeout_s
        if worker.id not in self.pods:
            raise Unavailable("no answer")
        yield self.pods[worker.id]  # type: ignore[misc]


def sha_of(_: Configuration) -> str:
    return SHA


def job_of(
    rows: ClusterRows, pods: Pods, policies: Mapping[str, ClusterPolicy] = {POOL: ClusterPolicy(sha_of)}
) -> Clusters:
    """A leader's job that has seen nothing."""
    members = Members(pods, build.spawning)
    prober = Prober(members, ProbeSettings(lambda _: KEY, None, "python3"))
    return Clusters(rows, prober, ClusterExecutor(rows, members, lambda _: KEY, None, prober.now), policies)


async def steps(job: Clusters, cluster: Cluster, number: int = STEPS) -> None:
    """This many steps, each after the probes and calls of the one before."""
    for _ in range(number):
        await job.step(cluster.fleet.term)
        if running := [task for task in asyncio.all_tasks() if ":" in task.get_name()]:
            await asyncio.wait(running, timeout=10)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is due at once."""
    monkeypatch.setattr(leader_job, "STEADY_S", 0.0)
    monkeypatch.setattr(leader_job, "MOVING_S", 0.0)


@pytest.fixture
async def cluster(fleet: Fleet) -> Cluster:
    """A running cluster of two."""
    return await Cluster(fleet).running()


async def test_a_cluster_whose_plan_fails_does_not_stop_the_others(fleet: Fleet, cluster: Cluster) -> None:
    """It is logged, and repeated after a pause."""
    for agent in cluster.agents:
        await cluster.move_member(agent, MemberStatus.READY, None, fabric_addr="10.0.0.1")
    second = Cluster(fleet, OTHER, OTHER)
    await second.create(1, min_nodes=1)

    def fails(_: Configuration) -> str:
        raise KeyError("a row that nobody expects")

    pods = Pods({agent.id: Pod({"clock": "1", "conf": "none", "lacks": ""}) for agent in cluster.agents})
    job = job_of(cluster.rows, pods, {POOL: ClusterPolicy(fails), OTHER: ClusterPolicy(sha_of)})
    with capture_logs() as logs:
        await steps(job, cluster)
    assert (await second.report()).status is ClusterStatus.ALLOCATING
    failures = [one for one in logs if one["event"] == "cluster_plan_failed"]
    assert [one["cluster"] for one in failures] == [NAME]
    assert failures[0]["exc_info"]
    assert (await cluster.report()).status is ClusterStatus.RUNNING


async def test_an_action_that_crashes_is_logged_and_pauses(cluster: Cluster) -> None:
    """Not once for each step."""
    for agent in cluster.agents:
        await cluster.move_member(agent, MemberStatus.READY, None, fabric_addr="10.0.0.1")
    pods = Pods({agent.id: Crashing({"clock": "1", "conf": "none", "lacks": ""}) for agent in cluster.agents})
    with capture_logs() as logs:
        await steps(job_of(cluster.rows, pods), cluster)
    crashes = [one for one in logs if one["event"] == "cluster_action_crashed"]
    assert 1 <= len(crashes) <= len(cluster.agents)
    assert crashes[0]["exc_info"] is not None


class Crashing(Pod):
    """A pod whose answers to anything but a probe run into a bug."""

    async def run(self, command: str, *, stdin: bytes = b"", timeout_s: float) -> Completed:
        done = await super().run(command, stdin=stdin, timeout_s=timeout_s)
        if self.ran:
            raise ZeroDivisionError
        return done


async def test_a_probe_that_crashes_is_logged_and_not_repeated_at_once(cluster: Cluster) -> None:
    pods = Pods({agent.id: Pod(raises=ZeroDivisionError("a bug")) for agent in cluster.agents})
    with capture_logs() as logs:
        await steps(job_of(cluster.rows, pods), cluster)
    assert [one["event"] for one in logs].count("cluster_probe_crashed") == len(cluster.agents)
    assert {one.status for one in (await cluster.report()).members} == {MemberStatus.READY}


async def test_what_a_probe_says_is_in_the_row_with_the_next_tick(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A steady cluster is read once in a while: people do not wait for that."""
    monkeypatch.setattr(leader_job, "STEADY_S", 1_000.0)
    pods = Pods({agent.id: Pod({"clock": "1"}) for agent in cluster.agents})
    await steps(job_of(cluster.rows, pods), cluster, 2)
    assert all("clock_skew_s" in one.adapter_detail for one in (await cluster.report()).members)


async def test_a_member_that_ssh_does_not_reach_is_probed_again_soon(cluster: Cluster) -> None:
    """The second failure in a row is told."""
    job = job_of(cluster.rows, Pods())
    await steps(job, cluster, 1)
    cluster.fleet.wait(probing.AGAIN_S + 1)
    assert not any("unreached_since" in one.adapter_detail for one in (await cluster.report()).members)
    await steps(job, cluster, 2)
    assert all("unreached_since" in one.adapter_detail for one in (await cluster.report()).members)


async def test_a_step_that_is_overtaken_by_the_end_of_leadership_begins_nothing(cluster: Cluster) -> None:
    """Its report was read before; the pods are another leader's now."""
    pods = Pods({agent.id: Pod() for agent in cluster.agents})

    class Slow:
        """Rows whose report arrives when the process no longer leads."""

        def __getattr__(self, name: str) -> Callable[..., Any]:
            method: Callable[..., Any] = getattr(cluster.rows, name)
            return method

        async def report(self) -> ClusterReport:
            report = await cluster.rows.report()
            await job.stop()
            return report

    job = job_of(Slow(), pods)  # type: ignore[arg-type]
    await job.step(cluster.fleet.term)
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("probe:")] == []


async def test_a_reconcile_that_a_leader_took_and_did_not_finish_is_done_by_the_next(cluster: Cluster) -> None:
    """It died after it had taken the operation: the operation does not wait for its deadline."""
    for agent in cluster.agents:
        await cluster.move_member(agent, MemberStatus.READY, None, fabric_addr="10.0.0.1")
    answer = await cluster.rows.reconcile(NAME, cluster.agents[1].id, actor="ann")
    (operation,) = answer["operations"]
    taken = [OperationStatus.ACCEPTED], OperationStatus.DISPATCHED
    await cluster.rows.move_operation(cluster.fleet.term, operation["id"], *taken)
    pods = Pods({agent.id: Pod({"clock": "1", "conf": SHA, "lacks": ""}) for agent in cluster.agents})
    await steps(job_of(cluster.rows, pods), cluster)
    (seen,) = (one for one in (await cluster.report()).operations if one.id == operation["id"])
    assert seen.status is OperationStatus.SUCCEEDED


async def test_a_drain_that_a_leader_took_and_did_not_finish_is_done_by_the_next(cluster: Cluster) -> None:
    answer = await cluster.rows.drain(NAME, cluster.agents[1].id, actor="ann")
    (operation,) = answer["operations"]
    taken = [OperationStatus.ACCEPTED], OperationStatus.DISPATCHED
    await cluster.rows.move_operation(cluster.fleet.term, operation["id"], *taken)
    pods = Pods({agent.id: Pod({"clock": "1"}) for agent in cluster.agents})
    await steps(job_of(cluster.rows, pods), cluster)
    assert (await cluster.report()).members[1].status is MemberStatus.DRAINING


async def test_a_member_with_the_largest_possible_details_can_still_be_lost(
    cluster: Cluster, hand: AsyncConnection[DictRow]
) -> None:
    """Whatever a user wrote there: the cluster does not keep a node whose worker has ended."""
    agent = cluster.agents[1]
    text = "x" * 16_370
    await hand.execute(
        "update cluster_members set adapter_detail = jsonb_build_object('own', %s::text) where worker_id = %s",
        (text, agent.id),
    )
    await cluster.fleet.end(agent.id, State.ACTIVE)
    await cluster.fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
    await steps(job_of(cluster.rows, Pods()), cluster)
    assert (await cluster.report()).members[1].status is MemberStatus.FAILED


async def test_a_smoke_job_that_waits_in_slurm_is_said_and_asked_about_later(cluster: Cluster) -> None:
    """It is no failure, and the leader reads the controller's pod meanwhile."""
    for agent in cluster.agents:
        await cluster.move_member(agent, MemberStatus.READY, None, fabric_addr="10.0.0.1")
    await cluster.move(ClusterStatus.RUNNING, ClusterStatus.DEGRADED)
    lines = {"clock": "1", "conf": SHA, "lacks": "", "ping": "up"}
    pods = Pods({agent.id: Pod(lines, smoke=b"waits=Resources, behind job 7 (task-1)\n") for agent in cluster.agents})
    with capture_logs() as logs:
        await steps(job_of(cluster.rows, pods), cluster)
    waits = "the smoke job, which waits in Slurm's queue: Resources, behind job 7 (task-1)"
    assert (await cluster.report()).waiting_for == waits
    assert sum("cluster-smoke" in one for one in pods.pods[cluster.agents[0].id].ran) == 1
    assert [one for one in logs if one["event"] == "cluster_action_failed"] == []


@pytest.mark.parametrize("value", ['"text"', "[1]", "7", "true"])
async def test_a_smoke_evidence_that_is_no_object_is_none(
    cluster: Cluster, hand: AsyncConnection[DictRow], value: str
) -> None:
    await cluster.move(ClusterStatus.RUNNING, ClusterStatus.DEGRADED)
    await hand.execute("update cluster_apps set smoke_evidence = %s::jsonb", (value,))
    with capture_logs() as logs:
        await steps(job_of(cluster.rows, Pods()), cluster, 2)
    assert [one for one in logs if one["event"] == "cluster_plan_failed"] == []


async def test_a_cluster_whose_pool_was_removed_fails_after_a_while(cluster: Cluster) -> None:
    """Nobody else would end it: the row would say running for ever, and its name would be taken."""
    job = job_of(cluster.rows, Pods(), {})
    await steps(job, cluster, 1)
    assert (await cluster.report()).status is ClusterStatus.RUNNING
    cluster.fleet.wait(NO_POOL_S)
    await steps(job, cluster, 1)
    found = await cluster.report()
    assert (found.status, found.failure_code) == (ClusterStatus.FAILED, FailureCode.POOL_REMOVED)
    assert {one.status for one in found.members} == {MemberStatus.FAILED}


async def test_a_cluster_whose_pool_was_removed_can_be_deleted(cluster: Cluster) -> None:
    """Its workers end as idle ones of a pool that nobody knows."""
    await cluster.rows.delete(NAME, actor="ann")
    for agent in cluster.agents:
        await cluster.fleet.end(agent.id, State.ACTIVE)
        await cluster.fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
    await steps(job_of(cluster.rows, Pods(), {}), cluster)
    assert (await cluster.report()).status is ClusterStatus.DELETED


DEEP = "(select ('{\"a\": ' || repeat('[', 3000) || repeat(']', 3000) || '}')::jsonb)"
HOSTILE = [
    "update cluster_apps set created_at = 'infinity', status_since = '-infinity' where id = 'train'",
    "update cluster_apps set deadline_at = '-infinity', smoke_at = 'infinity' where id = 'train'",
    "update cluster_apps set delete_requested_at = '-infinity' where id = 'train'",
    "update cluster_apps set nodes = 64, max_nodes = 64 where id = 'train'",
    "update cluster_apps set nodes = 0, min_nodes = 0 where id = 'train'",
    "update cluster_apps set pool = '' where id = 'train'",
    "update cluster_apps set pool = repeat('x', 100000) where id = 'train'",
    "update cluster_apps set smoke_evidence = DEEP where id = 'train'",
    "update cluster_apps set status = 'degraded', smoke_evidence = '[]' where id = 'train'",
    "update cluster_members set status_since = 'infinity', created_at = '-infinity'",
    "update cluster_members set status_since = '-infinity', status = 'reconciling'",
    "update cluster_members set fabric_addr = 'fe80::1%eth0', hostname = '$(reboot)', ssh_host = '; reboot'",
    "update cluster_members set fabric_addr = null, status = 'reconciling'",
    "update cluster_members set adapter_detail = DEEP",
    """update cluster_members set adapter_detail = '{"cpus": 1e400, "memory_mb": "x", "gpu_files": [], "error": {}}'""",
    "update cluster_members set node_name = 'n' || index_no, index_no = 63 - index_no",
    """insert into cluster_members (cluster, worker_id, role, node_name, index_no)
       values ('train', E'\n', 'worker', 'x', 9)""",
    "delete from cluster_members",
    """insert into member_operations (cluster, worker_id, kind, actor, deadline_at)
       select 'train', null, k, repeat('x', 400), 'infinity' from unnest(array['drain', 'reconcile', 'remove']) k""",
    """insert into member_operations (cluster, worker_id, kind, actor, deadline_at, evidence)
       select 'train', 'nobody', 'bootstrap_ssh', '', '-infinity', DEEP""",
    """insert into node_tasks (cluster, worker_id, kind, payload, via, deadline_at)
       select 'train', worker_id, 'allocation.reconcile_managed_authorized_key', '{"key": [1]}', 'agent', 'infinity'
         from cluster_members""",
    """update workers set last_heartbeat = 'infinity', created_at = '-infinity', promoted_at = null
        where cluster = 'train'""",
    "update workers set gpu_count = 2147483647, price_usd_per_hour = 'NaN' where cluster = 'train'",
    "update workers set ssh_host = '', ssh_port = 1, nonce = null, token_jti = null where cluster = 'train'",
    "update workers set cluster = 'nobody' where cluster = 'train'",
    "delete from cluster_apps where id = 'train'",
]


@pytest.mark.parametrize("statement", HOSTILE)
async def test_a_row_that_a_user_wrote_affects_its_own_cluster_only(
    fleet: Fleet, cluster: Cluster, hand: AsyncConnection[DictRow], statement: str
) -> None:
    """The next ticks have their snapshot, and another cluster goes on."""
    for agent in cluster.agents:
        await cluster.move_member(agent, MemberStatus.READY, None, fabric_addr="10.0.0.1")
    other = Cluster(fleet, OTHER, OTHER)
    await other.create(1)
    try:
        await hand.execute(statement.replace("DEEP", DEEP).encode())
    except (DataError, IntegrityError):  # the database refused it
        return
    pods = Pods({agent.id: Pod({"clock": "1", "conf": SHA, "lacks": ""}) for agent in cluster.agents})
    job = job_of(cluster.rows, pods, {POOL: ClusterPolicy(sha_of), OTHER: ClusterPolicy(sha_of)})
    with capture_logs() as logs:
        await steps(job, cluster, 5)
    assert [one for one in logs if one["event"] in {"cluster_plan_failed", "cluster_probe_crashed"}] == []
    assert (await other.report()).status is ClusterStatus.ALLOCATING
    assert (await SqlStore(fleet.db, FLEET).snapshot()).clusters
