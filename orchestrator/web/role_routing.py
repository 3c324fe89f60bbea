"""Routes agents' calls to the database by the role of this process: a leader's gateway has its own connections.

A standby has one connection. During a deploy, a platform may send it agents' calls: they use this connection.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from orchestrator.ports import ApiCalls, Unavailable, WorkerDb
from orchestrator.web.fair_turns import FairTurns, NoTurn

API_CALLS = 2  # at once: the gateway has three connections, and one is always left for the agents
TURN_S = 10.0  # that a call of the API waits for its turn


class RoleRoutedDb:
    """A WorkerDb that uses one of two: the gateway's on this event loop, or the process's on the main one."""

    def __init__(self, own: WorkerDb, shared: WorkerDb, main: asyncio.AbstractEventLoop, leads: Callable[[], bool]):
        self._own, self._shared, self._main, self._leads = own, shared, main, leads

    async def call_as_worker(self, claims: Mapping[str, Any], function: str, args: Mapping[str, Any]) -> Any:
        """See ports.WorkerDb."""
        if self._leads():
            return await self._own.call_as_worker(claims, function, args)
        return await self._on_main(self._shared.call_as_worker(claims, function, args))

    async def heartbeats(self, batch: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """See ports.WorkerDb."""
        if self._leads():
            return await self._own.heartbeats(batch)
        answers: Mapping[str, Any] = await self._on_main(self._shared.heartbeats(batch))
        return answers

    async def _on_main(self, call: Coroutine[Any, Any, Any]) -> Any:
        return await _on(self._main, call)


class RoleRoutedCalls:
    """The database for the API: the gateway's connections, or the process's main ones, and never all of them.

    Tokens take turns: the calls of one wait for those of another at most as long as one call takes.
    """

    def __init__(
        self, own: ApiCalls | None, shared: ApiCalls, main: asyncio.AbstractEventLoop, leads: Callable[[], bool]
    ) -> None:
        """`own` is None over Supabase's API."""
        self._own, self._shared, self._main, self._leads = own, shared, main, leads
        self._turns = FairTurns(API_CALLS)

    async def call(self, function: str, /, **args: Any) -> Any:
        """See ports.Db. Raises Unavailable if it got no turn in time: then the call was not made."""
        try:
            async with self._turns.turn(TURN_S):
                return await self._called(function, args)
        except NoTurn:
            raise Unavailable(f"{function}: no turn within {TURN_S:g} s") from None

    async def _called(self, function: str, args: Mapping[str, Any]) -> Any:
        if self._own is not None and self._leads():
            return await self._own.call(function, **args)
        return await _on(self._main, self._shared.call(function, **args))


async def _on(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, Any]) -> Any:
    """Run a call on another event loop."""
    try:
        asked = asyncio.run_coroutine_threadsafe(call, loop)
    except RuntimeError:  # its loop has closed: the process is about to end
        call.close()
        raise Unavailable("this process is stopping") from None
    return await asyncio.wrap_future(asked)
