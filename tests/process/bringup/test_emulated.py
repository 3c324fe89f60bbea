"""Bring-ups of the emulated provider's pods, seen through its own API."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orchestrator.adapters.runpod import RunPodCloud
from orchestrator.core.model import PodSpec, Worker
from orchestrator.core.states import READY, Stage, State
from orchestrator.pods import host_identity
from testbed.cancelling import cancelled
from tests.process.bringup.rig import DEADLINE_S, SNAPSHOT_EVERY_S, Rig, nonce_for
from tests.process.emulator.build import GPU, emulated

UNLUCKY = {
    "boot_error": "POD_ERROR",
    "ssh_auth_refused": "AUTH_FAILED",
    "ssh_relayed": "HOST_KEY_RELAYED",
    "ssh_dropped": None,  # the connection is cut in the first DROPPED commands: promoted all the same
    None: None,
}

ENDLESS = {  # what a system without deadlines would wait for until somebody looks
    "no_runtime": "NO_RUNTIME",
    "stuck_provisioning": "NO_RUNTIME",
    "stuck_starting": "IMAGE_PULL_SLOW",
    "no_ssh_details": "SSH_DETAILS_MISSING",
    "ssh_refused": "TCP_REFUSED",
    "ssh_silent": "TCP_TIMEOUT",
    "smi_hangs": "GPU_NOT_ATTACHED",
    "agent_dies": "NO_PROCESS",
    "agent_cut_off": "NO_HEARTBEAT",
}
DROPPED = {"seconds": 0, "detail": "4"}
SHORT_S = {"pod_running": 6.0, "ssh_details": 1.0, "tcp": 1.0, "gpu_inventory": 3.0, "heartbeat": 1.5}


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
        """Feed the lists to whoever waits for a pod."""
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
        await cancelled(watching)


async def test_emulated_pods_are_brought_up_and_unlucky_ones_end_with_their_codes(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same ladder over RunPod's API and its pods' SSH, several at once, each with its own fate."""
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


async def test_light_pods_pass_every_stage_of_the_same_ladder(rig: Rig, tmp_path: Path) -> None:
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


async def test_what_would_hang_for_ever_ends_by_itself_with_its_code(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By deadlines alone, which are configuration; the pod's own log tells a slow pull from a dead pod."""
    monkeypatch.setattr("orchestrator.pods.bringup_stages.PAUSES_S", (0.1,))
    monkeypatch.setattr("orchestrator.pods.bringup_stages.BANNER_TIMEOUT_S", 0.5)
    monkeypatch.setattr("orchestrator.adapters.runpod_logs.PAUSE_S", 0.1)
    async with emulated(tmp_path / "account") as api:
        cloud = RunPodCloud(api.emulator.api_key, base_url=api.emulator.url)
        async with watched(rig, cloud) as account:
            fates = {await rig.intent(): (fault, code) for fault, code in ENDLESS.items()}
            for worker_id, (fault, _) in fates.items():
                await api.emulator.control("POST", "/faults", {"kind": fault, "name": worker_id})
            bring_up = rig.bring_up(pod_log=cloud.pod_log, deadlines_s=SHORT_S, python="python3")
            bringups = [bring_up.bring_up(rig.term, await account.worker(worker_id)) for worker_id in fates]
            await asyncio.wait_for(asyncio.gather(*bringups), DEADLINE_S)
            ended = {fates[worker_id][0]: (await rig.row(worker_id))["failure_code"] for worker_id in fates}
        await cloud.close()
    assert ended == ENDLESS
