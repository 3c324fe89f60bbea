"""The stages that ask whether the machine is what was rented: every code once, and what is remembered of it."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.model import Worker
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import READY, Stage
from testbed.runpod.machine_faults import MACHINE_FAULTS
from testbed.tasks import ended
from tests.process.bringup.rig import DEADLINE_S, GPU, Rig

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
STAGES = {
    "platform": {"DISK", "INODES", "CLOCK_SKEW"},
    "gpu_inventory": {"GPU_NOT_ATTACHED", "GPU_COUNT", "GPU_TYPE", "GPU_MEMORY"},
    "gpu_health": {"ECC", "GPU_BUSY", "DRIVER_TOO_OLD"},
    "gpu_fabric": {"NVLINK_INACTIVE", "NVLINK_DEGRADED"},
}
GPUS = {  # that can have the fault; elsewhere one GPU of the usual type
    **dict.fromkeys(("gpu_lost", "gpu_missing"), (GPU, 2)),
    **dict.fromkeys(("ecc_errors", "remap_pending"), (A100, 1)),
    **dict.fromkeys(("nvlink_inactive", "nvlink_degraded"), (A100, 2)),
}
WAITED_FOR = {"gpu_busy", "smi_hangs"}  # they have tests of their own
FAULTS = [(kind, fault.code) for kind, fault in MACHINE_FAULTS.items() if kind not in WAITED_FOR]


@pytest.fixture(autouse=True)
def image(rig: Rig) -> None:
    """Pods run an image with CUDA 12.4; the rig's pools are named for their worker."""
    rig.config = replace(rig.config, images=_Anything("runpod/pytorch:2.4.0-py3.11-cuda12.4.1-devel-ubuntu22.04"))


class _Anything(dict[str, str]):
    """The same image for every pool."""

    def __init__(self, image: str) -> None:
        super().__init__()
        self._image = image

    def get(self, key: str, default: Any = None) -> Any:
        return self._image


async def ends(rig: Rig, worker: Worker, code: str, **deadlines_s: float) -> Mapping[str, Any]:
    """Bring up; the row must end with the code at its stage. That attempt."""
    config = {**rig.config.deadlines_s, **deadlines_s}
    await asyncio.wait_for(rig.bring_up(deadlines_s=config).bring_up(rig.term, worker), DEADLINE_S)
    row, attempt = await rig.row(worker.id), (await rig.attempts(worker.id))[-1]
    stage = next((stage for stage, codes in STAGES.items() if code in codes), "gpu_health")
    assert (row["status"], row["exit_cause"], row["failure_code"]) == ("terminating", "spawn_failed", code)
    assert (attempt["stage"], attempt["failure_code"]) == (stage, code)
    assert rig.tokens == []  # nothing secret went to such a machine
    return attempt


@pytest.mark.parametrize(("kind", "code"), FAULTS)
async def test_a_machine_unlike_the_rented_one_ends_the_worker(rig: Rig, kind: str, code: str) -> None:
    """With its code and evidence, before anything is sent there; and the machine is avoided from then on."""
    worker, _ = await rig.worker(gpus=GPUS.get(kind, (GPU, 1)), faults={kind: ""})
    attempt = await ends(rig, worker, code)
    assert attempt["evidence"]["error"]
    host = await _host(rig, f"machine:machine-{worker.pod_id}")
    assert (host["strikes"], host["avoided"]) == (1, True)
    assert (host["evidence"][0]["code"], host["evidence"][0]["worker"]) == (code, worker.id)
    assert host["key"] in (await rig.store.snapshot()).avoid  # where the planner looks


@pytest.mark.parametrize("skew_s", [-300, 300])
async def test_a_wrong_clock_is_reported_with_its_offset(rig: Rig, skew_s: int) -> None:
    """Tokens and signatures depend on it."""
    worker, sshd = await rig.worker()
    sshd.env["EMULATED_CLOCK_SKEW_S"] = str(skew_s)
    attempt = await ends(rig, worker, "CLOCK_SKEW")
    assert attempt["evidence"]["clock_skew_s"] == pytest.approx(skew_s, abs=20)


