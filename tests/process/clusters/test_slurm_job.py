"""The handler `slurm`: a real agent on the controller runs tasks as jobs of a real Slurm over two nodes."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest

from orchestrator.clusters import node
from tests.process.clusters.rig import PACKAGE, Rig, environment, eventually, processes_with
from tests.process.worker.scripted import Orchestrator, Pod
from worker.podstop import NAMES
from worker.slurm_client import unreached

pytestmark = pytest.mark.needs_program("slurmctld", PACKAGE, f".ci/debian {PACKAGE}")


@pytest.fixture
async def orchestrator() -> AsyncIterator[Orchestrator]:
    with Orchestrator() as one:
        yield one


@pytest.fixture
async def pod(rig: Rig, orchestrator: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pod]:
    """The controller of a cluster of two, with an agent."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    controller, _ = await rig.add(), await rig.add()
    await rig.deploy()
    env = {**environment(), "HOME": str(controller.home)}
    pod = Pod(controller.home, orchestrator, env=env)
    await asyncio.to_thread(pod.start, {"train": "slurm"}, heartbeat_s=0.1)
    yield pod
    assert (await asyncio.to_thread(pod.stop, grace_s=0))["stopped"]


async def jobs(rig: Rig) -> str:
    return await rig.members[0].shell("squeue -h -o '%j %T'")


async def ends(rig: Rig) -> None:
    """Wait until Slurm has no job."""

    async def none() -> bool:
        return await jobs(rig) == ""

    await eventually(none, "every job ends")


async def running(rig: Rig) -> None:
    async def one() -> bool:
        return (await jobs(rig)).endswith(" RUNNING\n")

    await eventually(one, "the job starts")


async def failure(orchestrator: Orchestrator, task_id: str) -> dict[str, Any]:
    return await asyncio.to_thread(orchestrator.failure, task_id)


async def test_a_job_runs_on_two_nodes_and_its_files_are_stored(rig: Rig, orchestrator: Orchestrator, pod: Pod) -> None:
    script = (
        "srun sh -c 'echo \"$SLURMD_NODENAME $GREETING\" ' > output/names\necho from the script; echo 1 >loss.csv\n"
    )
    params = {"script": script, "nodes": 2, "env": {"GREETING": "hello"}, "outputs": ["*.csv", "../*", "/etc/passwd"]}
    orchestrator.submit("both", "train", params)
    result = (await asyncio.to_thread(orchestrator.completion, "both"))["p_result_data"]
    assert sorted(one["name"] for one in result["outputs"]) == ["loss.csv", "names", "slurm.out"]
    names = orchestrator.objects["outputs/both/1/names"].decode().splitlines()
    assert sorted(names) == [f"{member.name.text} hello" for member in rig.members]
    assert orchestrator.objects["outputs/both/1/slurm.out"] == b"from the script\n"
    assert result["slurm"]["state"] == "COMPLETED"
    assert "from the script\n" in pod.log("handler")

    orchestrator.submit("words", "train", {"command": ["sh", "-c", 'echo $SLURMD_NODENAME; echo "it\'s"'], "nodes": 2})
    await asyncio.to_thread(orchestrator.completion, "words")
    lines = sorted(orchestrator.objects["outputs/words/1/slurm.out"].decode().splitlines())
    assert lines == sorted([*(member.name.text for member in rig.members), "it's", "it's"])


async def test_a_failed_job_has_its_exit_status_and_its_output(orchestrator: Orchestrator, pod: Pod) -> None:
    orchestrator.submit("three", "train", {"script": "echo why; exit 3"})
    failed = await failure(orchestrator, "three")
    assert (failed["code"], failed["retryable"]) == ("EXIT_STATUS", True)
    assert "exit status 3" in failed["message"]
    assert "why" in failed["detail"]["log"]
    assert orchestrator.objects["outputs/three/1/slurm.out"] == b"why\n"


async def test_a_job_over_its_time_limit_is_ended(rig: Rig, orchestrator: Orchestrator, pod: Pod) -> None:
    orchestrator.submit("long", "train", {"command": ["sleep", "7654"], "nodes": 2, "time_limit_s": 1})
    failed = await failure(orchestrator, "long")
    assert (failed["code"], failed["retryable"]) == ("SLURM_TIME_LIMIT", True)
    await ends(rig)


