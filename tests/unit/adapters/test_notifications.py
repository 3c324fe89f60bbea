"""All listeners of a process have one source, which ends with the last of them."""

import asyncio
import contextlib

import pytest

from orchestrator.adapters import notifications
from orchestrator.adapters.notifications import Listeners, Publish


async def test_a_source_that_loses_a_cancel_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like one of a library before Python 3.12: its close would wait for ever."""
    monkeypatch.setattr(notifications, "CANCEL_AGAIN_S", 0.01)
    waits, lost = asyncio.Event(), asyncio.Event()

    async def source(_: Publish) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            waits.set()
            await asyncio.Event().wait()
        lost.set()
        await asyncio.Event().wait()

    async def hear() -> None:
        async for _ in listeners.stream():
            pass

    listeners = Listeners(source)
    hearing = asyncio.create_task(hear())
    await waits.wait()
    await asyncio.wait_for(listeners.close(), 20)
    assert lost.is_set()
    hearing.cancel()
    await asyncio.gather(hearing, return_exceptions=True)
