"""New lines of the kernel log: from /dev/kmsg, or from `dmesg` where a container has no /dev/kmsg.

All containers of a host share this log. Only lines that are newer than the agent are read.
"""

from __future__ import annotations

import os
import re
import time

from .limited import run_limited

READ_BYTES = 16 << 10  # bytes of one read; /dev/kmsg returns one record for each read
CYCLE_BYTES = 1 << 20  # bytes of one cycle; the next cycle reads the rest
DMESG_BYTES = 64 << 20  # bytes that dmesg may print; only the last CYCLE_BYTES are kept
LINE_CHARS = 1_000
DMESG_LIMIT_S = 2.0
STAMP_SLACK_S = 1.0  # seconds by which the kernel's stamps and CLOCK_MONOTONIC may differ
STAMP = re.compile(r"\[\s{0,12}(\d{1,12}\.\d{1,9})\]")
RECORD = re.compile(r"\d{1,6},\d{1,20},(\d{1,20}),[^;]{0,200};(.*)")


class KernelLog:
    """Reads the lines that were written after this object was made."""

    def __init__(self, root: str) -> None:
        self._path, self._began_s = os.path.join(root, "dev/kmsg"), time.monotonic()
        self._fd = self._open()
        self._newest_s: float | None = None  # stamp of the newest line that dmesg has shown
        self._rest = b""
        self.why = ""  # why the log cannot be read

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @property
    def is_cheap(self) -> bool:
        """Return whether a read starts no program."""
        return self._fd is not None

    def lines(self) -> list[str] | None:
        """Return the new lines without their stamps; None if the log cannot be read."""
        if self._fd is None:
            return self._from_dmesg()
        try:
            return self._from_device(self._fd)
        except OSError as error:
            self.why = f"/dev/kmsg: {error.strerror}"
            self.close()
            return None

    def _open(self) -> int | None:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(fd, 0, os.SEEK_END)
        except OSError as error:
            self.why = f"/dev/kmsg: {error.strerror}"
            return None
        return fd

    def _from_device(self, fd: int) -> list[str]:
        taken = []
        size = 0
        while size < CYCLE_BYTES:
            try:
                block = os.read(fd, READ_BYTES)
            except BlockingIOError:  # no more records
                break
            except BrokenPipeError:  # the kernel overwrote records that were not read yet
                continue
            if not block:
                break
            size += len(block)
            taken.append(block)
        *whole, self._rest = (self._rest + b"".join(taken)).split(b"\n")
        self._rest = self._rest[-READ_BYTES:]
        texts = (line[:LINE_CHARS].decode("utf-8", "replace") for line in whole)
        return [record[2] if (record := RECORD.fullmatch(text)) else text for text in texts]

    def _from_dmesg(self) -> list[str] | None:
        answer = run_limited(["dmesg"], DMESG_LIMIT_S, DMESG_BYTES, CYCLE_BYTES)
        if answer.status != 0:
            self.why = f"dmesg: {answer.problem}"
            return None
        least_s = self._began_s - STAMP_SLACK_S if self._newest_s is None else self._newest_s
        found = []
        for line in answer.text.splitlines():
            stamp = STAMP.match(line)
            if stamp and float(stamp[1]) > least_s:  # a line without a stamp may be of any age
                found.append(line[stamp.end() :].strip()[:LINE_CHARS])
                self._newest_s = max(self._newest_s or 0.0, float(stamp[1]))
        return found
