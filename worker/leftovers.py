"""What a task leaves in the host's process for good: threads, modules, places of imports, open files."""

from __future__ import annotations

import os
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

THREADS_S = 0.2  # seconds in which the threads of a task may end by themselves after the task
POLL_S = 0.01
OPEN_SHARE = 0.5  # of the limit of open files: the next tasks need some


class Leftovers:
    """The threads, modules and paths of this process now."""

    def __init__(self, code: list[str]) -> None:
        """`code`: the files and folders with the user's code."""
        self._code = tuple(code)
        self._threads = set(threading.enumerate())
        self._idents = set(sys._current_frames())  # noqa: SLF001 the documented way to the frames of all threads
        self._natives = _native_threads()
        self._modules, self._path = dict(sys.modules), list(sys.path)
        self._importers: list[list[Any]] = [list(sys.meta_path), list(sys.path_hooks)]

    def found(self) -> list[str]:
        """Return what is left now and was not there before."""
        found = []
        if sys.path != self._path:
            found.append("sys.path")
        importers: list[list[Any]] = [sys.meta_path, sys.path_hooks]
        if not all(map(_keeps, importers, self._importers)):
            found.append("sys.meta_path")
        replaced = [name for name, module in self._modules.items() if sys.modules.get(name) is not module]
        found += [f"sys.modules[{name!r}]" for name in sorted(replaced)[:3]]
        if _open_files() > OPEN_SHARE * os.sysconf("SC_OPEN_MAX"):
            found.append("open files")
        self._modules.update(sys.modules)  # a module that was loaded later stays loaded
        return found + [f"the thread {name}" for name in self._await_threads()]

    def _await_threads(self) -> list[str]:
        """Return the names of the new threads that run the user's code, if they do not end soon.

        A thread that has just been started may have no frame yet. A thread of a library in C never has one: it is
        waited for once.
        """
        until = time.monotonic() + THREADS_S
        while True:
            named = {one.native_id for one in threading.enumerate()}
            frameless = len(_native_threads() - self._natives - named) > len(self._unnamed())
            left = self._running()
            if not (left or frameless) or time.monotonic() >= until:
                self._natives |= _native_threads() if not left else set()
                return left
            time.sleep(POLL_S)

    def _unnamed(self) -> set[int]:
        """Return the new threads with a frame that the threading module does not know."""
        return sys._current_frames().keys() - self._idents - {one.ident for one in threading.enumerate()}  # noqa: SLF001

    def _running(self) -> list[str]:
        frames, known = sys._current_frames(), threading.enumerate()  # noqa: SLF001
        found = [
            one.name for one in known
            if one not in self._threads and one is not threading.current_thread() and self._runs_code(one, frames)
        ]  # fmt: skip
        unnamed = sorted(self._unnamed())  # started with _thread, or by C code
        return found + [f"with the number {ident}" for ident in unnamed if self._has_code(frames.get(ident))]

    def _runs_code(self, thread: threading.Thread, frames: dict[int, Any]) -> bool:
        """Whether the user's code is on the thread's stack, or is what the thread will call.

        A library's own thread, which waits for work, does not count: tqdm and thread pools keep such threads.
        """
        for name in ("_target", "function"):  # a Thread's, a Timer's
            code = getattr(getattr(thread, name, None), "__code__", None)
            if code is not None and self._is_code(code.co_filename):
                return True
        if not thread.daemon and type(thread).__module__ == "threading" and isinstance(thread, threading.Timer):
            return True
        return self._has_code(frames.get(thread.ident or 0))

    def _has_code(self, frame: Any) -> bool:
        """Whether the user's code is on a stack."""
        while frame is not None:
            if self._is_code(frame.f_code.co_filename):
                return True
            frame = frame.f_back
        return False

    def _is_code(self, path: str) -> bool:
        return os.path.realpath(path).startswith(self._code)


def _keeps(now: list[Any], was: list[Any]) -> bool:
    """Whether the old entries are still the first ones. An importer after them finds only what they do not find."""
    return len(now) >= len(was) and all(one is other for one, other in zip(now, was))


def _native_threads() -> set[int]:
    """Return the kernel's numbers of all threads of this process, those of C code too."""
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return set()


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
