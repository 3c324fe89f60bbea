"""Processes by identity, not by name: a pid with its start time, a session, and a mark in the environment.

A handler's tree is everything in its session, plus everything that carries its MARK: a child that made a session of its
own, or that was orphaned, still has the mark. Without /proc (macOS) only the process group is known.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

MARK = "ORCHESTRATOR_HANDLER"  # environment variable: "<run dir>#<number>", inherited by all that a handler starts
POLL_S = 0.01
KILL_WAIT_S = 3.0  # for the kernel to take away what was sent SIGKILL
_PROC = os.path.isdir("/proc/self")

_STATE, _SESSION, _START = 0, 3, 19  # fields 3, 6 and 22 of /proc/<pid>/stat, counted from behind the command name


def start_time(pid: int) -> str | None:
    """Field 22 of /proc/<pid>/stat, which with the pid names a process for good; None where it cannot be read."""
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
    """Live pids in the session or bearing a mark that begins with `mark`, without the caller."""
    if not _PROC:
        return {session} if session and _group_lives(session) else set()
    wanted, found = os.fsencode(f"{MARK}={mark}"), set()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        fields = _stat(int(name))
        if not fields or fields[_STATE] in "ZX":
            continue
        if (session and fields[_SESSION] == str(session)) or _bears(name, wanted):
            found.add(int(name))
    return found


def end(session: int | None, mark: str, grace_s: float) -> set[int]:
    """TERM the tree, wait `grace_s`, KILL what is left; returns what even that did not end."""
    signal_all(tree(session, mark), session, signal.SIGTERM)
    left = _wait_gone(session, mark, grace_s)
    until = time.monotonic() + KILL_WAIT_S
    while left and time.monotonic() < until:  # again, because a tree may grow while it is being cut down
        signal_all(left, session, signal.SIGKILL)
        left = _wait_gone(session, mark, 0.1)
    return left


def signal_all(pids: set[int], session: int | None, number: int) -> None:
    """Send a signal to the session's group and to each pid; what has gone already is no error."""
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


def _bears(pid: str, wanted: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return (b"\0" + environ.read()).find(b"\0" + wanted) >= 0
    except OSError:
        return False  # another user's, or gone


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
        return False
    return True
