"""Ends a process that hangs, so that its platform starts another one.

A platform restarts a process that ends, and none restarts one that hangs: it would keep the lease, or its place as the
standby, and decide nothing. A thread of its own watches two things: that the event loop answers, and that ticks make
progress. A tick that fails is a tick that ended, so an outage of the database or of RunPod is no reason to end.

The thread counts its own rounds, not seconds. A stopped process (SIGSTOP, a suspended machine) makes no rounds, and a
process without CPU time makes few: neither hangs. A C call that never releases the interpreter's lock would stop this
thread too; bounded input prevents such calls.
"""

import asyncio
import contextlib
import faulthandler
import os
import threading
from collections.abc import Callable, Iterator

EXIT_WEDGED = 70  # EX_SOFTWARE of sysexits.h
STILL_S = 120.0  # without progress: the process hangs
ROUND_S = 1.0  # between two looks


class Watchdog:
    """Watches the event loop that starts it."""

    def __init__(
        self,
        progress: Callable[[], object],
        *,
        tick_limit_s: float,
        loop_limit_s: float = STILL_S,
        round_s: float = ROUND_S,
        end: Callable[[str], None] | None = None,
    ) -> None:
        """`progress` changes after each step of a tick. `end` is called once, with the reason."""
        self._progress, self._end = progress, end or _end
        self._limits_s = {"event loop": loop_limit_s, "tick": tick_limit_s}
        self._round_s = round_s
        self._answers = 0  # of the event loop
        self._over = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while inside."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._watch, args=(loop,), name="watchdog", daemon=True).start()
        try:
            yield
        finally:
            self._over.set()

    def _answer(self) -> None:
        self._answers += 1

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        still_s = dict.fromkeys(self._limits_s, 0.0)
        before: dict[str, object] = {}
        while not self._over.wait(self._round_s):
            now: dict[str, object] = {"event loop": self._answers, "tick": self._progress()}
            for name, limit_s in self._limits_s.items():
                still_s[name] = still_s[name] + self._round_s if now[name] == before.get(name) else 0.0
                if still_s[name] > limit_s:
                    self._end(f"the {name} has stood still for {limit_s:g} s")
                    return
            before = now
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
                loop.call_soon_threadsafe(self._answer)


def _end(why: str) -> None:
    """Write to stderr without logging: a hanging thread may hold its lock."""
    os.write(2, f'{{"event": "orchestrator_wedged", "level": "critical", "message": "{why}"}}\n'.encode())
    faulthandler.dump_traceback(2)
    os._exit(EXIT_WEDGED)
