"""Sends calls to the provider in lanes by priority, within the account's limits, each in its own thread.

A slow create delays no list and no delete: each priority has its own slots and its own limit of hanging calls. The
threads are daemons: a thread pool would be joined at exit, and one hanging call would delay the shutdown.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from orchestrator.adapters.runpod_transport import observed_call
from orchestrator.core.call_budget import CallBudget, Priority
from orchestrator.ports import NotSent

Result = TypeVar("Result")
SLOTS = {Priority.LIST: 2, Priority.DELETE: 4, Priority.CREATE: 8, Priority.OTHER: 2}  # calls at once
HANGING = 4  # times its slots: the limit of a lane's running calls, including abandoned ones


@dataclass(slots=True)
class CallLane:
    """The calls of one priority."""

    slots: asyncio.Semaphore
    most: int
    threads: set[threading.Thread] = field(default_factory=set)

    async def in_thread(self, request: Callable[[], Result]) -> Result:
        """Run a request in a daemon thread. If the wait is cancelled, the thread continues. NotSent if none starts."""
        outcome: Future[Result] = Future()
        thread = threading.Thread(target=lambda: self._run(request, outcome), name="runpod", daemon=True)
        self.threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:  # the machine has no room for one more
            self.threads.discard(thread)
            raise NotSent(f"no thread for a call to RunPod: {error}") from error
        return await asyncio.wrap_future(outcome)

    def _run(self, request: Callable[[], Result], outcome: "Future[Result]") -> None:
        outcome.set_running_or_notify_cancel()  # from here on it cannot be cancelled, and accepts a result
        try:
            outcome.set_result(request())
        except BaseException as error:  # noqa: BLE001 - passed on to the waiting caller
            outcome.set_exception(error)
        finally:
            self.threads.discard(threading.current_thread())


@dataclass(slots=True)
class CallAttempt:
    """One request, and whether it may have been sent."""

    priority: Priority
    doing: str
    until_s: float  # on the loop's clock: after this, no caller waits for it
    sent: bool = False
    ended: bool = False  # it has an answer or an error


class Lanes:
    """All calls of one process."""

    def __init__(self) -> None:
        self._lanes = {one: CallLane(asyncio.Semaphore(slots), slots * HANGING) for one, slots in SLOTS.items()}
        self._budget = CallBudget()

    def pace_s(self) -> float:
        """Return the least seconds between two pages of lists that the account's limits allow."""
        return self._budget.pace_s(asyncio.get_running_loop().time())

    def wait_s(self, priority: Priority) -> float:
        """Return how long a call would have to wait now."""
        return self._budget.wait_s(priority, asyncio.get_running_loop().time())

    async def make(self, attempt: CallAttempt, request: Callable[[], Result]) -> Result:
        """Make a request in its turn. Raises NotSent if its turn came too late, or the request's errors."""
        lane, loop = self._lanes[attempt.priority], asyncio.get_running_loop()
        replies: list[tuple[int | None, Mapping[str, str]]] = []
        async with lane.slots:
            await self._turn(attempt)
            if len(lane.threads) >= lane.most:
                raise NotSent(f"{attempt.doing}: {lane.most} calls of this kind hang without an answer")
            self._budget.take(attempt.priority, loop.time())
            attempt.sent = True
            try:
                return await self._in_thread(lane, lambda: observed_call(lambda *one: replies.append(one), request))
            except Exception:
                attempt.ended = True  # and not by a cancel: it ended with an error
                raise
            finally:
                self._budget.answered(*(replies[-1] if replies else (None, {})), loop.time())

    async def _in_thread(self, lane: CallLane, request: Callable[[], Result]) -> Result:
        return await lane.in_thread(request)

    async def _turn(self, attempt: CallAttempt) -> None:
        """Wait until the account's limits allow the call."""
        loop = asyncio.get_running_loop()
        while (wait_s := self.wait_s(attempt.priority)) > 0:
            if loop.time() + wait_s >= attempt.until_s:
                raise NotSent(f"{attempt.doing}: the account's calls are used up for {wait_s:.0f} s", wait_s)
            await asyncio.sleep(wait_s)
