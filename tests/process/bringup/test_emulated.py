"""Bring-ups of the emulated provider's pods, seen through its own API."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orchestrator.adapters.runpod import RunPodCloud
from orchestrator.core.model import Worker
from orchestrator.core.provider import PodSpec
from orchestrator.core.states import READY, Stage, State
from orchestrator.pods import host_identity
from testbed.tasks import ended
from tests.process.bringup.rig import DEADLINE_S, SNAPSHOT_EVERY_S, Rig, nonce_for
from tests.process.emulator.build import GPU, emulated

UNLUCKY = {
    "boot_error": "POD_ERROR",
    "ssh_auth_refused": "AUTH_FAILED",
    "ssh_relayed": "HOST_KEY_RELAYED",
    "ssh_dropped": None,  # the connection is cut in the first DROPPED commands: promoted all the same
    None: None,
}

# What a system without deadlines would wait for until somebody looks, and the deadline of the stage where it hangs. The
# other stages keep theirs: on a busy machine they take their time.
ENDLESS: dict[str, tuple[str, dict[str, float]]] = {
    "no_runtime": ("NO_RUNTIME", {"pod_running": 6.0}),
    "stuck_provisioning": ("NO_RUNTIME", {"pod_running": 6.0}),
    "stuck_starting": ("IMAGE_PULL_SLOW", {"pod_running": 6.0}),
    "no_ssh_details": ("SSH_DETAILS_MISSING", {"ssh_details": 1.0}),
    "ssh_refused": ("TCP_REFUSED", {"tcp": 3.0}),
    "ssh_silent": ("TCP_TIMEOUT", {"tcp": 3.0}),
    "smi_hangs": ("GPU_NOT_ATTACHED", {"gpu_inventory": 3.0}),
    "agent_dies": ("NO_PROCESS", {}),
    "agent_cut_off": ("NO_HEARTBEAT", {"heartbeat": 3.0}),
}
DROPPED = {"seconds": 0, "detail": "4"}


class Account:
    """A provider's account as the orchestrator uses it."""

    def __init__(self, rig: Rig, cloud: RunPodCloud) -> None:
        self._rig, self._cloud = rig, cloud

    async def worker(self, worker_id: str) -> Worker:
        """A worker whose pod was created just now."""
        spec = PodSpec(
            name=worker_id,
            fleet_id="default",
            image="runpod/pytorch",
            gpu_type=GPU,
            gpu_count=1,
            cloud="SECURE",
            data_center=None,
            disk_gb=50,
            min_memory_gb=32,
            min_vcpu=8,
            ports=("22/tcp",),
            public_key=self._rig.key.export_public_key().decode().strip(),
            env={host_identity.VARIABLE: nonce_for(worker_id)},
            volume_id=None,
            volume_mount_path="/workspace",
        )
        pod = await self._cloud.create_pod(spec)
        return await self._rig.created(worker_id, pod.id)

    async def watch(self) -> None:
        """Publish the lists to the code that waits for a pod."""
        while True:
            self._rig.pods.update(await self._cloud.list_pods())
            await asyncio.sleep(SNAPSHOT_EVERY_S)


@asynccontextmanager
async def watched(rig: Rig, cloud: RunPodCloud) -> AsyncIterator[Account]:
    account = Account(rig, cloud)
    watching = asyncio.create_task(account.watch())
    try:
        yield account
    finally:
        await ended(watching)


async def test_emulated_pods_are_brought_up_and_faulty_ones_end_with_their_codes(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same stages over RunPod's API and its pods' SSH, several at once, each with its own result."""
    monkeypatch.setattr("orchestrator.pods.bringup_stages.PAUSES_S", (0.1,))
    async with emulated(tmp_path / "account") as api:
        cloud = RunPodCloud(api.emulator.api_key, base_url=api.emulator.url)
        async with watched(rig, cloud) as account:
            fates: dict[str, str | None] = {}
            for fault, code in UNLUCKY.items():
                worker_id = await rig.intent()
                fates[worker_id] = code
                if fault is not None:
                    await api.emulator.control("POST", "/faults", {"kind": fault, "name": worker_id} | DROPPED)
            bring_up = rig.bring_up()
            bringups = [bring_up.bring_up(rig.term, await account.worker(worker_id)) for worker_id in fates]
            await asyncio.wait_for(asyncio.gather(*bringups), DEADLINE_S)
            rows = {worker_id: await rig.row(worker_id) for worker_id in fates}
            assert {worker_id: row["failure_code"] for worker_id, row in rows.items()} == fates
            for worker_id, code in fates.items():
                assert (rows[worker_id]["status"] in READY) is (code is None)
        await cloud.close()


async def test_light_pods_pass_every_stage_of_bring_up(rig: Rig, tmp_path: Path) -> None:
    """Each proof is asked for and answered, and the agent asks for work by itself."""
    async with emulated(tmp_path / "account", light=True) as api:
        cloud = RunPodCloud(api.emulator.api_key, base_url=api.emulator.url)
        async with watched(rig, cloud) as account:
            worker = await account.worker(await rig.intent())
            await asyncio.wait_for(rig.bring_up().bring_up(rig.term, worker), DEADLINE_S)
            attempts = await rig.attempts(worker.id)
            assert {row["outcome"] for row in attempts} == {"ok"}
            assert {Stage.GPU_HEALTH, Stage.PROCESS, Stage.HEARTBEAT} <= {Stage(row["stage"]) for row in attempts}
            async with asyncio.timeout(DEADLINE_S):
                while (await rig.row(worker.id))["status"] != State.IDLE:
                    await asyncio.sleep(SNAPSHOT_EVERY_S)
        await cloud.close()


async def test_each_hanging_step_ends_by_itself_with_its_code(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By deadlines alone, which are configuration; the pod's own log tells a slow pull from a dead pod."""
    monkeypatch.setattr("orchestrator.pods.bringup_stages.PAUSES_S", (0.1,))
    monkeypatch.setattr("orchestrator.pods.bringup_stages.BANNER_TIMEOUT_S", 0.5)
    monkeypatch.setattr("orchestrator.adapters.runpod_logs.PAUSE_S", 0.1)
    monkeypatch.setattr("orchestrator.pods.boot_stages.EARLY_S", 0.2)
    monkeypatch.setattr("orchestrator.pods.boot_stages.LOG_READ_AFTER_S", 0.5)
    async with emulated(tmp_path / "account") as api:
        cloud = RunPodCloud(api.emulator.api_key, base_url=api.emulator.url)
        async with watched(rig, cloud) as account:
            faults = {await rig.intent(): fault for fault in ENDLESS}
            bringups = []
            for worker_id, fault in faults.items():
                await api.emulator.control("POST", "/faults", {"kind": fault, "name": worker_id})
                bring_up = rig.bring_up(pod_log=cloud.pod_log, deadlines_s=ENDLESS[fault][1], python="python3")
                bringups.append(bring_up.bring_up(rig.term, await account.worker(worker_id)))
            await asyncio.wait_for(asyncio.gather(*bringups), DEADLINE_S)
            codes = {fault: (await rig.row(worker_id))["failure_code"] for worker_id, fault in faults.items()}
        await cloud.close()
    assert codes == {fault: code for fault, (code, _) in ENDLESS.items()}
