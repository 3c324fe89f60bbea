"""The life of a Slurm cluster: it is created, used, damaged, made smaller and deleted, and nothing is left of it."""

from pathlib import Path

import psutil
import pytest

from demo.scenario import submit
from testbed import audit
from testbed.runpod import watchdog
from testbed.stack import Stack
from tests.process.clusters.fleet import Sql
from tests.process.clusters.operator import Cluster

pytestmark = pytest.mark.needs_program("slurmctld", "slurm-wlm", "fix: .ci/debian slurm-wlm")
SCRIPT = """#!/bin/sh
srun sh -c 'echo rank $SLURM_PROCID on $SLURMD_NODENAME' >hosts.txt
sort hosts.txt
"""
TRANSITIONS = """
    select from_state, to_state from cluster_events
     where cluster = %s and subject = 'cluster' and from_state is distinct from to_state order by id
"""


async def test_a_cluster_runs_jobs_replaces_a_node_is_made_smaller_and_ends(
    stack: Stack, sql: Sql, cluster: Cluster, tmp_path: Path
) -> None:
    """From `cluster create` to an empty account, over the command line, the queue and real Slurm."""
    await stack.start_orchestrator()
    await cluster.create(2)
    await cluster.reaches("running")
    await _job(stack, cluster, tmp_path / "first")

    (lost,) = [row["pod"] for row in await cluster.ready("worker")]
    await stack.control("POST", f"pods/{lost}/kill", {"how": "vanish"})
    await cluster.reaches("degraded")
    await cluster.reaches("running", timeout_s=180)
    assert lost not in [row["pod"] for row in await cluster.ready("worker")]
    await _job(stack, cluster, tmp_path / "second")

    await cluster.cli("scale", cluster.id, "1", "--min-nodes", "1")
    await cluster.until(
        """select 1 where (select count(*) from workers where status <> 'terminated') = 1
              and (select count(*) from cluster_members where cluster = %s and status = 'ready') = 1""",
        cluster.id,
    )
    await cluster.delete()
    await cluster.reaches("deleted")
    await _nothing_is_left(stack, sql, cluster)
    moves = [(row["from_state"], row["to_state"]) for row in await cluster.until(TRANSITIONS, cluster.id)]
    order = ["requested", "allocating", "deploying", "running", "degraded", "running", "deleting", "deleted"]
    assert [to_state for _, to_state in moves][-len(order) + 1 :] == order[1:]


async def _job(stack: Stack, cluster: Cluster, into: Path) -> None:
    """Run a job on both nodes through the task queue; each of them answers, and the output can be fetched."""
    params = {"script": SCRIPT, "nodes": 2, "outputs": ["hosts.txt"]}
    (task,) = await submit(stack, [{"task_type": "train", "params": params}])
    await cluster.until("select 1 from tasks where id = %s and status in ('Complete', 'Failed')", task)
    (row,) = await cluster.until("select status::text, failure_code, error_message from tasks where id = %s", task)
    assert row["status"] == "Complete", row
    status, out, err = await stack.run("tasks", "output", task, "-o", str(into))
    assert status == 0, err or out
    lines = (into / "hosts.txt").read_text().splitlines()
    assert sorted(line.split()[1] for line in lines) == ["0", "1"]
    assert len({line.split()[3] for line in lines}) == 2


async def _nothing_is_left(stack: Stack, sql: Sql, cluster: Cluster) -> None:
    """No worker, pod, process, lost task or missing log; the books are what the provider's are."""
    await cluster.until("select 1 where not exists (select 1 from workers where status <> 'terminated')")
    ledger = await stack.control("GET", "ledger")
    assert ledger["alive"] == 0
    summary = await audit.count(sql, ledger, stack.blobs(), submitted=2)
    assert audit.faults(summary) == [], summary
    left: list[psutil.Process] = watchdog.find(watchdog.below(str(stack.directory / "runpod" / "pods")))
    assert [process.cmdline() for process in left] == []
