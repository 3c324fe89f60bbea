"""The agents' way to the database, by what this process is: a leader's gateway has connections of its own.

A standby has one connection. During a deploy a platform may send it agents' calls all the same: they go over that one.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from orchestrator.ports import Unavailable, WorkerDb


class RoleRoutedDb:
    """A WorkerDb over two of them, one on this event loop and one on the process's main one."""

    def __init__(self, own: WorkerDb, shared: WorkerDb, main: asyncio.AbstractEventLoop, leads: Callable[[], bool]):
        self._own, self._shared, self._main, self._leads = own, shared, main, leads

    async def call_as_worker(self, claims: Mapping[str, Any], function: str, args: Mapping[str, Any]) -> Any:
        """As the WorkerDb's own."""
        if self._leads():
            return await self._own.call_as_worker(claims, function, args)
        return await self._on_main(self._shared.call_as_worker(claims, function, args))

    async def heartbeats(self, beats: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """As the WorkerDb's own."""
        if self._leads():
            return await self._own.heartbeats(beats)
        answers: Mapping[str, Any] = await self._on_main(self._shared.heartbeats(beats))
        return answers

    async def _on_main(self, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            asked = asyncio.run_coroutine_threadsafe(call, self._main)
        except RuntimeError:  # its loop has closed: the process is about to end
            call.close()
            raise Unavailable("this process is stopping") from None
        return await asyncio.wrap_future(asked)
