"""A process that stands still ends with 70; one that is stopped, or whose database is away, goes on."""

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

import psutil
import pytest

from orchestrator.loop.watchdog import EXIT_WEDGED

ROOT = Path(__file__).resolve().parents[3]
WATCHED = """
import asyncio, time
from orchestrator.loop.watchdog import Watchdog

async def main():
    ticks = 0
    async def turn():
        nonlocal ticks
        while True:
            ticks += {step}
            await asyncio.sleep(0.01)
    turning = asyncio.create_task(turn())
    with Watchdog(lambda: ticks, tick_limit_s={limit_s}, loop_limit_s={limit_s}, round_s=0.02).watching():
        print("watched", flush=True)
        {then}

asyncio.run(main())
"""
LIMIT_S = 0.5
END_S = 30.0


async def watched(then: str, *, step: int = 1) -> asyncio.subprocess.Process:
    program = WATCHED.format(step=step, limit_s=LIMIT_S, then=then)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(END_S):
        assert await process.stdout.readline() == b"watched\n"
    return process


@pytest.mark.parametrize(
    ("then", "step", "said"),
    [
        ("time.sleep(60)", 1, b"the event loop has stood still"),
        ("await asyncio.sleep(60)", 0, b"the tick has stood still"),
    ],
    ids=["the_loop_hangs", "the_tick_hangs"],
)
async def test_a_process_that_stands_still_ends_with_70(then: str, step: int, said: bytes) -> None:
    """It names what hangs, and prints the stacks of its threads, which show the cause."""
    process = await watched(then, step=step)
    async with asyncio.timeout(END_S):
        _, errors = await process.communicate()
    assert process.returncode == EXIT_WEDGED
    assert said in errors
    assert b"Thread 0x" in errors


async def test_a_process_that_was_stopped_for_long_continues() -> None:
    """SIGSTOP, as a suspended machine: nothing turned, and nothing was wedged."""
    process = await watched(f"await asyncio.sleep({LIMIT_S}); print('here', flush=True); await asyncio.sleep(60)")
    assert process.stdout is not None
    state = psutil.Process(process.pid)
    process.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(END_S):
        while state.status() != psutil.STATUS_STOPPED:
            await asyncio.sleep(0.01)
        stopped_s = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - stopped_s < 4 * LIMIT_S:
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGCONT)
        assert await process.stdout.readline() == b"here\n"
    assert process.returncode is None
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
