"""A share of a Db's connections, for calls of which many come at once: the loop's own calls must not wait for them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from orchestrator.ports import Db, Unavailable

WAIT_S = 15.0  # for a turn: as long as a call may take


class Lane:
    """A Db over another one, with so many calls under way at most."""

    def __init__(self, db: Db, limit: int, *, wait_s: float = WAIT_S) -> None:
        self._db, self._gate, self._wait_s = db, asyncio.Semaphore(limit), wait_s

    async def call(self, function: str, /, **args: Any) -> Any:
        """As the Db's own. Raises Unavailable where it got no turn in time: then nothing was asked."""
        try:
            async with asyncio.timeout(self._wait_s):
                await self._gate.acquire()
        except TimeoutError:
            raise Unavailable(f"{function}: no turn within {self._wait_s:g} s") from None
        try:
            return await self._db.call(function, **args)
        finally:
            self._gate.release()

    def notifications(self) -> AsyncIterator[tuple[str, str]]:
        """As the Db's own."""
        return self._db.notifications()

    async def close(self) -> None:
        """As the Db's own."""
        await self._db.close()
