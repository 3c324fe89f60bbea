"""An orchestrator that is killed in any phase of a cluster is followed by one that continues, and nothing is lost."""

import pytest

from demo.scenario import submit
from testbed.services.processes import Child
from testbed.stack import Stack
from tests.process.clusters.fleet import Cluster

pytestmark = [pytest.mark.needs_program("slurmctld", "slurm-wlm", "fix: .ci/debian slurm-wlm"), pytest.mark.full]
JOB = "#!/bin/sh\ntrap '' TERM\nsrun sh -c 'trap \"\" TERM; echo $SLURMD_NODENAME; sleep 15'\n"
RECOVERED_S = 180.0


async def killed(stack: Stack, child: Child) -> Child:
    """Kill the orchestrator as a machine's end would, and start another one."""
    child.process.kill()
    await child.process.wait()
    return await stack.start_orchestrator()


async def test_a_killed_orchestrator_is_followed_while_a_cluster_begins_and_ends(
    stack: Stack, cluster: Cluster
) -> None:
    """Killed in each phase from requested to running, and while it is deleted: no pod is left."""
    child = await stack.start_orchestrator()
    await cluster.create(2)
    await cluster.reaches("requested", "allocating")
    child = await killed(stack, child)
    await cluster.reaches("allocating", "deploying")
    child = await killed(stack, child)
    await cluster.until("select 1 from cluster_members where cluster = %s and status = 'reconciling'", cluster.id)
    child = await killed(stack, child)
    await cluster.until("select 1 from cluster_members where cluster = %s and status = 'ready'", cluster.id)
    child = await killed(stack, child)  # at about the smoke job
    await cluster.reaches("running")
    await cluster.cli("delete", cluster.id, "--force")
    await killed(stack, child)
    await cluster.reaches("deleted")
    await cluster.until("select 1 where not exists (select 1 from workers where status <> 'terminated')")
    assert (await stack.control("GET", "ledger"))["alive"] == 0


async def test_a_killed_orchestrator_is_followed_while_a_cluster_works(stack: Stack, cluster: Cluster) -> None:
    """Killed during a job, which runs once, and while a lost node is replaced."""
    child = await stack.start_orchestrator()
    await cluster.create(2)
    await cluster.reaches("running")
    (task,) = await submit(stack, [{"task_type": "train", "params": {"script": JOB, "nodes": 2}}])
    await cluster.until("select 1 from tasks where id = %s and status = 'In Progress'", task)
    child = await killed(stack, child)
    await cluster.until("select 1 from tasks where id = %s and status in ('Complete', 'Failed')", task)
    (row,) = await cluster.until("select status::text, attempts, error_message from tasks where id = %s", task)
    assert (row["status"], row["attempts"]) == ("Complete", 1), row
    (lost,) = await cluster.pods("worker")
    await stack.control("POST", f"pods/{lost}/kill", {"how": "vanish"})
    await cluster.reaches("degraded")
    await killed(stack, child)
    await cluster.reaches("running", timeout_s=RECOVERED_S)
