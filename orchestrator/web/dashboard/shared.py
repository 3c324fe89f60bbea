"""The answers of the database that all open pages share for a second: many pages cost no more queries than one.

An answer that took long is shared for longer, so that a large fleet's pages do not take the orchestrator's time.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

SHARED_S = 1.0
TIMES = 20  # as long as it took to get: asking again takes a twentieth of the time
LONGEST_S = 5.0  # … but no longer than that
MAX_SHARED = 500  # answers

T = TypeVar("T")


class Shared:
    """Answers by key, each asked for once at a time. All methods run on one event loop."""

    def __init__(self, ttl_s: float = SHARED_S, most: int = MAX_SHARED) -> None:
        self._ttl_s, self._most = ttl_s, most
        self._answers: OrderedDict[Hashable, asyncio.Task[Any]] = OrderedDict()

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[T]], kept_s: float | None = None) -> T:
        """The answer of `ask`, or one of the same key that is younger than `kept_s` or took long.

        Raises what `ask` raises.
        """
        answer = self._answers.get(key)
        if answer is None:
            answer = asyncio.create_task(_asked(ask), name=f"dashboard {key}"[:100], context=Context())
            answer.add_done_callback(partial(self._keep, key, time.monotonic(), kept_s or self._ttl_s))
            self._answers[key] = answer
            while len(self._answers) > self._most:
                self._answers.popitem(last=False)
        await asyncio.wait((answer,))  # a page that is closed does not end the question of the others
        shared: T = answer.result()
        return shared

    def forget(self, key: Hashable) -> None:
        """Ask again the next time."""
        self._answers.pop(key, None)

    def forget_all(self) -> None:
        """Ask everything again the next time: somebody has just changed something."""
        self._answers.clear()

    def _keep(self, key: Hashable, began_s: float, kept_s: float, answer: asyncio.Task[Any]) -> None:
        """Keep an answer, also an exception, until it is as old as that; nobody may be left who waits for it."""
        failed = answer.cancelled() or answer.exception() is not None  # asyncio reports one that nobody has read
        took_s = time.monotonic() - began_s
        kept_s = min(kept_s, SHARED_S) if failed else max(kept_s, min(TIMES * took_s, LONGEST_S))
        left_s = max(0.0, kept_s - took_s)
        asyncio.get_running_loop().call_later(left_s, self._end, key, answer)

    def _end(self, key: Hashable, answer: asyncio.Task[Any]) -> None:
        if self._answers.get(key) is answer:
            del self._answers[key]


async def _asked(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()
