"""The answers of the database that all open pages share for a second: many pages cost no more queries than one."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from contextvars import Context
from typing import Any, TypeVar

SHARED_S = 1.0
MAX_SHARED = 500  # answers

T = TypeVar("T")


class Shared:
    """Answers by key, each asked for once at a time. All methods run on one event loop."""

    def __init__(self, ttl_s: float = SHARED_S) -> None:
        self._ttl_s = ttl_s
        self._answers: OrderedDict[Hashable, tuple[float, asyncio.Task[Any]]] = OrderedDict()

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer of `ask`, or one of the same key that is younger than a second. Raises what `ask` raises."""
        now_s = time.monotonic()
        at_s, answer = self._answers.get(key, (0.0, None))
        if answer is None or (answer.done() and now_s - at_s >= self._ttl_s):
            answer = asyncio.create_task(self._asked(ask), name=f"dashboard {key}"[:100], context=Context())
            self._answers[key] = now_s, answer
            self._answers.move_to_end(key)
            while len(self._answers) > MAX_SHARED:
                self._answers.popitem(last=False)
        shared: T = await asyncio.shield(answer)  # one page that is closed does not end the question of the others
        return shared

    @staticmethod
    async def _asked(ask: Callable[[], Awaitable[T]]) -> T:
        return await ask()