@pytest.mark.parametrize("how", ["cancelled", "timeout", "stopped"])
async def test_a_job_ends_with_its_task(rig: Rig, orchestrator: Orchestrator, pod: Pod, how: str) -> None:
    sleep = f"9{hash(str(rig.directory)) % 10**8}"
    params = {"command": ["sleep", sleep], "nodes": 2}
    orchestrator.submit("task", "train", params, timeout_s=20.0 if how == "timeout" else None)
    await running(rig)
    if how == "cancelled":
        orchestrator.tell(cancel={"task"})
        assert (await failure(orchestrator, "task"))["code"] == "CANCELLED"
    elif how == "timeout":
        assert (await failure(orchestrator, "task"))["code"] == "TIMEOUT"
    else:
        await asyncio.to_thread(pod.stop, grace_s=0)
    await ends(rig)
    assert processes_with(f"sleep {sleep}") == []


async def test_a_job_of_an_agent_that_was_killed_ends_before_the_next_one(
    rig: Rig, orchestrator: Orchestrator, pod: Pod
) -> None:
    controller = rig.members[0]
    await controller.shell("sbatch -N2 --exclusive --job-name=task-old-1 -o /dev/null --wrap 'sleep 6543'")
    await controller.shell("sbatch -N2 --exclusive --job-name=mine --hold -o /dev/null --wrap 'sleep 6543'")
    await running(rig)
    orchestrator.submit("next", "train", {"command": ["true"], "nodes": 2})
    await asyncio.to_thread(orchestrator.completion, "next")
    assert await jobs(rig) == "mine PENDING\n"
    await controller.shell("scancel --name=mine")


async def test_a_lost_node_and_a_cancelled_job_are_different_failures(
    rig: Rig, orchestrator: Orchestrator, pod: Pod
) -> None:
    controller, worker = rig.members
    orchestrator.submit("lost", "train", {"command": ["sleep", "5432"], "nodes": 2})
    await running(rig)
    worker.kill("slurmd")
    await controller.shell(f"scontrol update NodeName={worker.name.text} State=DOWN Reason=gone")
    failed = await failure(orchestrator, "lost")
    assert (failed["code"], failed["retryable"]) == ("SLURM_NODE_FAILED", True)
    await ends(rig)

    orchestrator.submit("alone", "train", {"command": ["sleep", "5432"]})
    await running(rig)
    await controller.shell("scancel --user=$(id -un)")
    failed = await failure(orchestrator, "alone")
    assert (failed["code"], failed["retryable"]) == ("SLURM_CANCELLED", False)


