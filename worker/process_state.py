"""The state of the host's process that a handler may change, as it was when the module had been loaded.

After each task, `restore` puts back what can be put back. It names the rest, and what a handler should not have left:
then the next task gets a new host. What the module itself changed while it was loaded stays.
"""

from __future__ import annotations

import builtins
import signal
import sys

from .leftovers import Leftovers
from .library_state import LibraryState
from .patches import Patches
from .state_parts import LIMITS, PARTS

BUILTINS = vars(builtins)
SET_RECURSION_LIMIT = sys.setrecursionlimit
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


class ProcessState:
    """The state of this process now. `restore` is for the main thread, like `signal.signal`."""

    def __init__(self, code: list[str]) -> None:
        """`code`: the files and folders with the user's code."""
        self._builtins, self._recursion_limit = dict(BUILTINS), sys.getrecursionlimit()
        self._patches, self._libraries, self._leftovers = Patches(), LibraryState(), Leftovers(code)
        self._parts, self._limits = [(part, part.read()) for part in PARTS], LIMITS.read()
        self._interrupt = signal.getsignal(signal.SIGINT)
        self._changed: dict[str, None] = {}  # the names of replaced functions, in order

    def begin(self) -> None:
        """Prepare the process for the user's code."""
        signal.signal(signal.SIGINT, self._interrupt)

    def restore_first(self) -> None:
        """Put back what the host's own code needs. It calls no builtin at first: the handler may have replaced any."""
        BUILTINS.update(self._builtins)
        SET_RECURSION_LIMIT(self._recursion_limit)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a thread may interrupt the main thread later
        for timer in TIMERS:
            signal.setitimer(timer, 0.0)
        self._changed.update(self._patches.restore())
        LIMITS.put_back(self._limits)

    def restore(self, folder: str) -> list[str]:
        """Restore what the handler of the task with this folder changed. Return what the process cannot get rid of."""
        self.restore_first()
        for name in BUILTINS.keys() - self._builtins.keys() - {"_"}:
            self._changed[f"builtins.{name}"] = None
            del BUILTINS[name]
        lasting = [part.name for part, before in self._parts if not part.put_back(before)]
        self._libraries.restore(folder)
        return [*self._changed, *lasting, *self._leftovers.found()]
