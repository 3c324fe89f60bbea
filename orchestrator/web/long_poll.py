"""Long polls: a claim without a task stays open, without a database connection.

The database is queried when a claim begins, at each wake-up, and at the end, where an answer without tasks uses up the
claim's number. The agent then claims again at once, under the next number. The previous answer of the database still
holds, unless there was a wake-up since. So such a claim waits without querying the database first, which saves half of
the idle workers' queries.

Of the workers that wait, the one whose last task ended most recently is woken first (wakeups.py). One whose last task
failed is woken after all others.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request

from orchestrator.core.states import State
from orchestrator.web.wakeups import ANY, WakeupHub
from orchestrator.worker_tokens import Claims
from worker import protocol

MAX_WAIT_S = 25.0  # of a claim; proxies in front of us end silent requests after 30 s or more
LATER_S = 1e9  # no clock of a loop is so far
MAX_FAILED = 10_000  # workers
FORGET_S = 3 * MAX_WAIT_S  # a worker that has not waited for so long is forgotten
FRESH_S = 2.0  # for how long an empty answer replaces the next claim's first query: the longest round trip to a pod
_ClaimKey = tuple[int, str | None, str | None, str]  # a claim's number, its worker, launch and token


@dataclass(frozen=True, slots=True)
class _EmptyClaim:
    """The last empty answer to a worker."""

    next_claim: _ClaimKey | None
    pool: str
    mark: int  # of the wake-ups before it
    at_s: float


class IdleTimes:
    """Since when each worker that waits for a task has been without one, on the loop's clock.

    A worker whose last task failed comes after all others: it would be the first one to get the next task, and the
    next attempt of the same task.
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, float]] = {}  # worker id -> since when, and when it last began to wait
        self._failed: OrderedDict[str, None] = OrderedDict()  # workers whose last task failed

    def note_end(self, worker_id: str, *, failed: bool) -> None:
        """Note how the last task of a worker ended."""
        self._failed.pop(worker_id, None)
        if failed:
            self._failed[worker_id] = None
            if len(self._failed) > MAX_FAILED:
                self._failed.popitem(last=False)

    def rank(self, worker_id: str, now_s: float) -> float:
        """Return the place of a worker that begins to wait: the greatest is woken first."""
        since_s = self.since_s(worker_id, now_s)
        return since_s - LATER_S if worker_id in self._failed else since_s

    def since_s(self, worker_id: str, now_s: float) -> float:
        """Return since when a worker that begins to wait has been idle: its waits follow each other."""
        since_s, seen_s = self._since.pop(worker_id, (now_s, now_s))
        since_s = since_s if now_s - seen_s < FORGET_S else now_s
        self._since[worker_id] = since_s, now_s
        while now_s - next(iter(self._since.values()))[1] >= FORGET_S:  # the first one has waited least recently
            del self._since[next(iter(self._since))]
        return since_s

    def ended(self, worker_id: str) -> None:
        """Forget a worker that got a task."""
        self._since.pop(worker_id, None)


class LongPolls:
    """The open claims of one process."""

    def __init__(self, call: Callable[[Claims, str, Mapping[str, Any]], Awaitable[Any]], wakeups: WakeupHub) -> None:
        """`call` calls a worker function for a worker. `claim` raises its errors."""
        self._call, self._signal = call, wakeups
        self._empty_claims: dict[str, _EmptyClaim] = {}  # worker id -> its last one, oldest first
        self._idle = IdleTimes()

    def note_end(self, worker_id: str, *, failed: bool) -> None:
        """Note how the last task of a worker ended."""
        self._idle.note_end(worker_id, failed=failed)

    async def claim(self, request: Request, claims: Claims, arguments: Mapping[str, Any]) -> Any:
        """Claim. Without a task, wait and claim again, as long as the caller waits. Raises ClientDisconnect."""
        now = asyncio.get_running_loop().time
        wait_s, worker_id = _wait_s(arguments), claims["sub"]
        until, woken, waits_for = now() + wait_s, False, None
        look = self._empty_claims.pop(worker_id, None)
        if (
            look
            and look.next_claim
            and wait_s > 0
            and now() - look.at_s < FRESH_S
            and look.next_claim == _asked(claims, arguments)
        ):
            waits_for = look.pool
            woken = await self._wait(request, worker_id, waits_for, wait_s, look.mark)
        while True:
            mark, left_s = self._signal.mark(), 0.0 if self._signal.closed else until - now()
            if wait_s > 0:  # at 0 the database takes an answer without tasks for the last one under this number
                arguments = {**arguments, "p_wait_s": json.dumps(max(0.0, left_s))}
            try:
                answer = await self._call(claims, protocol.CLAIM, arguments)
            except Exception:
                if woken:
                    self._signal.hand_on(waits_for)
                raise
            # spawning, held back, or of a cluster: it may not claim now, and is woken when it may
            pool, not_yet = answer.get("pool"), answer.get("state") == State.SPAWNING or answer.get("may") is False
            done = bool(answer.get("tasks")) or answer.get("wanted") != protocol.RUN or bool(answer.get("spent"))
            if answer.get("tasks"):
                self._idle.ended(worker_id)
            if woken and (done or not_yet):
                self._signal.hand_on(pool)  # the wake-up may have been about more tasks than were claimed
            if done or left_s <= 0:
                if pool and not (done or not_yet):
                    self._remember(worker_id, _EmptyClaim(_asked(claims, arguments, later=1), pool, mark, now()))
                return answer
            # a worker that may not claim yet must not use up a pool's wake-up
            waits_for = None if not_yet else pool or ANY
            woken = await self._wait(request, worker_id, waits_for, max(0.0, until - now()), mark)

    async def _wait(self, request: Request, worker_id: str, pool: str | None, timeout_s: float, mark: int) -> bool:
        """Wait until woken (True) or the time is over.

        Raises ClientDisconnect if the caller has gone: do not claim then.
        """
        rank = self._idle.rank(worker_id, asyncio.get_running_loop().time())
        waiting = self._signal.wait(pool, timeout_s, worker_id=worker_id, mark=mark, idle_since_s=rank)
        signal = asyncio.ensure_future(waiting)
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

    def _remember(self, worker_id: str, look: _EmptyClaim) -> None:
        self._empty_claims[worker_id] = look  # it was popped when the claim began: the newest is always the last
        for stale in [name for name, one in self._empty_claims.items() if look.at_s - one.at_s >= FRESH_S]:
            del self._empty_claims[stale]


def _asked(claims: Claims, arguments: Mapping[str, Any], later: int = 0) -> _ClaimKey | None:
    """Return the key of a claim, or of the claim `later` numbers after it. None for an invalid number."""
    number = arguments.get("p_claim_no") or ""
    who = (arguments.get("p_worker_id"), arguments.get("p_nonce"), claims["jti"])
    return (int(number) + later, *who) if number.isdecimal() else None


def _wait_s(arguments: Mapping[str, Any]) -> float:
    """Return how long a claim may wait. The database refuses an invalid number."""
    try:
        wait_s = float(arguments.get("p_wait_s") or 0)
    except ValueError:
        return 0.0
    return min(wait_s, MAX_WAIT_S) if wait_s > 0 else 0.0  # false for NaN too
