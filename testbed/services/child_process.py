"""A server of ours ends with the process that started it, however that one ends."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
POLL_S = 0.02
TAIL_CHARS = 2_000  # characters
# Signals the server when our end of the pipe closes.
WATCH = "import os,sys; sys.stdin.buffer.read(); os.kill(int(sys.argv[1]), int(sys.argv[2]))"


def die_with_parent(death_signal: signal.Signals) -> Callable[[], None] | None:
    """On Linux, what the child does before exec; it runs after a change of user, which would clear the signal."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def ask_for_the_signal() -> None:
        libc.prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:  # the parent ended before this call
            os._exit(1)

    return ask_for_the_signal


class ChildProcess:
    """One server process; what it writes is appended to a file."""

    def __init__(
        self, command: Sequence[str], log: Path, *, death_signal: signal.Signals = signal.SIGTERM, **options: Any
    ) -> None:
        with log.open("ab") as file:
            self._log, self._log_from = log, file.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # the terminal's Ctrl-C is for its clients, which end first
                preexec_fn=die_with_parent(death_signal),  # noqa: PLW1509  one system call, nothing that takes a lock
                **options,
            )
        self._watcher = _watch(self._process, death_signal)

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process.poll() is None else None

    async def end(self, number: signal.Signals, timeout_s: float) -> None:
        """Send it a signal and wait until it has ended; SIGKILL where that takes longer."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        deadline = time.monotonic() + timeout_s
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                self._process.kill()
                self._process.wait()
                break
            await asyncio.sleep(POLL_S)
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()

    def output_tail(self) -> str:
        """The end of what this process has written."""
        with self._log.open("rb") as file:
            file.seek(self._log_from)
            return file.read().decode(errors="replace")[-TAIL_CHARS:]


def _watch(server: subprocess.Popen[bytes], death_signal: signal.Signals) -> subprocess.Popen[bytes] | None:
    """On systems without a parent-death signal, a process that sends it."""
    if sys.platform != "linux":
        return subprocess.Popen(
            [sys.executable, "-I", "-c", WATCH, str(server.pid), str(int(death_signal))],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
    return None
