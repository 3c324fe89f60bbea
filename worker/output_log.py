"""The agent's end of the output of handlers and of the set-up command: a pipe, from which it writes the log.

Every process that a handler starts inherits the pipe, so all output passes here, whoever prints it. Secrets are removed
before the log is written: byte offsets in the log are the same for everybody who reads it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
import time

from .output import HandlerOutput
from .redaction import KnownSecrets, SecretFilter

BLOCK_BYTES = 1 << 20  # bytes of one read, and the capacity of the pipe if the kernel allows it
SETTLE_BYTES = 4 << 20  # that `settle` reads at most: a process that prints on must not hold it up
TAIL_BYTES = 64 << 10  # that `since` returns at most
HOLD_S = 5.0  # seconds for the rest of a secret whose beginning is the end of the output
F_SETPIPE_SZ = 1031  # fcntl has the name only since Python 3.10


class OutputLog:
    """A log that processes write to through `fd`. Any thread may call any method."""

    def __init__(self, path: str, secrets: KnownSecrets) -> None:
        """Open the log. Raises OSError."""
        self._path = path
        self._secrets, self._filter = secrets, SecretFilter(secrets)
        self._lock = threading.Lock()
        self._source, self.fd = os.pipe()
        os.set_blocking(self._source, False)
        with contextlib.suppress(OSError):  # not Linux, or the user's limit: the pipe keeps its usual capacity
            fcntl.fcntl(self.fd, F_SETPIPE_SZ, BLOCK_BYTES)
        self._log = HandlerOutput(_opened(path))
        self._is_serving = False
        self._heard_at = time.monotonic()

    def reopen(self) -> None:
        """Create the log again if it was removed. Raises OSError."""
        with self._lock:
            if not os.path.exists(self._path):
                fresh = _opened(self._path)
                os.dup2(fresh, self._log.fileno(), inheritable=False)
                os.close(fresh)

    def serve(self) -> None:
        """Copy the output in a thread of its own, from now until the process ends."""
        if not self._is_serving:
            self._is_serving = True
            threading.Thread(target=self._copy_on, name="output log", daemon=True).start()

    def copy(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for output, and write it to the log. Return False after the last writer has ended."""
        is_ready = bool(select.select([self._source], [], [], timeout_s)[0])
        with self._lock:
            block = self._read() if is_ready else None
            if block:
                self._heard_at = time.monotonic()
                self._log.write(self._filter.feed(block))
            elif self._filter.holds and time.monotonic() - self._heard_at >= HOLD_S:
                self._log.write(self._filter.flush())
        return block != b""

    def settle(self) -> None:
        """Write all output of processes that have ended to the log."""
        taken = 0
        with self._lock:
            while taken < SETTLE_BYTES:
                block = self._read()
                if not block:
                    break
                taken += len(block)
                self._log.write(self._filter.feed(block))
            self._log.write(self._filter.flush())

    def note(self, text: str) -> None:
        """Write a line of the agent itself."""
        with contextlib.suppress(OSError), open(self._path, "ab", buffering=0) as log:
            log.write(f"\n--- {self._secrets.clean_text(text)}\n".encode())

    def size(self) -> int:
        """Return its length in bytes; 0 if it was removed."""
        try:
            return os.path.getsize(self._path)
        except OSError:
            return 0

    def since(self, offset: int) -> str:
        """Return what was written from this byte on, of a long text the end."""
        try:
            with open(self._path, "rb") as file:
                file.seek(max(offset, self.size() - TAIL_BYTES))
                return file.read(TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""

    def take_dropped(self) -> int:
        """Return how many bytes the disk had no room for since the last call."""
        return self._log.take_dropped()

    def end_own_writing(self) -> None:
        """Close this process's own end, so that `copy` notices the end of the last other writer."""
        os.close(self.fd)
        self.fd = -1

    def _copy_on(self) -> None:
        while self.copy(HOLD_S):
            pass
        self.settle()

    def _read(self) -> bytes | None:
        """Return output; None if there is none now, and nothing after the last writer has ended."""
        if self.fd >= 0:
            os.set_blocking(self.fd, True)  # a program may have changed it, for every process with this pipe
        try:
            return os.read(self._source, BLOCK_BYTES)
        except BlockingIOError:
            return None


def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
