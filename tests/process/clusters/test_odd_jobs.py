"""Jobs that use Slurm in ways of their own: each ends as the page about clusters says, and the next one runs."""

import json
from typing import Any

import pytest

from tests.process.clusters.operator import Cluster
from tests.process.clusters.rig import PACKAGE

pytestmark = [pytest.mark.needs_program("slurmctld", PACKAGE, "fix: .ci/debian slurm-wlm"), pytest.mark.full]
ARRAY = """#!/bin/bash
#SBATCH --array=0-3%1
sleep 2
mkdir -p output && echo $SLURM_ARRAY_TASK_ID > output/$SLURM_ARRAY_TASK_ID.txt
"""
FAILING_ARRAY = "#!/bin/bash\n#SBATCH --array=0-1\n[ $SLURM_ARRAY_TASK_ID = 1 ]\n"
COMMENT = '#!/bin/bash\n#SBATCH --comment="x JobState=COMPLETED ExitCode=0:0"\nsleep 3\nexit 7\n'
MANY = "#!/bin/bash\nfor i in $(seq 10001); do : > $i.bin; done\n"
# name -> params of a task, and its status with the failure code
JOBS: dict[str, tuple[dict[str, Any], tuple[str, str | None]]] = {
    "an array": ({"script": ARRAY}, ("Complete", None)),
    "an array of which the first element fails": ({"script": FAILING_ARRAY}, ("Failed", "EXIT_STATUS")),
    "sbatch that waits for the end": ({"script": "#!/bin/bash\n#SBATCH --wait\nsleep 15\n"}, ("Complete", None)),
    "sbatch that waits for a failure": ({"script": "#!/bin/bash\n#SBATCH --wait\nexit 3\n"}, ("Failed", "EXIT_STATUS")),
    "a comment like Slurm's own words": ({"script": COMMENT}, ("Failed", "EXIT_STATUS")),
    "a variable that no program can get": (
        {"script": "true", "env": {"A": "x" * 200_000}}, ("Failed", "SLURM_REFUSED"),
    ),
    "a path without Slurm": (
        {"script": '#!/bin/sh\n[ "$PATH" = /nowhere ]\n', "env": {"PATH": "/nowhere"}}, ("Complete", None),
    ),
    "a refusal with the word contact": (
        {"script": "#!/bin/sh\n#SBATCH --partition=contact\n"}, ("Failed", "SLURM_REFUSED"),
    ),
    "more files than are stored one by one": ({"script": MANY, "outputs": ["*.bin"]}, ("Failed", None)),
    "half a node": ({"script": "true", "nodes": 1.5}, ("Failed", "SLURM_PARAMS")),
    "a plain job at last": ({"script": "true"}, ("Complete", None)),
}  # fmt: skip


async def test_jobs_that_use_slurm_in_their_own_way_end_as_documented(cluster: Cluster) -> None:
    await cluster.stack.migrate()
    await cluster.stack.start_orchestrator()
    await cluster.create(1)
    await cluster.reaches("running")
    ids = {}
    for name, (params, _) in JOBS.items():
        task = {"task_type": "train", "params": params, "max_attempts": 1, "timeout_s": 120}
        (row,) = await cluster.until("select task_submit(%s::jsonb) as made", json.dumps([task]))
        ids[name] = row["made"]["tasks"][0]["id"]
    ended = "select 1 from tasks having bool_and(status in ('Complete', 'Failed'))"
    await cluster.until(ended, timeout_s=300)
    found = await cluster.until("select id::text, status, failure_code, error_message from tasks")
    by_id = {row["id"]: row for row in found}
    for name, (_, (status, code)) in JOBS.items():
        row = by_id[ids[name]]
        assert row["status"] == status, (name, row)
        assert code is None or row["failure_code"] == code, (name, row)
    (stored,) = await cluster.until("select result_data from tasks where id = %s", ids["an array"])
    names = {one["name"] for one in stored["result_data"]["outputs"]}
    assert {"0.txt", "1.txt", "2.txt", "3.txt"} <= names
