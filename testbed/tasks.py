"""Ends background tasks and processes, each with a deadline, and shows where a task waits that does not end."""

import asyncio
import gc
import inspect
from collections.abc import Iterator
from typing import Any, Protocol

AGAIN_S = 5.0  # until a task that is still there is cancelled once more: what it does at its end may take a while
END_TIMEOUT_S = 60.0
POLL_S = 0.02
FRAMES = ("cr_frame", "ag_frame", "gi_frame")
AWAITS = ("cr_await", "ag_await", "gi_yieldfrom")


class _Process(Protocol):
    @property
    def returncode(self) -> int | None: ...


async def ended(*tasks: "asyncio.Future[Any]", timeout_s: float = END_TIMEOUT_S) -> None:
    """Cancel tasks and wait until they have ended, however they do. TimeoutError names those that do not.

    A cancel is repeated: before Python 3.12, `asyncio.wait_for`, which psycopg_pool uses, may lose one that comes
    together with the result, and a background loop would then never end.
    """
    left = set(tasks)
    deadline = asyncio.get_running_loop().time() + timeout_s
    while left := {task for task in left if not task.done()}:
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError(f"not ended after {timeout_s:.0f} s: {left}")
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # their errors do not matter


async def exited(process: _Process, timeout_s: float = END_TIMEOUT_S) -> int:
    """Wait for the exit of a process, and return its status. TimeoutError if it does not end.

    `process.wait()` of some versions of Python waits for the end of its pipes too, which a grandchild may hold open.
    """
    async with asyncio.timeout(timeout_s):
        while process.returncode is None:
            await asyncio.sleep(POLL_S)
    return process.returncode


def places(task: "asyncio.Task[Any]") -> Iterator[str]:
    """Yield where a task waits: the line of each coroutine that it is in, the innermost last, and what for."""
    it: Any = task.get_coro()
    while it is not None:
        if type(it).__name__ == "async_generator_asend":  # it does not name its generator
            it = next(filter(inspect.isasyncgen, gc.get_referents(it)), None)
        frame = next((found for name in FRAMES if (found := getattr(it, name, None)) is not None), None)
        yield f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}" if frame else repr(it)
        it = next((found for name in AWAITS if (found := getattr(it, name, None)) is not None), None)
