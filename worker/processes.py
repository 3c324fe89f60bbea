"""Processes, identified by pid and start time, by session, and by a mark in the environment.

A handler's tree is every process in its session, plus every process with its MARK: a child that started a session of
its own, or that was orphaned, still has the mark. A process without both is found by its parents (families.py), because
the agent adopts orphans. Without /proc (macOS), only the process group is known.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "ORCHESTRATOR_HANDLER"  # environment variable: "<run dir>#<number>", inherited by all processes of a handler
POLL_S = 0.01
KILL_WAIT_S = 3.0  # for the kernel to end processes after SIGKILL
_PROC = os.path.isdir("/proc/self")
_CMDLINE_BYTES = 4_000
_MAX_FILES = 10_000
_GPU_DEVICE = re.compile(r"/dev/nvidia\d+|/dev/dxg")
_PYTHONS_OWN = re.compile(rb"from multiprocessing\.(resource_tracker|forkserver) import main\b")

_PR_SET_CHILD_SUBREAPER = 36
# Fields 3, 4, 6, 14, 17 and 22 of /proc/<pid>/stat, counted after the command name.
_STATE, _PARENT, _SESSION, _UTIME, _CSTIME, _START = 0, 1, 3, 11, 14, 19


class ProcessRow:
    """A row of the process table."""

    def __init__(self, pid: int, fields: list[str]) -> None:
        self.pid, self.parent, self.session = pid, int(fields[_PARENT]), int(fields[_SESSION])
        self.started, self.is_zombie = fields[_START], fields[_STATE] in "ZX"


def adopt_orphans() -> bool:
    """Make this process the parent of every descendant whose own parent ends. Return False if the system cannot."""
    if not _PROC:
        return False
    try:
        import ctypes  # noqa: PLC0415 an interpreter without libffi lacks it

        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def table() -> dict[int, ProcessRow]:
    """Return all processes by pid, zombies too; {} without /proc."""
    found = {}
    for name in os.listdir("/proc") if _PROC else ():
        one = row(int(name)) if name.isdigit() else None
        if one:
            found[one.pid] = one
    return found


def row(pid: int) -> ProcessRow | None:
    """Return a process, a zombie too; None if it is gone."""
    fields = _stat(pid)
    return ProcessRow(pid, fields) if fields else None


def children(pid: int) -> set[int] | None:
    """Return the children of a process, zombies too, as its threads list them; None if the kernel does not tell."""
    found: set[int] = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as listed:
                found.update(map(int, listed.read().split()))
    except (OSError, ValueError):
        return None
    return found


def descendants(processes: dict[int, ProcessRow], roots: set[int]) -> set[int]:
    """Return the roots that live and all their descendants."""
    children: dict[int, list[int]] = {}
    for one in processes.values():
        children.setdefault(one.parent, []).append(one.pid)
    found, left = set(), [pid for pid in roots if pid in processes]
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children.get(pid, ())
    return found


def name_of(pid: int) -> str:
    """Return the name of a process's program, at most 15 characters; "?" if it has ended."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
            return comm.read().strip()
    except OSError:
        return "?"


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


def cpu_ticks(pids: set[int], most: int) -> dict[int, int]:
    """Return the processor time of each process (`most` at most), with that of its ended children."""
    found = {}
    for pid in sorted(pids)[:most]:
        fields = _stat(pid)
        if fields:
            found[pid] = sum(map(int, fields[_UTIME : _CSTIME + 1]))
    return found


def end(session: int | None, mark: str, grace_s: float) -> set[int]:
    """Send TERM to the tree, wait `grace_s`, then send KILL. Return the pids that still live."""
    return end_all(lambda: tree(session, mark), session, grace_s)


def end_all(find: Callable[[], set[int]], session: int | None, grace_s: float) -> set[int]:
    """End the processes that `find` returns, and the session, as `end` does. Return the pids that still live."""
    signal_all(find(), session, signal.SIGTERM)
    left = wait_gone(find, grace_s)
    until = time.monotonic() + KILL_WAIT_S
    while left and time.monotonic() < until:  # in a loop, because a tree may grow while it is being ended
        signal_all(left, session, signal.SIGKILL)
        left = wait_gone(find, 0.1)
    return left


def signal_all(pids: set[int], session: int | None, number: int) -> None:
    """Send a signal to the session's group and to each pid. A process that has ended is no error."""
    if session:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, number)
    for pid in pids - {session}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def wait_gone(find: Callable[[], set[int]], timeout_s: float) -> set[int]:
    """Wait until `find` returns nothing, for `timeout_s` at most. Return what it returned last."""
    until, pause_s = time.monotonic() + timeout_s, POLL_S
    while True:
        left = find()
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


def has_mark(pid: int, mark: str) -> bool:
    """Whether the process's environment has a mark that begins with `mark`."""
    return _has_mark(str(pid), os.fsencode(f"{MARK}={mark}"))


def uses_gpu(pid: int) -> bool:
    """Whether a process has a GPU's device open. If that cannot be read, it may."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    for name in names[:_MAX_FILES]:
        with contextlib.suppress(OSError):  # closed in the meantime
            if _GPU_DEVICE.fullmatch(os.readlink(f"{folder}/{name}")):
                return True
    return False


def is_pythons_own(pid: int) -> bool:
    """Whether it is a process that Python's multiprocessing starts once and keeps: it works for no task."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as words:
            return _PYTHONS_OWN.search(words.read(_CMDLINE_BYTES)) is not None
    except OSError:
        return False


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
