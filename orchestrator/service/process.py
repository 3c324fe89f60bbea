"""The process of the service: its end after a signal, its limits, and its garbage collection."""

import asyncio
import gc
import os
import resource
import signal
import threading
from contextlib import suppress
from types import FrameType

EXIT_WITHIN_S = 2.5  # after a signal, also if a part hangs: the next leader finds the rest, as after a crash
CUT_SHORT = b'{"event": "orchestrator_cut_short", "level": "warning", "message": "something held up the end"}\n'
# allocations between two collections of the youngest generation, then collections for each older one
GC_THRESHOLDS = (50_000, 20, 20)


def stop_on_signals(stop: asyncio.Event) -> None:
    """Set `stop` at the first signal. If the process still runs EXIT_WITHIN_S later, end it at once.

    The loop's own signal handlers are not enough: the loop may hang, and a hanging call in a thread would delay the
    exit of the interpreter.
    """
    loop = asyncio.get_running_loop()
    asked: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if asked:
            os._exit(128 + number)
        asked.append(number)
        loop.call_soon_threadsafe(stop.set)
        late = threading.Timer(EXIT_WITHIN_S, _exit_now)
        late.daemon = True
        late.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)


def keep_objects_of_start() -> None:
    """Take all present objects out of garbage collection: modules and classes, which live as long as the process.

    A collection visits them all otherwise, and holds the event loops meanwhile: 150 ms for 230,000 objects.
    """
    gc.freeze()


def _exit_now() -> None:
    os.write(2, CUT_SHORT)  # not through logging: a hanging thread may hold its lock
    os._exit(0)


def raise_limits() -> None:
    """Prepare the process for a thousand workers: an SSH session and two HTTP connections each, and many objects.

    Most objects live as long as a worker. With Python's default thresholds, the garbage collector visits all of them
    again and again, which takes half of the process's time at this size.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(
        ValueError, OSError
    ):  # macOS refuses more than its kernel allows a process, although the limit is higher
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.set_threshold(*GC_THRESHOLDS)
