"""A worker that is asked to end while a Slurm job runs on its node: the job ends first, and its task runs once."""

import pytest

from demo.scenario import submit
from testbed.stack import Stack
from tests.process.clusters.operator import Cluster

pytestmark = [pytest.mark.needs_program("slurmctld", "slurm-wlm", "fix: .ci/debian slurm-wlm"), pytest.mark.full]
JOB = "#!/bin/sh\nsrun sleep 30\n"
GONE = "select 1 from workers where id = %s and status = 'terminated'"


@pytest.mark.parametrize("role", ["worker", "controller"])
async def test_a_job_on_a_node_whose_worker_is_asked_to_end_is_completed(
    stack: Stack, cluster: Cluster, role: str
) -> None:
    """A node drains; the controller serves its task to the end, then another member takes over."""
    await stack.start_orchestrator()
    await cluster.create(2)
    await cluster.reaches("running")
    (asked,) = await cluster.until(
        "select worker_id from cluster_members where cluster = %s and role = %s and status = 'ready'", cluster.id, role
    )
    (task,) = await submit(stack, [{"task_type": "train", "params": {"script": JOB, "nodes": 2}}])
    await cluster.until("select 1 from tasks where id = %s and progress::text like '%%RUNNING%%'", task)
    status, out, err = await stack.run("terminate", asked["worker_id"], "--force")
    assert status == 0, err or out
    (ending,) = await cluster.until(
        """select waiting_for from workers
            where id = %s and status = 'terminating' and waiting_for not like '%%may hold%%'""",
        asked["worker_id"],
    )
    waits = f"the Slurm jobs on its node of cluster {cluster.id} to end" if role == "worker" else f"{task} attempt 1"
    assert waits in ending["waiting_for"]
    await cluster.until("select 1 from tasks where id = %s and status in ('Complete', 'Failed')", task)
    (row,) = await cluster.until("select status::text, attempts, error_message from tasks where id = %s", task)
    assert (row["status"], row["attempts"]) == ("Complete", 1), row
    await cluster.until(GONE, asked["worker_id"])
    await cluster.until(
        """select 1 from cluster_apps c where id = %s and status = 'running' and nodes =
             (select count(*) from cluster_members m where m.cluster = c.id and m.status = 'ready')""",
        cluster.id, timeout_s=240.0,
    )  # fmt: skip
