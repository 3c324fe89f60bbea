"""The nodes of a cluster follow its tasks, from none and back to none, and no change of size ends a job."""

import pytest

from demo.scenario import submit
from testbed.stack import Stack
from tests.process.clusters.fleet import Sql
from tests.process.clusters.operator import Cluster

pytestmark = [pytest.mark.needs_program("slurmctld", "slurm-wlm", "fix: .ci/debian slurm-wlm"), pytest.mark.full]
JOB = "#!/bin/sh\nsrun sleep 45\n"


async def test_a_cluster_grows_for_a_job_keeps_it_through_a_drain_and_releases_its_nodes(
    stack: Stack, sql: Sql, cluster: Cluster
) -> None:
    """The drained node is replaced while the job runs, so slurmctld starts again; the job runs once."""
    await stack.start_orchestrator()
    await cluster.create(1, "--min-nodes", "0", "--max-nodes", "2")
    await stack.run("cluster", "list")
    assert not await (await sql.execute("select 1 from workers")).fetchall()
    (task,) = await submit(stack, [{"task_type": "train", "params": {"script": JOB, "nodes": 2}}])
    await cluster.reaches("running")
    await cluster.until("select 1 from tasks where id = %s and progress::text like '%%RUNNING%%'", task)
    (drained,) = await cluster.until(
        "select worker_id from cluster_members where cluster = %s and role = 'worker' and status = 'ready'", cluster.id
    )
    await cluster.cli("drain", cluster.id, drained["worker_id"])
    await cluster.until("select 1 from tasks where id = %s and status in ('Complete', 'Failed')", task)
    (row,) = await cluster.until("select status::text, attempts, error_message from tasks where id = %s", task)
    assert (row["status"], row["attempts"]) == ("Complete", 1), row
    await cluster.reaches("requested")
    await cluster.until("select 1 where not exists (select 1 from workers where status <> 'terminated')")
    assert (await stack.control("GET", "ledger"))["alive"] == 0
