"""Wake-ups for long polls: a waiting claim is woken when there may be a task.

A wake-up for a pool wakes one waiter: the worker whose last task ended most recently. So the others stay idle, and the
windows of scaling (core/economics/windows.py) hold. A waiter that gets a task wakes two more, so n tasks cause about 2n
claims. No wake-up is lost: each has a number, a wait names the last number it has seen (`mark`) and returns at once if
there is a later one, and a woken waiter that cannot use the wake-up passes it on. The query at the end of every wait
finds the rest, for example a row that was locked before.
"""

import asyncio
from collections import OrderedDict, defaultdict
from heapq import nlargest

from orchestrator.ports import ASKS_CHANNEL, FLEET_CHANNEL, TASKS_CHANNEL

FANOUT = 2  # waiters woken by one that got a task
MAX_WAITERS = 4_096  # beyond it, a wait returns at once: the caller's own poll is the net
ANY = "*"  # waits for every pool
MAX_NAMES = 10_000  # pools and workers whose last wake-up is remembered


class WakeupHub:
    """The long polls of one process. All methods run on one event loop."""

    def __init__(self) -> None:
        self._number = 0
        self._forgotten = 0  # the newest wake-up whose name is no longer remembered
        self._last: OrderedDict[tuple[str, str], int] = OrderedDict()
        # the waiters of a name, and since when each is idle
        self._waiters: dict[tuple[str, str], dict[asyncio.Future[None], float]] = defaultdict(dict)
        self._waiting = 0
        self._closed = False

    @property
    def waiting(self) -> int:
        """Return how many callers wait now."""
        return self._waiting

    @property
    def closed(self) -> bool:
        """Whether the server is stopping: a wait would return at once."""
        return self._closed

    def mark(self) -> int:
        """Return the number of the last wake-up. Read it before the query for tasks, and pass it to `wait`."""
        return self._number

    def on_notification(self, channel: str, payload: str) -> None:
        """Take a notification of the database on any channel. The SQL functions say when each is sent."""
        if channel == TASKS_CHANNEL:
            self.notify(payload)
        elif channel == FLEET_CHANNEL:
            self.notify_worker(payload)
        elif channel != ASKS_CHANNEL:
            self.notify_all()  # "connected": what was sent before is lost

    def notify(self, pool: str) -> None:
        """Wake a waiter of a pool: there may be tasks in it."""
        self._note(("pool", pool))
        self._note(("pool", ANY))
        self._wake_of_pool(pool, 1)

    def notify_worker(self, worker_id: str) -> None:
        """Wake one worker: it may claim now, or must drain or stop."""
        self._note(("worker", worker_id))
        self._wake(("worker", worker_id), MAX_WAITERS)

    def notify_all(self) -> None:
        """Wake all waiters, because notifications may have been missed (the listening connection broke)."""
        self._number += 1
        self._last.clear()
        self._forgotten = self._number
        for name in tuple(self._waiters):
            self._wake(name, MAX_WAITERS)

    def hand_on(self, pool: str | None) -> None:
        """Wake a few more of a pool's waiters: the last wake-up may have been about more than one task."""
        if pool is not None:
            self._wake_of_pool(pool, FANOUT)

    async def wait(
        self,
        pool: str | None,
        timeout_s: float,
        *,
        worker_id: str | None = None,
        mark: int | None = None,
        idle_since_s: float = 0.0,
    ) -> bool:
        """Wait. Return True when woken, at once if there was a wake-up after `mark`; False when the time is over.

        The waiter with the greatest `idle_since_s` (on the loop's clock) is woken first.
        """
        names = [(kind, name) for kind, name in (("pool", pool), ("worker", worker_id)) if name is not None]
        if mark is not None and any(self._last.get(name, self._forgotten) > mark for name in names):
            return True
        if self._closed or timeout_s <= 0 or self._waiting >= MAX_WAITERS:
            return False
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting += 1
        for name in names:
            self._waiters[name][woken] = idle_since_s
        try:
            async with asyncio.timeout(timeout_s):
                await woken
        except TimeoutError:
            return woken.done() and not woken.cancelled() and not self._closed
        except asyncio.CancelledError:
            if woken.done() and not woken.cancelled():
                self.hand_on(pool)
            raise
        finally:
            self._waiting -= 1
            for name in names:
                self._leave(name, woken)
        return not self._closed

    def close(self) -> None:
        """Wake all waiters, and refuse new ones: the server is stopping."""
        self._closed = True
        for name in tuple(self._waiters):
            self._wake(name, MAX_WAITERS)

    def _note(self, name: tuple[str, str]) -> None:
        self._number += 1
        self._last[name] = self._number
        self._last.move_to_end(name)
        if len(self._last) > MAX_NAMES:
            self._forgotten = self._last.popitem(last=False)[1]

    def _wake_of_pool(self, pool: str, most: int) -> None:
        woken = self._wake(("pool", pool), most)
        if woken < most:
            self._wake(("pool", ANY), most - woken)

    def _wake(self, name: tuple[str, str], most: int) -> int:
        waiters = self._waiters.get(name, {})
        sleepers = nlargest(most, (one for one in waiters if not one.done()), key=waiters.__getitem__)
        for woken in sleepers:
            woken.set_result(None)
        return len(sleepers)

    def _leave(self, name: tuple[str, str], woken: asyncio.Future[None]) -> None:
        waiters = self._waiters[name]
        waiters.pop(woken, None)
        if not waiters:
            del self._waiters[name]
