"""A share of a Db's connections for many simultaneous calls, so that the loop's own calls need not wait for them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from orchestrator.ports import Db, Unavailable

WAIT_S = 15.0  # to wait for a turn: as long as a call may take


class ConnectionLane:
    """A Db that uses another one, with a limit of simultaneous calls."""

    def __init__(self, db: Db, limit: int, *, wait_s: float = WAIT_S) -> None:
        self._db, self._gate, self._wait_s = db, asyncio.Semaphore(limit), wait_s

    async def call(self, function: str, /, **args: Any) -> Any:
        """Call as the Db does. Raises Unavailable if no turn came in time; then the call was not made."""
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
        """See ports.Db."""
        return self._db.notifications()

    async def close(self) -> None:
        """See ports.Db."""
        await self._db.close()
