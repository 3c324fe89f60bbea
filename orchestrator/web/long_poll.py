"""Claims that wait: while there is nothing for a worker its claim stays open, without a connection to the database.

The database is asked when a claim begins, at each wake-up, and at the end, where an answer without tasks spends the
claim's number. The agent then asks again at once, under the next number: what the database said an instant before
still holds, or else there was a wake-up since. So such a claim begins to wait without being asked first: that is half
of what idle workers would ask of the database.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request

from orchestrator.core.states import State
from orchestrator.web.wakeups import ANY, WakeupHub
from orchestrator.worker_tokens import Claims
from worker import protocol

MAX_WAIT_S = 25.0  # of a claim; proxies in front of us end silent requests after 30 s or more
FRESH_S = 2.0  # for how long a last look stands in for the next claim's first: over the slowest way to a pod and back
_Asked = tuple[int, str | None, str | None, str]  # a claim's number, its worker, launch and token


@dataclass(frozen=True, slots=True)
class _Look:
    """The last word to a worker that found nothing."""

    next_asked: _Asked | None
    pool: str
    mark: int  # of the wake-ups before it
    at_s: float


class LongPolls:
    """The open claims of one process."""

    def __init__(self, call: Callable[[Claims, str, Mapping[str, Any]], Awaitable[Any]], wakeups: WakeupHub) -> None:
        """`call` is one call of a worker function for a worker; what it raises, `claim` raises."""
        self._call, self._signal = call, wakeups
        self._looks: dict[str, _Look] = {}  # worker id -> its last one, oldest first

    async def claim(self, request: Request, claims: Claims, arguments: Mapping[str, Any]) -> Any:
        """Claim; while there is nothing and the caller is willing, wait and claim again. Raises ClientDisconnect."""
        now = asyncio.get_running_loop().time
        wait_s, worker_id = _wait_s(arguments), claims["sub"]
        until, woken = now() + wait_s, False
        look = self._looks.pop(worker_id, None)
        if (
            look
            and look.next_asked
            and wait_s > 0
            and now() - look.at_s < FRESH_S
            and look.next_asked == _asked(claims, arguments)
        ):
            woken = await self._wait(request, worker_id, look.pool, wait_s, look.mark)
        while True:
            mark, left_s = self._signal.mark(), 0.0 if self._signal.closed else until - now()
            if wait_s > 0:  # at 0 the database takes an answer without tasks for the last one under this number
                arguments = {**arguments, "p_wait_s": json.dumps(max(0.0, left_s))}
            answer = await self._call(claims, protocol.CLAIM, arguments)
            pool, spawning = answer.get("pool"), answer.get("state") == State.SPAWNING
            done = bool(answer.get("tasks")) or answer.get("wanted") != protocol.RUN or bool(answer.get("spent"))
            if woken and done:
                self._signal.hand_on(pool)  # the wake-up may have been about more than we took
            if done or left_s <= 0:
                if pool and not (done or spawning):
                    self._remember(worker_id, _Look(_asked(claims, arguments, later=1), pool, mark, now()))
                return answer
            waits_for = None if spawning else pool or ANY  # who may not claim yet must not use up a pool's wake-up
            woken = await self._wait(request, worker_id, waits_for, max(0.0, until - now()), mark)

    async def _wait(self, request: Request, worker_id: str, pool: str | None, timeout_s: float, mark: int) -> bool:
        """Until woken (True) or the time is up. Raises ClientDisconnect when the caller has gone: do not claim then."""
        signal = asyncio.ensure_future(self._signal.wait(pool, timeout_s, worker_id=worker_id, mark=mark))
        gone = asyncio.ensure_future(request.receive())  # the body has been read: all that can come is the disconnect
        try:
            await asyncio.wait({signal, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not gone.done():
                return signal.result()
            if signal.done() and signal.result():
                self._signal.hand_on(pool)
            raise ClientDisconnect
        finally:
            signal.cancel()
            gone.cancel()
            await asyncio.gather(signal, gone, return_exceptions=True)

    def _remember(self, worker_id: str, look: _Look) -> None:
        self._looks[worker_id] = look  # it was popped when the claim began: the newest is always the last
        for stale in [name for name, one in self._looks.items() if look.at_s - one.at_s >= FRESH_S]:
            del self._looks[stale]


def _asked(claims: Claims, arguments: Mapping[str, Any], later: int = 0) -> _Asked | None:
    """Who asks under which number, or that many numbers later; None of a number that is not plainly one."""
    number = arguments.get("p_claim_no") or ""
    who = (arguments.get("p_worker_id"), arguments.get("p_nonce"), claims["jti"])
    return (int(number) + later, *who) if number.isdecimal() else None


def _wait_s(arguments: Mapping[str, Any]) -> float:
    """How long a claim may wait; what the database would not read as a number is for it to refuse."""
    try:
        wait_s = float(arguments.get("p_wait_s") or 0)
    except ValueError:
        return 0.0
    return min(wait_s, MAX_WAIT_S) if wait_s > 0 else 0.0  # false for NaN too
