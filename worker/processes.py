"""Processes, identified by pid and start time, by session, and by a mark in the environment.

A handler's tree is every process in its session, plus every process with its MARK: a child that started a session of
its own, or that was orphaned, still has the mark. Without /proc (macOS), only the process group is known.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

MARK = "ORCHESTRATOR_HANDLER"  # environment variable: "<run dir>#<number>", inherited by all processes of a handler
POLL_S = 0.01
KILL_WAIT_S = 3.0  # for the kernel to end processes after SIGKILL
_PROC = os.path.isdir("/proc/self")

_STATE, _SESSION, _UTIME, _CSTIME, _START = (
    0,
    3,
    11,
    14,
    19,
)  # fields 3, 6, 14, 17 and 22 of /proc/<pid>/stat, counted after the command name


def start_time(pid: int) -> str | None:
    """Return field 22 of /proc/<pid>/stat, None if it cannot be read. With the pid it identifies a process."""
    fields = _stat(pid)
    return fields[_START] if fields else None


def alive(pid: int, started: str | None) -> bool:
    """Whether the process that had this pid and start time still runs; a zombie does not."""
    if _PROC:
        fields = _stat(pid)
        return bool(fields) and fields[_STATE] not in "ZX" and started in {None, fields[_START]}
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def tree(session: int | None, mark: str) -> set[int]:
    """Return the live pids in the session, or with a mark that begins with `mark`. The caller is left out."""
    if not _PROC:
        return {session} if session and _is_group_alive(session) else set()
    wanted, found = os.fsencode(f"{MARK}={mark}"), set()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        fields = _stat(int(name))
        if not fields or fields[_STATE] in "ZX":
            continue
        if (session and fields[_SESSION] == str(session)) or _has_mark(name, wanted):
            found.add(int(name))
    return found


def cpu_ticks(session: int, mark: str, most: int) -> dict[int, int]:
    """Return the processor time of each process of the tree (`most` at most), with that of its ended children."""
    found = {}
    for pid in sorted(tree(session, mark))[:most]:
        fields = _stat(pid)
        if fields:
            found[pid] = sum(map(int, fields[_UTIME : _CSTIME + 1]))
    return found


def end(session: int | None, mark: str, grace_s: float) -> set[int]:
    """Send TERM to the tree, wait `grace_s`, then send KILL. Return the pids that still live."""
    signal_all(tree(session, mark), session, signal.SIGTERM)
    left = _wait_gone(session, mark, grace_s)
    until = time.monotonic() + KILL_WAIT_S
    while left and time.monotonic() < until:  # in a loop, because a tree may grow while it is being ended
        signal_all(left, session, signal.SIGKILL)
        left = _wait_gone(session, mark, 0.1)
    return left


def signal_all(pids: set[int], session: int | None, number: int) -> None:
    """Send a signal to the session's group and to each pid. A process that has ended is no error."""
    if session:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, number)
    for pid in pids - {session}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _wait_gone(session: int | None, mark: str, timeout_s: float) -> set[int]:
    until, pause_s = time.monotonic() + timeout_s, POLL_S
    while True:
        left = tree(session, mark)
        if not left or time.monotonic() >= until:
            return left
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.1)


def _stat(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()
    except OSError:
        return []


def _has_mark(pid: str, wanted: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return (b"\0" + environ.read()).find(b"\0" + wanted) >= 0
    except OSError:
        return False  # another user's process, or it has ended


def _is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # macOS answers EPERM for a group of zombies
        return False
    return True
