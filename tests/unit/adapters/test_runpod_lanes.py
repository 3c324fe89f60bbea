"""The lanes of calls to RunPod on a machine that starts no thread."""

import asyncio
import threading

import pytest

from orchestrator.adapters.runpod_lanes import HANGING, SLOTS, CallAttempt, Lanes
from orchestrator.core.call_budget import Priority
from orchestrator.ports import NotSent


async def test_threads_that_do_not_start_close_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a call was not sent, and it does not count as one that hangs."""
    lanes, lane = Lanes(), Priority.LIST

    def attempt() -> CallAttempt:
        return CallAttempt(lane, "list the pods", asyncio.get_running_loop().time() + 60)

    def full(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", full)
        for _ in range(SLOTS[lane] * HANGING + 1):
            with pytest.raises(NotSent, match="can't start new thread"):
                await lanes.make(attempt(), lambda: "never asked")
    assert await lanes.make(attempt(), lambda: "the pods") == "the pods"
