"""The pieces of state that a process has, each with the way to read it and to put it back."""

from __future__ import annotations

import contextlib
import gc
import locale
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ENVIRON = os.environ  # the object that calls putenv
CALLED = signal.valid_signals() - {signal.SIGINT}  # process_state.py has SIGINT
RESOURCES = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
GET_DIGITS = getattr(sys, "get_int_max_str_digits", int)  # since Python 3.11
SET_DIGITS = getattr(sys, "set_int_max_str_digits", int)
HOOKS = (
    "excepthook", "displayhook", "unraisablehook", "breakpointhook", "argv", "executable", "tracebacklimit",
    "dont_write_bytecode", "pycache_prefix",
)  # fmt: skip
ABSENT = object()


class StatePart:
    """One piece of state. Without `write` it cannot be restored."""

    def __init__(self, name: str, read: Callable[[], Any], write: Callable[[Any], Any] | None = None) -> None:
        self.name, self.read, self._write = name, read, write

    def put_back(self, before: Any) -> bool:
        """Return whether the value is what it was before, now or after it was restored."""
        if self.read() == before:
            return True
        if self._write is None:
            return False
        with contextlib.suppress(OSError, ValueError, TypeError, RuntimeError, locale.Error):
            self._write(before)
        return bool(self.read() == before)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _environment() -> tuple[int, dict[str, str]]:
    return id(os.environ), dict(os.environ)


def _set_environment(before: tuple[int, dict[str, str]]) -> None:
    os.environ = ENVIRON  # noqa: B003
    for name in ENVIRON.keys() - before[1].keys():
        del ENVIRON[name]
    ENVIRON.update(before[1])


def _signals() -> tuple[dict[int, Any], set[int]]:
    handlers = {int(number): signal.getsignal(number) for number in CALLED}
    return handlers, {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())}


def _set_signals(before: tuple[dict[int, Any], set[int]]) -> None:
    handlers, blocked = before
    for number in signal.sigpending() - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)  # discards it: the task for which it was meant is over
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for number, handler in handlers.items():
        if handler is not None and signal.getsignal(number) != handler:
            signal.signal(number, handler)


def _wakeup_fd() -> int:
    fd = signal.set_wakeup_fd(-1)
    with contextlib.suppress(OSError, ValueError):  # it was closed
        signal.set_wakeup_fd(fd)
    return fd


def _limits() -> dict[int, tuple[int, int]]:
    return {number: resource.getrlimit(number) for number in RESOURCES}


def _set_limits(before: dict[int, tuple[int, int]]) -> None:
    for number, pair in before.items():
        if resource.getrlimit(number) != pair:
            resource.setrlimit(number, pair)


def _gc() -> tuple[bool, Any, int, list[Any]]:
    return gc.isenabled(), gc.get_threshold(), gc.get_debug(), list(gc.callbacks)


def _set_gc(before: tuple[bool, Any, int, list[Any]]) -> None:
    is_enabled, threshold, debug, gc.callbacks[:] = before
    (gc.enable if is_enabled else gc.disable)()
    gc.set_threshold(*threshold)
    gc.set_debug(debug)


def _warnings() -> tuple[list[Any], list[Any]]:
    filters: list[Any] = warnings.filters  # type: ignore[assignment]
    return filters, list(filters)


def _set_warnings(before: tuple[list[Any], list[Any]]) -> None:
    filters, content = before
    filters[:] = content
    warnings.filters = filters
    getattr(warnings, "_filters_mutated", int)()  # empties the cache of what was shown


def _hooks() -> list[Any]:
    return [getattr(sys, name, ABSENT) for name in HOOKS]


def _set_hooks(before: list[Any]) -> None:
    for name, value in zip(HOOKS, before):
        if value is not ABSENT:
            setattr(sys, name, value)
        elif hasattr(sys, name):
            delattr(sys, name)


def _time_zone() -> tuple[Any, ...]:
    return time.tzname, time.timezone, time.altzone, time.daylight


def _scheduler() -> tuple[int, int] | None:
    if not hasattr(os, "sched_getscheduler"):
        return None
    return os.sched_getscheduler(0), os.sched_getparam(0).sched_priority


def _set_scheduler(before: tuple[int, int]) -> None:
    os.sched_setscheduler(0, before[0], os.sched_param(before[1]))


def _identity() -> tuple[Any, ...]:
    root = os.stat("/")
    users = getattr(os, "getresuid", os.getuid)(), getattr(os, "getresgid", os.getgid)(), sorted(os.getgroups())
    return (*users, root.st_dev, root.st_ino)


def _nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def _affinity() -> set[int]:
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()


LIMITS = StatePart("the resource limits", _limits, _set_limits)
PARTS = (
    LIMITS,
    StatePart("the signals", _signals, _set_signals),
    StatePart("the wake-up descriptor of signals", _wakeup_fd, signal.set_wakeup_fd),
    StatePart("the environment", _environment, _set_environment),
    StatePart("the time zone", _time_zone, lambda _: time.tzset()),  # of the environment that is restored by now
    StatePart("the file mode mask", _umask, os.umask),
    StatePart("the priority", _nice, lambda value: os.setpriority(os.PRIO_PROCESS, 0, value)),
    StatePart("the scheduler", _scheduler, _set_scheduler),
    StatePart("the processors", _affinity, lambda value: os.sched_setaffinity(0, value)),
    StatePart("the user, the groups or the root directory", _identity),
    StatePart("the garbage collector", _gc, _set_gc),
    StatePart("the switch interval", sys.getswitchinterval, sys.setswitchinterval),
    StatePart("the digits of numbers", GET_DIGITS, SET_DIGITS),
    StatePart("the tracing of threads", lambda: getattr(threading, "_trace_hook", None), threading.settrace),
    StatePart("the profiling of threads", lambda: getattr(threading, "_profile_hook", None), threading.setprofile),
    StatePart("the stack size of threads", threading.stack_size, threading.stack_size),
    StatePart(
        "the locale", lambda: locale.setlocale(locale.LC_ALL), lambda value: locale.setlocale(locale.LC_ALL, value)
    ),
    StatePart("the timeout of sockets", socket.getdefaulttimeout, socket.setdefaulttimeout),
    StatePart("the temporary directory", lambda: tempfile.tempdir, lambda value: setattr(tempfile, "tempdir", value)),
    StatePart("the hooks of sys", _hooks, _set_hooks),
    StatePart("the hooks of generators", sys.get_asyncgen_hooks, lambda value: sys.set_asyncgen_hooks(*value)),
    StatePart("the flags of libraries", sys.getdlopenflags, sys.setdlopenflags),
)
