"""Ctrl-C ends a command, also if a library loses the cancellation."""

import asyncio

import pytest

from orchestrator.cli import session


async def test_a_cancellation_that_a_library_loses_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11's wait_for loses one that meets the answer of the database."""
    monkeypatch.setattr(session, "CANCEL_AGAIN_S", 0.01)
    waits = asyncio.Event()
    lost: list[str] = []

    async def command() -> None:
        while True:
            waits.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if lost:
                    raise
                lost.append("the first")

    running = asyncio.create_task(session.ends_if_cancelled(command()))
    await waits.wait()
    running.cancel()
    ended, _ = await asyncio.wait({running}, timeout=10)
    assert ended
    assert running.cancelled()
    assert lost


async def test_a_command_that_ends_by_itself_keeps_its_exit_code_and_its_error() -> None:
    """Whether or not anybody interrupts it."""

    async def succeeds() -> int:
        return 3

    async def fails() -> int:
        raise ValueError("no")

    assert await session.ends_if_cancelled(succeeds()) == 3
    with pytest.raises(ValueError, match="no"):
        await session.ends_if_cancelled(fails())