async def test_gpu_memory_in_use_by_no_process_of_the_pod_fails_after_a_wait(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tenant before may just be leaving."""
    monkeypatch.setattr("orchestrator.pods.machine_stages.BUSY_PAUSE_S", 0.1)
    leaving, sshd = await rig.worker(faults={"gpu_busy": ""})
    bringing_up = asyncio.create_task(rig.bring_up().bring_up(rig.term, leaving))
    await rig.reaches(leaving.id, Stage.GPU_HEALTH)
    machine = Path(sshd.env["EMULATED_POD"]) / "gpus.csv"
    _replace(machine, machine.read_text().replace(",9000,", ",2,"))
    await asyncio.wait_for(bringing_up, DEADLINE_S)
    assert (await rig.row(leaving.id))["status"] in READY
    rig.tokens.clear()
    staying, _ = await rig.worker(faults={"gpu_busy": ""})
    attempt = await ends(rig, staying, "GPU_BUSY", gpu_health=1.5)
    assert attempt["outcome"] == "timeout"
    assert attempt["evidence"]["used_mib"] == [9000]


async def test_a_fabric_that_is_being_joined_is_checked_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has been, or until the stage's deadline; what it was looked at for stands in the evidence."""
    monkeypatch.setattr("orchestrator.pods.machine_stages.JOINING_PAUSE_S", 0.1)
    ready, deaf = [await rig.worker(gpus=(H100, 2)) for _ in range(2)]
    joined: dict[str, str] = {}
    for _, sshd in (ready, deaf):
        machine = Path(sshd.env["EMULATED_POD"]) / "gpus.csv"
        joined[sshd.env["EMULATED_POD"]] = machine.read_text()
        machine.write_text(machine.read_text().replace(",Completed,Success,", ",In Progress,N/A,", 1))
    bringing_up = asyncio.create_task(rig.bring_up().bring_up(rig.term, ready[0]))
    await rig.reaches(ready[0].id, Stage.GPU_FABRIC)
    async with asyncio.timeout(DEADLINE_S):
        while not (await rig.attempts(ready[0].id))[-1]["evidence"]:
            await asyncio.sleep(0.02)
    _replace(Path(ready[1].env["EMULATED_POD"]) / "gpus.csv", joined[ready[1].env["EMULATED_POD"]])
    await asyncio.wait_for(bringing_up, DEADLINE_S)
    assert (await rig.row(ready[0].id))["status"] in READY
    (seen,) = (a["evidence"] for a in await rig.attempts(ready[0].id) if a["stage"] == Stage.GPU_FABRIC)
    assert (seen["fabric_state"], seen["fabric_status"]) == (["Completed"] * 2, ["Success"] * 2)
    assert seen["looks"] > 1
    rig.tokens.clear()
    attempt = await ends(rig, deaf[0], "NVLINK_INACTIVE", gpu_fabric=1.5)
    assert (attempt["outcome"], attempt["evidence"]["fabric_state"]) == ("timeout", ["In Progress", "Completed"])
    assert (
        attempt["evidence"]["why"] == "GPU 0 has not joined the NVLink fabric yet (In Progress): CUDA would not start"
    )


@pytest.mark.parametrize(("way", "code"), [("SYS", "NVLINK_INACTIVE"), ("NV4", "NVLINK_DEGRADED")])
async def test_a_topology_unlike_that_of_the_gpu_type_ends_the_worker(rig: Rig, way: str, code: str) -> None:
    """Although every link says that it is active."""
    worker, sshd = await rig.worker(gpus=(H100, 2))
    shown = Path(sshd.env["EMULATED_POD"]) / "topo"
    shown.write_text(shown.read_text().replace("NV18", way))
    attempt = await ends(rig, worker, code)
    assert f"GPU0 and GPU1: {way}" in attempt["evidence"]["error"]
    assert attempt["evidence"]["active_links"] == {"0": 18, "1": 18}


async def test_an_nvidia_smi_that_hangs_ends_as_a_fact(rig: Rig) -> None:
    """It is ended on the pod, and nothing more is asked of it: the answer comes within the stage's own deadline."""
    worker, _ = await rig.worker(faults={"smi_hangs": ""})
    attempt = await ends(rig, worker, "GPU_NOT_ATTACHED", gpu_inventory=24)
    assert attempt["outcome"] == "failed"
    assert "did not answer in time" in attempt["evidence"]["error"]


async def test_an_nvidia_smi_that_cannot_even_be_killed_ends_with_its_stage(rig: Rig) -> None:
    """A driver in uninterruptible sleep keeps timeout(1) waiting too."""
    worker, sshd = await rig.worker()
    rig.install(sshd, "timeout", 'shift 3; case "$4" in 1) exec sleep 60 ;; esac; exec "$@"')
    attempt = await ends(rig, worker, "GPU_NOT_ATTACHED", gpu_inventory=0.5)
    assert attempt["outcome"] == "timeout"


@pytest.mark.parametrize(("gpu", "count"), [(A100, 2), (H100, 8), ("NVIDIA L40S", 4), (GPU, 0)])
async def test_pods_with_several_gpus_and_with_none_are_promoted(rig: Rig, gpu: str, count: int) -> None:
    """Each goes through the stages that it has something to prove in."""
    worker, _ = await rig.worker(gpus=(gpu, count))
    await asyncio.wait_for(rig.bring_up().bring_up(rig.term, worker), DEADLINE_S)
    assert (await rig.row(worker.id))["status"] in READY
    brought_up = [a["stage"] for a in await rig.attempts(worker.id) if a["stage"].startswith("gpu_")]
    assert brought_up == (["gpu_inventory", "gpu_health", "gpu_fabric"] if count > 1 else [])


async def test_a_failure_that_the_machine_did_not_cause_gives_it_no_strike(rig: Rig) -> None:
    """An interpreter that is missing is the image's doing."""
    worker, _ = await rig.worker(pod={"machine_id": "m-good", "data_center": "XX-2"})
    await asyncio.wait_for(rig.bring_up(python="/nowhere/python3").bring_up(rig.term, worker), DEADLINE_S)
    assert (await rig.row(worker.id))["failure_code"] == "NO_PROCESS"
    assert not [host for host in await rig.store.hosts() if host["key"].endswith(("m-good", f"XX-2|{GPU}"))]


async def test_every_wait_names_its_cause_and_deadline(rig: Rig) -> None:
    """At each stage that hangs, the row names whom it waits for, until when, and when it is tried again."""
    silent = await asyncio.start_server(lambda *_: asyncio.sleep(DEADLINE_S), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    hanging = [
        (Stage.POD_RUNNING, await rig.worker(pod={"has_runtime": False})),
        (Stage.SSH_DETAILS, await rig.worker(pod={"ssh_port": None})),
        (Stage.TCP, await rig.worker(pod={"ssh_port": port})),
        (Stage.GPU_INVENTORY, await rig.worker(faults={"smi_hangs": ""})),
    ]
    bring_up = rig.bring_up()
    bringups = [asyncio.create_task(bring_up.bring_up(rig.term, worker)) for _, (worker, _) in hanging]
    for stage, (worker, _) in hanging:
        await rig.reaches(worker.id, stage)
        row = next(w for w in (await rig.store.snapshot()).workers if w.id == worker.id)
        assert (row.waiting_on, row.waiting_for) == (STAGE_SPECS[stage].waiting_on, str(stage))
        assert 0 < (row.deadline_at - row.stage_since).total_seconds() <= STAGE_SPECS[stage].deadline_s + 1
        assert row.next_attempt_at <= row.deadline_at
    await ended(*bringups)
    silent.close()


def _replace(path: Path, text: str) -> None:
    """Change a file that is being read: as a whole."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


async def _host(rig: Rig, key: str) -> Mapping[str, Any]:
    return next(host for host in await rig.store.hosts() if host["key"] == key)
