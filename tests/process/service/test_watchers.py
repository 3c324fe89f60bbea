"""Each worker has one watcher: however often its bring-up is begun, one runs (guard U16)."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from orchestrator.core.actions import ContinueBringUp
from orchestrator.core.model import Worker
from orchestrator.loop.execute import Executor, PodOperations
from tests.unit.core.build import policy, snapshot, spawning


async def test_fifty_restarts_of_a_bring_up_leave_one() -> None:
    """A stopped one ends before the next begins; one that runs is not begun again."""
    running, most, begun = 0, 0, 0

    async def bring_up(term: int, worker: Worker) -> None:
        nonlocal running, most, begun
        running, begun = running + 1, begun + 1
        most = max(most, running)
        try:
            await asyncio.Event().wait()
        finally:
            running -= 1

    nothing = cast("Any", SimpleNamespace(database_id=None))
    pods = PodOperations(creator=nothing, bring_up=bring_up, ask=nothing, teardown=nothing, disconnect=nothing)
    executor = Executor(nothing, nothing, pods, policy())
    seen = snapshot(spawning("gpu-1"))
    for restart in range(50):
        await executor.start(restart, seen, (ContinueBringUp("gpu-1"),))
        await executor.start(restart, seen, (ContinueBringUp("gpu-1"),))
        await asyncio.sleep(0)
        assert running == 1
        if restart % 2:
            executor.stop_bringups()
            await executor.settle(1)
    assert (most, begun) == (1, 25)
    executor.stop_bringups()
    await executor.settle(1)
    assert running == 0
