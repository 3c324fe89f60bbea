"""Standard output and error of a handler host. A full disk loses lines, and nothing else.

A handler that prints must not fail because its log cannot grow, and a command must not block because its pipe has no
reader. Output that does not fit on the disk is dropped and counted. The log gets the count once there is room.
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class HandlerOutput(io.RawIOBase):
    """Writes to one descriptor. It never raises an error of the disk."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._unreported = 0  # dropped bytes that the log does not report yet
        self._dropped = 0

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        """Do nothing: a handler that closes its standard output does not close the log."""

    def isatty(self) -> bool:
        return False

    def write(self, content: Any) -> int:
        data = bytes(content)
        if self._unreported:
            notice = f"\n--- {self._unreported} bytes of output were dropped: the disk was full\n".encode()
            if self._put(notice) == len(notice):
                self._unreported = 0
        left = len(data) - (0 if self._unreported else self._put(data))
        self._unreported += left
        self._dropped += left
        return len(data)

    def take_dropped(self) -> int:
        """Return how many bytes were dropped since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def _put(self, data: bytes) -> int:
        """Return how many bytes were written."""
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError:  # ENOSPC, EDQUOT, EFBIG, EIO: the handler is not at fault
            pass
        return done


OUT, ERR = HandlerOutput(1), HandlerOutput(2)


def take_over() -> None:
    """Make Python's output in this process go through OUT and ERR."""
    encoding = sys.stdout.encoding or "utf-8"
    for name, raw in (("stdout", OUT), ("stderr", ERR)):
        binary: Any = raw  # unbuffered, as with `python -u`: a crash loses no line
        setattr(sys, name, io.TextIOWrapper(binary, encoding, "backslashreplace", write_through=True))


def take_dropped() -> int:
    """Return how many bytes OUT and ERR dropped since the last call."""
    return OUT.take_dropped() + ERR.take_dropped()