async def test_a_node_without_its_slurmd_is_not_reached(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent looks itself: slurmctld notices it half a minute later than the job."""
    controller, worker = await rig.add(), await rig.add()
    await rig.deploy()
    monkeypatch.setenv("SLURM_CONF", f"{controller.root}/etc/slurm.conf")
    names = f"{controller.name.text},{worker.name.text}"
    assert await asyncio.to_thread(unreached, names) is None
    worker.kill("slurmd")
    assert await asyncio.to_thread(unreached, names) == worker.name.text


async def test_a_job_that_slurmctld_forgot_is_lost(rig: Rig, orchestrator: Orchestrator, pod: Pod) -> None:
    controller = rig.members[0]
    orchestrator.submit("lost", "train", {"command": ["sleep", "4321"]})
    await running(rig)
    controller.kill("slurmctld")
    shutil.rmtree(controller.root / "state")
    await rig.deploy()
    failed = await failure(orchestrator, "lost")
    assert (failed["code"], failed["retryable"]) == ("SLURM_JOB_LOST", True)


@pytest.mark.parametrize(
    ("params", "code", "retryable"),
    [
        (None, "SLURM_PARAMS", False),
        ({"script": "true", "command": ["true"]}, "SLURM_PARAMS", False),
        ({"command": "true"}, "SLURM_PARAMS", False),
        ({"command": ["true"], "nodes": 65}, "SLURM_PARAMS", False),
        ({"command": ["true"], "env": {"A=B": "c"}}, "SLURM_PARAMS", False),
        ({"command": ["true"], "gpus_per_node": 9}, "SLURM_REFUSED", True),
    ],
)
async def test_a_job_that_cannot_run_is_refused(
    orchestrator: Orchestrator, pod: Pod, params: Any, code: str, retryable: bool
) -> None:
    orchestrator.submit("bad", "train", params)
    failed = await failure(orchestrator, "bad")
    assert (failed["code"], failed["retryable"]) == (code, retryable)


async def test_without_a_cluster_the_task_is_released(rig: Rig, orchestrator: Orchestrator) -> None:
    member = await rig.add()
    pod = Pod(member.home, orchestrator, env={**environment(), "HOME": str(member.home)})
    await asyncio.to_thread(pod.start, {"train": "slurm"}, heartbeat_s=0.1)
    try:
        orchestrator.submit("early", "train", {"command": ["true"]})
        await asyncio.to_thread(orchestrator.until, lambda: orchestrator.calls_of("worker_release"))
        assert not orchestrator.failures
    finally:
        await asyncio.to_thread(pod.stop, grace_s=0)


async def test_a_cluster_of_one_node_runs_jobs_and_a_larger_job_waits_for_more_nodes(
    rig: Rig, orchestrator: Orchestrator
) -> None:
    """The cluster grows for it, and a lost node is replaced: neither uses up the attempts of the task."""
    member = await rig.add()
    await rig.deploy()
    pod = Pod(member.home, orchestrator, env={**environment(), "HOME": str(member.home)})
    await asyncio.to_thread(pod.start, {"train": "slurm"}, heartbeat_s=0.1)
    try:
        orchestrator.submit("one", "train", {"command": ["true"]})
        await asyncio.to_thread(orchestrator.completion, "one")
        orchestrator.submit("two", "train", {"command": ["true"], "nodes": 2})
        await asyncio.to_thread(orchestrator.until, lambda: "1 of 2" in str(orchestrator.calls_of("worker_heartbeat")))
        await rig.add()
        await rig.deploy()
        result = (await asyncio.to_thread(orchestrator.completion, "two"))["p_result_data"]
        assert result["slurm"]["state"] == "COMPLETED"
        assert not orchestrator.failures
    finally:
        await asyncio.to_thread(pod.stop, grace_s=0)


async def test_a_job_that_slurmd_cannot_start_is_nobodys_failure(
    rig: Rig, orchestrator: Orchestrator, pod: Pod
) -> None:
    """Slurm cancels it, as if somebody had called scancel, and drains the node."""
    controller = rig.members[0]
    (controller.root / "spool" / "job00001").touch()  # where slurmd writes the script of the first job
    orchestrator.submit("early", "train", {"command": ["true"]})
    await asyncio.to_thread(orchestrator.until, lambda: orchestrator.calls_of("worker_release"))
    assert not orchestrator.failures


async def test_a_script_runs_once_although_slurmctld_forgets_that_it_has_begun(
    rig: Rig, orchestrator: Orchestrator, pod: Pod
) -> None:
    """It saves the state of a job some seconds later."""
    begun = rig.directory / "begun"
    orchestrator.submit("once", "train", {"script": f"echo begin >>{begun}; sleep 9; echo end >>{begun}"})

    async def has_begun() -> bool:
        return begun.exists()

    await eventually(has_begun, "the script begins")
    controller = rig.members[0]
    controller.kill("slurmctld")
    await node.start_controller(controller.session, rig.cluster)
    ended = await asyncio.to_thread(
        orchestrator.until, lambda: orchestrator.failures or orchestrator.calls_of("worker_complete")
    )
    assert begun.read_text().count("begin") == 1, ended
    failed = [one["p_failure"]["code"] for one in orchestrator.failures.get("once", [])]
    assert failed in ([], ["SLURM_JOB_LOST"])


async def test_what_a_script_does_to_the_cluster_ends_with_its_task(
    rig: Rig, orchestrator: Orchestrator, pod: Pod
) -> None:
    """A job that it submits, a partition that it closes, and processes that it leaves behind on each node."""
    sleep = f"sleep 8{hash(str(rig.directory)) % 10**8}"
    lines = [
        "sbatch --exclusive -J stray -o /dev/null --wrap 'sleep 7731'",
        "scontrol update PartitionName=all State=DOWN",
        f"setsid {sleep} >/dev/null 2>&1 &",
        f"srun --ntasks-per-node=1 sh -c 'setsid {sleep} >/dev/null 2>&1 &'",
    ]
    orchestrator.submit("rude", "train", {"script": "\n".join(lines), "nodes": 2})
    await asyncio.to_thread(orchestrator.completion, "rude")
    await ends(rig)

    async def none() -> bool:
        return processes_with(sleep) == []

    await eventually(none, "every process ends")
    orchestrator.submit("next", "train", {"command": ["true"], "nodes": 2})
    await asyncio.to_thread(orchestrator.completion, "next")


async def test_slurm_has_the_options_of_the_users_script(rig: Rig, orchestrator: Orchestrator, pod: Pod) -> None:
    script = "#!/bin/bash\n# mine\n\n#SBATCH --comment=hello\necho ${BASH_VERSION:+bash} $0\n#SBATCH --comment=late\n"
    orchestrator.submit("mine", "train", {"script": script})
    await asyncio.to_thread(orchestrator.completion, "mine")
    assert "Comment=hello" in await rig.members[0].shell("scontrol -o show job 1")
    assert orchestrator.objects["outputs/mine/1/slurm.out"].startswith(b"bash ")
