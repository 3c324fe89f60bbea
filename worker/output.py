"""Standard output and error of a handler host: a full disk loses lines, and nothing else.

A handler that prints must not fail because its log cannot grow, and a command must not block because nobody reads its
pipe. What the disk does not take is dropped and counted; the count is written into the log once there is room.
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Output(io.RawIOBase):
    """Writes to one descriptor; never raises because of what the disk says."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._untold = 0  # bytes dropped since the log last said so
        self._dropped = 0

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return False

    def write(self, content: Any) -> int:
        data = bytes(content)
        if self._untold:
            told = f"\n--- {self._untold} bytes of output were dropped: the disk was full\n".encode()
            if self._put(told) == len(told):
                self._untold = 0
        left = len(data) - (0 if self._untold else self._put(data))
        self._untold += left
        self._dropped += left
        return len(data)

    def take_dropped(self) -> int:
        """How many bytes were dropped since this was last asked."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def _put(self, data: bytes) -> int:
        """Bytes that the descriptor took."""
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError:  # ENOSPC, EDQUOT, EFBIG, EIO: none of them is the handler's failure
            pass
        return done


OUT, ERR = Output(1), Output(2)


def take_over() -> None:
    """Let everything that Python prints in this process go through OUT and ERR."""
    encoding = sys.stdout.encoding or "utf-8"
    for name, raw in (("stdout", OUT), ("stderr", ERR)):
        binary: Any = raw  # unbuffered, as with `python -u`: a crash loses no line
        setattr(sys, name, io.TextIOWrapper(binary, encoding, "backslashreplace", write_through=True))


def take_dropped() -> int:
    """Bytes of both that were dropped since this was last asked."""
    return OUT.take_dropped() + ERR.take_dropped()
