"""Background tasks of a test end, or the error shows where they wait."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from testbed import tasks
from testbed.services.processes import Child
from testbed.tasks import ended, places

PATIENCE_S = 60.0


async def test_a_task_that_loses_a_cancel_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `asyncio.wait_for` loses one before Python 3.12 that comes together with the result."""
    monkeypatch.setattr(tasks, "AGAIN_S", 0.01)
    lost = asyncio.Event()

    async def loses() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lost.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(loses())
    await asyncio.sleep(0)
    await ended(task, timeout_s=PATIENCE_S)
    assert lost.is_set()
    assert task.cancelled()


async def test_a_child_has_ended_even_if_another_process_holds_its_pipe(tmp_path: Path) -> None:
    """A process of its own may outlive it, with the same standard output."""
    command = ["/bin/sh", "-c", "sleep 600 & echo $!; read never < /dev/zero"]
    child = await Child.start("sh", command, environment={}, log=tmp_path / "log", piped=True)
    grandchild = int(await child.first_line(PATIENCE_S))
    try:
        async with asyncio.timeout(PATIENCE_S):
            assert await child.stop() < 0
    finally:
        os.kill(grandchild, signal.SIGKILL)


async def test_the_place_where_a_task_waits_is_found_through_generators() -> None:
    """A fixture is one; its end is where a test run hangs."""

    async def inner() -> None:
        await asyncio.Event().wait()

    async def fixture() -> AsyncIterator[None]:
        await inner()
        yield

    async def outer() -> None:
        await anext(fixture())

    task = asyncio.create_task(outer())
    await asyncio.sleep(0)
    said = [place.rpartition(" ")[2] for place in places(task)]
    assert said[:4] == ["outer", "fixture", "inner", "wait"]
    await ended(task)
