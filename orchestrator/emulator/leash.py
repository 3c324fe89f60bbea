"""A server of ours ends with the process that started it, however that one ends."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
# Signals the server when our end of the pipe closes.
WATCH = "import os,sys; sys.stdin.buffer.read(); os.kill(int(sys.argv[1]), int(sys.argv[2]))"


def leash(death_signal: signal.Signals) -> Callable[[], None] | None:
    """On Linux, what the child does before exec; it runs after a change of user, which would clear the signal."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def ask_for_the_signal() -> None:
        libc.prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return ask_for_the_signal


def watch(server: subprocess.Popen[bytes], death_signal: signal.Signals) -> subprocess.Popen[bytes] | None:
    """On systems without a parent-death signal, a process that sends it; end it with `unwatch`."""
    if sys.platform != "linux":
        return subprocess.Popen(
            [sys.executable, "-I", "-c", WATCH, str(server.pid), str(int(death_signal))],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
    return None


def unwatch(watcher: subprocess.Popen[bytes] | None) -> None:
    """End the watcher of a server that has ended."""
    if watcher is not None:
        watcher.kill()
        watcher.communicate()
