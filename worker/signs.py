"""Signs of life of the running task: its reports, its log, its files, processor time and GPU time.

A task is stuck only if none of them changes. Reports come from the handler host, GPU time from the monitor. The
heartbeat says for how long there has been no sign (`AgentState.still_s`). The database decides by its own clock, and
names the stuck tasks in its answer.
"""

from __future__ import annotations

import os
import time

from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .agent_state import AgentState
    from .config import Config, RunDir

LOOK_S = 10.0  # seconds between two checks
MAX_FILES, MAX_PROCESSES = 2_000, 2_000  # files of the task that a check reads
CPU_SHARE = 0.001  # of a core: a process that only waits with a timeout uses less
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class SignsOfLife:
    """Checks one attempt for signs of life; used only by the agent's main thread."""

    def __init__(
        self, state: AgentState, config: Config, run: RunDir, folder: str, family: Callable[[], set[int]]
    ) -> None:
        """`family` returns the live processes of the attempt's host."""
        self._state, self._log, self._folder, self._family = state, run.log("handler"), folder, family
        self._every_s = min(LOOK_S, config.heartbeat_s / 2)
        self._worked_at = time.monotonic()
        self._due = self._worked_at + self._every_s  # a short task is over by then: a check reads all of /proc
        self._seen = self._outside()
        self._ticks: dict[int, int] | None = None  # None: not checked yet

    def look(self) -> None:
        """Check for a sign, unless the last check was a short time ago."""
        if time.monotonic() >= self._due:
            seen, worked = self._outside(), self._has_worked()
            if worked or seen != self._seen:
                self._state.still_s = 0.0
            self._seen, self._due = seen, time.monotonic() + self._every_s

    def _outside(self) -> tuple[int, ...]:
        """Return a value that changes when the task writes to its log, or to a file in its directory."""
        try:
            log = os.stat(self._log).st_size
        except OSError:
            log = 0
        return (log, *_files(self._folder))

    def _has_worked(self) -> bool:
        """Return whether its processes have used more than CPU_SHARE of a core since the last time they did.

        The first check has nothing to compare with, and counts as a sign: the task began a moment ago.
        """
        before, ticks = self._ticks, processes.cpu_ticks(self._family(), MAX_PROCESSES)
        now = time.monotonic()
        if before is not None:
            used = sum(max(0, count - before.get(pid, 0)) for pid, count in ticks.items())
            if used <= CPU_SHARE * TICKS_PER_S * (now - self._worked_at):
                return False
        self._ticks, self._worked_at = ticks, now
        return True


def _files(folder: str) -> tuple[int, int, int]:
    """Return the number of files, their bytes and the newest modification time, of at most MAX_FILES."""
    count, size, newest, folders = 0, 0, 0, [folder]
    while folders and count < MAX_FILES:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    count, size, newest = count + 1, size + found.st_size, max(newest, found.st_mtime_ns)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    if count == MAX_FILES:
                        break
        except OSError:  # removed in the meantime
            continue
    return count, size, newest
