"""A delete that RunPod refuses: repeated, and ever more slowly."""

import asyncio
from pathlib import Path

import pytest

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.runpod import RunPodCloud
from orchestrator.adapters.store import SqlStore
from orchestrator.core.actions import ContinueBringUp, DeleteOrphan
from orchestrator.loop.execute import MAX_PAUSE_S
from orchestrator.pods.teardown import MAX_RETRY_S, _pause_s
from tests.db.conformance.loops import executor_over
from tests.process.emulator.build import emulated
from tests.unit.core.build import pod_of, policy, snapshot, worker

NO_DATABASE = "postgresql://nobody@127.0.0.1:9/none"
ORPHAN = pod_of(worker("gpu-1"), id="orphan")


@pytest.mark.asyncio(loop_scope="function")  # the session's servers have timers on its loop, whose time must not move
async def test_an_orphan_whose_delete_is_refused_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in flight until then, so that no tick asks again; each refusal doubles the pause."""
    rules, passed = policy(delete_retry_s=50), [0.0]
    loop = asyncio.get_running_loop()
    real_time = loop.time
    monkeypatch.setattr(loop, "time", lambda: real_time() + sum(passed))
    async with emulated(tmp_path) as api:
        await api.emulator.control("POST", "/faults", {"kind": "forbidden", "operation": "delete"})
        cloud = RunPodCloud(api.emulator.api_key, base_url=api.emulator.url, call_timeout_s=5)
        db = await PostgresDb.open(NO_DATABASE, pool_size=1, call_timeout_s=0.5)
        store = SqlStore(db, "test")
        executor = executor_over(store, cloud, rules)
        for pause_s in (50, 100, 200, MAX_PAUSE_S, MAX_PAUSE_S):
            calls = api.emulator.core.calls["DELETE /v2/pods/{id}"]
            await executor.start(1, snapshot(pods=(ORPHAN,)), (DeleteOrphan(ORPHAN.id, "no row"),))
            await executor.settle(10)
            assert api.emulator.core.calls["DELETE /v2/pods/{id}"] == calls + 1
            passed.append(0.8 * pause_s)
            assert ORPHAN.id in executor.in_flight
            passed.append(0.2 * pause_s)
            assert ORPHAN.id not in executor.in_flight
        await db.close()


async def test_an_action_that_crashes_is_not_repeated_at_each_tick(tmp_path: Path) -> None:
    """Its worker is left alone for a while; each crash in a row doubles the pause."""
    begun = []

    async def crash(*_: object) -> None:
        begun.append(1)
        raise RuntimeError("nobody expected this")

    async with emulated(tmp_path) as api:
        cloud = RunPodCloud(api.emulator.api_key, base_url=api.emulator.url, call_timeout_s=5)
        db = await PostgresDb.open(NO_DATABASE, pool_size=1, call_timeout_s=0.5)
        executor = executor_over(SqlStore(db, "test"), cloud, policy(), crash)
        seen = snapshot(workers=(worker("gpu-1"),))
        for _ in range(5):
            if "gpu-1" not in executor.bringing_up:
                await executor.start(1, seen, (ContinueBringUp("gpu-1"),))
            await executor.settle(10)
            assert "gpu-1" in executor.bringing_up
            assert "gpu-1" not in executor.in_flight  # its end does not wait
        await db.close()
    assert len(begun) == 1


def test_the_pause_after_a_refused_delete_doubles_up_to_a_bound() -> None:
    """A delete that is refused for a day is asked for some three hundred times, and not ten thousand."""
    failed, accepted = {"outcome": "failed"}, {"outcome": "ok"}
    assert [_pause_s([accepted, *[failed] * tries]) for tries in (1, 2, 3, 4)] == [5, 10, 20, 40]
    assert _pause_s([failed] * 1000) == MAX_RETRY_S == MAX_PAUSE_S
