"""The smoke job under a queue that is never empty: it ends no job, and has its turn before the next one."""

import time
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from orchestrator.clusters import node
from orchestrator.clusters.node import SmokeResult
from orchestrator.core.clusters.view import Configuration
from tests.process.clusters.rig import PACKAGE, Member, Rig, eventually

pytestmark = pytest.mark.needs_program("slurmctld", PACKAGE, f".ci/debian {PACKAGE}")


async def submitted(controller: Member, flag: Path, name: str) -> str:
    """Submit a job that has all nodes for itself until there is the flag; its id."""
    script = flag.with_name(f"{name}.sh")
    script.write_text(f"#!/bin/sh\nuntil [ -e {flag} ]; do sleep 0.1; done\n")
    words = f"--parsable --job-name={name} -N2 --exclusive -o /dev/null --nodelist={controller.name.text}"
    return (await controller.shell(f"sbatch {words} {script}")).strip()


async def field(controller: Member, job: str, name: str) -> str:
    """One field of a job, as slurmctld shows it."""
    line = await controller.shell(f"scontrol --oneliner show job {job}")
    return dict(word.partition("=")[::2] for word in line.split()).get(name, "")


async def smoke(controller: Member, conf: Configuration, nodes: int = 2) -> SmokeResult:
    """One try."""
    return await node.smoke(controller.session, conf, nodes, clock=time.monotonic)


async def has_run(controller: Member, conf: Configuration, nodes: int = 2) -> bool:
    """Whether the smoke job has run; a slow machine may need several tries."""
    result = await smoke(controller, conf, nodes)
    assert result.error is None
    return len(result.nodes) == nodes


async def test_a_smoke_job_waits_for_the_running_job_and_runs_before_the_next_one(rig: Rig) -> None:
    controller, _ = await rig.add(), await rig.add()
    conf = await rig.deploy()
    first_ends, second_ends = rig.directory / "first", rig.directory / "second"
    first = await submitted(controller, first_ends, "task-1")

    async def is_running() -> bool:
        return await field(controller, first, "JobState") == "RUNNING"

    await eventually(is_running, "the first job runs")
    result = await smoke(controller, conf)
    assert (result.error, result.nodes) == (None, ())
    assert result.waits is not None
    assert f"behind job {first} (task-1)" in result.waits
    second = await submitted(controller, second_ends, "task-2")
    assert (await smoke(controller, conf)).waits is not None
    names = (await controller.shell("squeue -h -t PENDING -o %j")).split()
    assert sorted(names) == ["cluster-smoke", "task-2"]  # a second call submits no second job
    waiting = (await controller.shell("squeue -h --name=cluster-smoke -o %i")).strip()

    first_ends.touch()
    await eventually(partial(has_run, controller, conf), "the smoke job has run")
    assert await field(controller, first, "JobState") == "COMPLETED"

    async def has_begun() -> bool:
        return await field(controller, second, "JobState") == "RUNNING"

    await eventually(has_begun, "the second job runs")
    began = [datetime.fromisoformat(await field(controller, job, "StartTime")) for job in (waiting, second)]
    assert began[0] <= began[1]
    second_ends.touch()


async def test_a_smoke_job_that_waits_for_more_nodes_than_there_are_now_is_replaced(rig: Rig) -> None:
    """The cluster was scaled down meanwhile."""
    controller, _ = await rig.add(), await rig.add()
    conf = await rig.deploy()
    ends = rig.directory / "ends"
    await submitted(controller, ends, "task-1")
    assert (await smoke(controller, conf)).waits is not None
    assert (await smoke(controller, conf, 1)).waits is not None
    assert (await controller.shell("squeue -h --name=cluster-smoke -o %D")).split() == ["1"]
    ends.touch()
    await eventually(partial(has_run, controller, conf, 1), "the smoke job has run")


async def test_a_smoke_job_without_enough_nodes_has_slurms_reason_and_runs_when_they_are_back(rig: Rig) -> None:
    controller, worker = await rig.add(), await rig.add()
    conf = await rig.deploy()
    await controller.shell(f"scontrol update NodeName={worker.name.text} State=DOWN Reason=test")
    result = await smoke(controller, conf)
    assert (result.error, result.nodes) == (None, ())
    assert result.waits
    assert "behind" not in result.waits
    await controller.shell(f"scontrol update NodeName={worker.name.text} State=RESUME")

    await eventually(partial(has_run, controller, conf), "both nodes answer")
