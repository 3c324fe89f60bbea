"""Turns at what few may use at once, served by caller: the many calls of one do not delay those of another."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

# The name of the token whose request this is; "" for what the process does for several callers.
CALLER: ContextVar[str] = ContextVar("caller", default="")


class NoTurn(Exception):
    """No turn came in time."""


class FairTurns:
    """So many turns at a time, of which one caller has at most `each`. All methods run on one event loop."""

    def __init__(self, at_once: int, each: int | None = None) -> None:
        self._free, self._each = at_once, each or at_once
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # caller -> its calls
        self._has: Counter[str] = Counter()  # caller -> turns

    @asynccontextmanager
    async def turn(self, timeout_s: float | None = None) -> AsyncIterator[None]:
        """Wait for a turn of the present caller. Raises NoTurn after this time (None: no limit)."""
        caller = CALLER.get()
        await self._take(caller, timeout_s)
        try:
            yield
        finally:
            self._give_back(caller)

    async def _take(self, caller: str, timeout_s: float | None) -> None:
        given = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(given)
        self._serve()
        try:
            async with asyncio.timeout(timeout_s):
                await given
        except TimeoutError:
            self._leave(caller, given)
            raise NoTurn from None
        except asyncio.CancelledError:
            self._leave(caller, given)
            raise

    def _leave(self, caller: str, given: asyncio.Future[None]) -> None:
        if not given.cancelled():  # the turn came in the moment in which its caller gave up
            self._give_back(caller)
        elif given in (calls := self._waiting.get(caller, deque())):
            calls.remove(given)
            if not calls:
                del self._waiting[caller]

    def _turns_of(self, caller: str) -> int:
        return self._has.get(caller, 0)

    def _give_back(self, caller: str) -> None:
        self._free += 1
        self._has[caller] -= 1
        if not self._has[caller]:
            del self._has[caller]
        self._serve()

    def _serve(self) -> None:
        """Give each free turn to the caller that has the fewest; among equals, to the one that has waited longest."""
        while self._free and self._waiting:
            caller = min(self._waiting, key=self._turns_of)
            if self._turns_of(caller) >= self._each:
                return
            calls = self._waiting.pop(caller)
            given = calls.popleft()
            if calls:
                self._waiting[caller] = calls  # behind all others
            if not given.done():  # its caller still waits
                self._free -= 1
                self._has[caller] += 1
                given.set_result(None)
