"""The bound of each test that has none of its own: a test that hangs fails soon, and says where it waits."""

import asyncio
import functools
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

BOUND_S = {"unit": 300.0, "db": 300.0, "process": 600.0}  # by tier: ten times what the slowest takes on a busy machine


def bound_s(place: str) -> float | None:
    """Return the seconds that a test may take, by its path under tests/. None: it has a bound of its own."""
    return BOUND_S.get(place.partition("/")[0])


def bounded(test: Callable[..., Awaitable[Any]], seconds: float) -> Callable[..., Awaitable[Any]]:
    """Return the asynchronous test with a bound in real time: tests move the clock of their loop.

    Beyond it, TimeoutError is raised where it waits.
    """

    @functools.wraps(test)
    async def run(*args: Any, **kwargs: Any) -> Any:
        loop, task, rang = asyncio.get_running_loop(), asyncio.current_task(), threading.Event()
        assert task is not None

        def ring(*_: object) -> None:
            rang.set()
            loop.call_soon_threadsafe(task.cancel)

        with _alarm(seconds, ring):
            try:
                return await test(*args, **kwargs)
            except asyncio.CancelledError as error:
                if not rang.is_set():
                    raise
                task.uncancel()
                raise TimeoutError(f"no end within {seconds:g} s") from error

    return run


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread if the block takes longer."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"no end within {seconds:g} s")

    with _alarm(seconds, ring):
        yield


@contextmanager
def _alarm(seconds: float, ring: Callable[..., None]) -> Iterator[None]:
    """Call `ring` in the main thread if the block takes longer. An alarm that was set before continues after."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, left = signal.signal(signal.SIGALRM, ring), signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *left)
        signal.signal(signal.SIGALRM, before)
