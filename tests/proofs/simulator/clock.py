"""Virtual time: one kernel, one event loop per simulated process, no real I/O, no thread, one order of events.

Each process has an event loop of its own, so it can be killed and frozen like a real one. A killed process never runs
another line, not even a `finally`. The timers of a frozen process wait, and fire late and all at once when it
continues. While a simulation runs, all code gets the kernel's clock and random numbers in place of the real ones
(`virtual`).
"""

import asyncio
import contextlib
import heapq
import itertools
import random
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, copy_context
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Self

import apscheduler.executors.base
import apscheduler.job
import apscheduler.schedulers.base
import apscheduler.triggers.interval

from orchestrator.loop import daemon
from orchestrator.pods import final_snapshot

EPOCH = datetime(2026, 11, 21, 23, 30, tzinfo=UTC)  # a new day of the budget begins in every long seed
BURST = 200_000  # callbacks of one process at one instant: more is a loop that never waits


class Livelock(Exception):
    """Raised for a process that runs without end while no time passes."""


class Killed(BaseException):
    """Raised in the coroutines of a killed process when they are closed, so that they do nothing."""


class Kernel:
    """The clock, and the queue of all events."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0  # seconds since EPOCH
        self.loops: list[SimLoop] = []
        self.errors: list[str] = []  # what no process caught
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._runnable: deque[SimLoop] = deque()
        self.ids = random.Random(f"ids of {seed}")
        self.steps = 0
        self._read_s, self._moment = 0.0, EPOCH  # the clock was last read then, and showed that

    def moment(self) -> datetime:
        """Return the time as a datetime, the same for every process."""
        if self._read_s != self.now:
            self._read_s, self._moment = self.now, EPOCH + timedelta(seconds=self.now)
        return self._moment

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        """Schedule a call."""
        heapq.heappush(self._heap, (self.now + delay_s, next(self._numbers), event))

    def wants_to_run(self, loop: "SimLoop") -> None:
        """Note that a process has a callback that is due."""
        if not loop.queued:
            loop.queued = True
            self._runnable.append(loop)

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Run until the condition holds, or until the limit. Return whether it held."""
        self._settle()
        while not until():
            if not self._heap or self._heap[0][0] > limit_s:
                self.now = limit_s
                return False
            at_s, _, event = heapq.heappop(self._heap)
            self.now = max(self.now, at_s)
            self.steps += 1
            event()
            self._settle()
        return True

    def _settle(self) -> None:
        while self._runnable:
            loop = self._runnable.popleft()
            loop.queued = False
            loop.drain()

    def clear(self) -> None:
        """End every process. Open coroutines of killed processes never run, and cause no warning."""
        for loop in self.loops:
            loop.kill()
            loop.ready.clear()
        self._heap.clear()
        self._runnable.clear()
        self.loops.clear()


def _quietly(left: "sys.UnraisableHookArgs") -> None:
    """Close the coroutines of killed processes without their effects."""
    if not isinstance(left.exc_value, Killed | RuntimeError):
        sys.__unraisablehook__(left)


class SimTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks have the same order in every run."""

    _counter = itertools.count()

    def __new__(cls, *_: Any, **__: Any) -> Self:
        task = super().__new__(cls)
        task.number = next(cls._counter)
        return task

    number: int

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class Due(asyncio.TimerHandle):
    """A callback that is due, or will be: the quarter of asyncio's handle that a simulated process uses."""

    __slots__ = ()

    def __init__(
        self, when: float, callback: Callable[..., Any], args: tuple[Any, ...], loop: "SimLoop", context: Context | None
    ) -> None:
        self._when, self._callback, self._args, self._loop = when, callback, args, loop
        self._context = context or copy_context()
        self._cancelled = self._scheduled = False
        self._source_traceback = self._repr = None


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel, self.name = kernel, name
        self.dead = self.frozen = self.queued = False
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: set[SimTask] = set()  # kept: a killed process's coroutines must not be closed by the collector
        kernel.loops.append(self)

    # --- what the world does to it

    def kill(self) -> None:
        """SIGKILL."""
        if not self.dead:
            self.dead = True
            for task in self.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        if self.frozen or self.dead:
            return
        self.frozen = True
        self.kernel.after(seconds, self._thaw)

    def _thaw(self) -> None:
        self.frozen = False
        self.kernel.wants_to_run(self)

    def drain(self) -> None:
        """Run the callbacks that are due, like a real loop between two waits."""
        if not self.ready or not self._turns():
            return
        asyncio._set_running_loop(self)
        try:
            for _ in range(BURST):
                if not self.ready or not self._turns():
                    return
                handle = self.ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            asyncio._set_running_loop(None)
        raise Livelock(f"{self.name} never waits (at {self.kernel.now:.3f} s)")

    def _turns(self) -> bool:
        return not (self.dead or self.frozen)

    # --- what asyncio asks of it

    def time(self) -> float:
        return self.kernel.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = Due(0.0, callback, args, self, context)
        self.ready.append(handle)
        if not self.queued:
            self.kernel.wants_to_run(self)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.kernel.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = Due(when, callback, args, self, context)

        def due() -> None:
            if not self.dead and not handle.cancelled():
                self.ready.append(handle)
                self.kernel.wants_to_run(self)

        self.kernel.after(max(0.0, when - self.kernel.now), due)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **kwargs: Any) -> SimTask:  # type: ignore[override]
        task = SimTask(coro, loop=self, **kwargs)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - carried over to whoever waits
            future.set_exception(error)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.dead:
            return
        error = context.get("exception")
        self.kernel.errors.append(f"{self.name}: {context.get('message')}: {type(error).__name__}: {error}")


@contextlib.contextmanager
def virtual(kernel: Kernel) -> Iterator[None]:
    """Replace the clocks and random numbers of the standard library by the kernel's while inside."""

    class Moment(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return kernel.moment() if tz is UTC else kernel.moment().astimezone(tz)

    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=kernel.ids.getrandbits(128), version=4)

    clocked = (
        apscheduler.executors.base,
        apscheduler.schedulers.base,
        apscheduler.triggers.interval,
        daemon,
        final_snapshot,
    )
    swapped: list[tuple[Any, str, Any]] = [(module, "datetime", Moment) for module in clocked]
    swapped += [(time, "monotonic", lambda: kernel.now), (time, "time", lambda: EPOCH.timestamp() + kernel.now)]
    swapped += [(uuid, "uuid4", uuid4), (apscheduler.job, "uuid4", uuid4)]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in swapped]
    SimTask._counter = itertools.count()
    sys.unraisablehook = _quietly
    for owner, name, value in swapped:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
