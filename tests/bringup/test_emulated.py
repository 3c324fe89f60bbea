"""Climbs to the emulated provider's pods, seen through its own API."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orchestrator.adapters.runpod import RunPodCloud
from orchestrator.core.model import PodSpec, Worker
from orchestrator.core.states import READY
from tests.bringup.rig import DEADLINE_S, SNAPSHOT_EVERY_S, Rig
from tests.emulator.build import GPU, emulated

UNLUCKY = {
    "boot_error": "POD_ERROR",
    "ssh_auth_refused": "AUTH_FAILED",
    "ssh_dropped": None,  # every connection is cut a moment after each command: promoted all the same
    None: None,
}


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
            env={},
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
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_emulated_pods_are_climbed_to_and_unlucky_ones_end_with_their_codes(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same ladder over RunPod's API and its pods' SSH, several at once, each with its own fate."""
    monkeypatch.setattr("orchestrator.proofs.PAUSES_S", (0.1,))
    async with emulated(tmp_path / "account") as api:
        cloud = RunPodCloud(api.emulator.api_key, base_url=api.emulator.url)
        async with watched(rig, cloud) as account:
            fates: dict[str, str | None] = {}
            for fault, code in UNLUCKY.items():
                worker_id = await rig.intent()
                fates[worker_id] = code
                if fault is not None:
                    await api.emulator.control("POST", "/faults", {"kind": fault, "name": worker_id, "seconds": 0.15})
            bring_up = rig.bring_up()
            climbs = [bring_up.climb(rig.term, await account.worker(worker_id)) for worker_id in fates]
            await asyncio.wait_for(asyncio.gather(*climbs), DEADLINE_S)
            rows = {worker_id: await rig.row(worker_id) for worker_id in fates}
            assert {worker_id: row["failure_code"] for worker_id, row in rows.items()} == fates
            for worker_id, code in fates.items():
                assert (rows[worker_id]["status"] in READY) is (code is None)
        await cloud.close()
