"""What is said early of a pod that does not run yet: that its image is being pulled, by its own log, asked seldom."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.failures import FailureCode
from orchestrator.core.provider import PodStatus
from orchestrator.core.states import Stage
from orchestrator.pods import boot_stages
from orchestrator.pods.bringup_context import BringupContext
from orchestrator.pods.latest import PodView
from tests.process.bringup.builders import a_pod
from tests.process.bringup.rig import DEADLINE_S, Rig
from tests.unit.core.build import NOW, spawning

PULLING = ["create container image", "latest Pulling from library/image"]
PULLED = [*PULLING, "Status: Downloaded newer image for image", "start container"]
BOOTS: Mapping[str, Any] = {"status": PodStatus.STARTING, "has_runtime": False}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that a test can wait for."""
    monkeypatch.setattr(boot_stages, "EARLY_S", 0.05)
    monkeypatch.setattr(boot_stages, "LOG_READ_AFTER_S", 0.1)
    monkeypatch.setattr(boot_stages, "LOG_READ_AGAIN_S", 0.2)


async def test_an_image_pull_is_reported_long_before_the_deadline(rig: Rig, quick: None) -> None:
    """With the last lines of the pod's log; it is no failure, and once the image has come that is seen too."""
    worker, _ = await rig.worker(pod=BOOTS)
    said = PULLING

    async def log(_: str) -> str:
        return "\n".join(said)

    bring_up = asyncio.create_task(rig.bring_up(pod_log=log).bring_up(rig.term, worker))

    async def seen(lines: list[str]) -> Mapping[str, Any]:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for attempt in await rig.attempts(worker.id):
                    if (attempt["evidence"] or {}).get("pod_log") == lines:
                        return attempt
                await asyncio.sleep(0.02)

    attempt = await seen(PULLING)
    assert attempt["evidence"]["shown"] == "RunPod shows it as STARTING: its image is being pulled"
    assert (attempt["outcome"], attempt["failure_code"]) == (None, None)
    said = PULLED
    assert (await seen(PULLED))["evidence"]["shown"] == "RunPod shows it as STARTING"
    rig.show(replace(rig.listed[worker.pod_id or ""], status=PodStatus.RUNNING, has_runtime=True))
    await asyncio.wait_for(bring_up, DEADLINE_S)
    assert (await rig.row(worker.id))["stage"] == Stage.PROMOTED


async def test_a_running_pod_does_not_wait_for_its_log(quick: None) -> None:
    """A log that never comes does not delay the wait."""
    asked = asyncio.Event()

    async def never(_: str) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    pods = PodView()
    pods.update([a_pod("pod-gpu-1", "gpu-1", 22, **BOOTS)])
    running = asyncio.create_task(
        boot_stages.BootStages(pods, never).pod_running(BringupContext(1, spawning("gpu-1"), NOW, 600))
    )
    await asyncio.wait_for(asked.wait(), DEADLINE_S)
    pods.update([a_pod("pod-gpu-1", "gpu-1", 22)])
    assert (await asyncio.wait_for(running, DEADLINE_S))["pod_id"] == "pod-gpu-1"


async def test_the_logs_of_many_slow_pods_are_not_read_all_at_once(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls of a minute are the account's: the first few pods have a look each, then one in LOG_READ_GAP_S."""
    monkeypatch.setattr(boot_stages, "LOG_READ_GAP_S", 0.2)
    asked: Counter[str] = Counter()
    began_s = time.monotonic()
    enough = asyncio.Event()

    async def log(pod_id: str) -> str:
        asked[pod_id] += 1
        passed_s = time.monotonic() - began_s
        assert asked.total() <= boot_stages.LOG_READS_AT_ONCE + passed_s / boot_stages.LOG_READ_GAP_S
        if asked.total() == count:
            enough.set()
        return "\n".join(PULLING)

    pods, count = PodView(), 4 * boot_stages.LOG_READS_AT_ONCE
    pods.update(a_pod(f"pod-gpu-{n}", f"gpu-{n}", 22, **BOOTS) for n in range(count))
    booting = boot_stages.BootStages(pods, log)
    ascents = [BringupContext(1, spawning(f"gpu-{n}"), NOW, 600) for n in range(count)]
    bringups = [asyncio.create_task(booting.pod_running(context)) for context in ascents]
    await asyncio.wait_for(enough.wait(), DEADLINE_S)
    for bring_up in bringups:
        bring_up.cancel()
    ended = await asyncio.gather(*bringups, return_exceptions=True)
    assert {type(end) for end in ended} == {asyncio.CancelledError}, "a look that came too soon"


async def test_at_the_deadline_an_earlier_look_counts_where_calls_are_short(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wave that reaches its deadline together takes no more calls than one that begins together."""
    monkeypatch.setattr(boot_stages, "LOG_READS_AT_ONCE", 1)
    asked: Counter[str] = Counter()

    async def log(pod_id: str) -> str:
        asked[pod_id] += 1
        return "\n".join(PULLING)

    pods, context = PodView(), BringupContext(1, spawning("gpu-1"), NOW, limit_s=1)
    pods.update([a_pod("pod-gpu-1", "gpu-1", 22, **BOOTS)])
    with pytest.raises(TimeoutError):
        await boot_stages.BootStages(pods, log).pod_running(context)
    assert (asked.total(), context.suspect) == (1, FailureCode.IMAGE_PULL_SLOW)
