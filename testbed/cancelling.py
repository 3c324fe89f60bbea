"""The end of tasks that run beside a test, also if a library loses a cancellation."""

import asyncio
from typing import Any

AGAIN_S = 1.0  # seconds until a cancellation is repeated
ENDED_S = 30.0  # seconds for the end of a task; it takes milliseconds


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks until each has ended. AssertionError, with the place where it waits, if one does not.

    Before Python 3.12, `asyncio.wait_for` (psycopg_pool waits with it) returns an answer in place of a cancellation
    that arrives with it: a loop that asks the database again and again then goes on, and who waits for its end hangs.
    """
    deadline = asyncio.get_running_loop().time() + ENDED_S
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
        if left and asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not ended within {ENDED_S:.0f} s after a cancellation: {left}")
    await asyncio.gather(*tasks, return_exceptions=True)  # what one failed with is retrieved
