"""The log of one attempt at a task: its part of the worker's handler stream, read from the object store.

Heartbeats name the offsets of an attempt. Several short tasks can run between two heartbeats, and a task can write much
after its last one. So the lines of an attempt are those between its own marks, wherever its end is.
"""

import asyncio
import hashlib
import re
import sys
import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from orchestrator.ports import Unavailable
from orchestrator.worker_logs.generations import launch_of

STREAM = "handler"  # whose offsets attempts keep
LINE_BYTES = 64 << 10  # of a line that has no end yet; what is longer is taken in parts
PIECE_BYTES = 8 << 20  # of one unpacked piece; the shipper's are half as large
AFTER_BYTES = 64 << 10  # behind the last offset: a short attempt may begin after the last heartbeat
SETTLED_S = 60.0  # after the end of an attempt, its last lines are stored, or never will be
BEGINS = re.compile(rb"--- task [0-9a-f-]{36} attempt [0-9]+ begins")
Row = Mapping[str, Any]


class LogPieces(Protocol):
    """The ledger of a worker's logs."""

    async def log_pieces(self, worker_id: str) -> Sequence[Row]: ...


class LogObjects(Protocol):
    """The objects of the bucket."""

    async def get(self, key: str) -> bytes: ...


class AttemptLines:
    """Finds the lines of one attempt: up to its end, or to the begin of the worker's next one.

    If the line of its begin is missing, all lines count.
    """

    def __init__(self, attempt: str, *, keeps_before: bool = True) -> None:
        """`keeps_before`: whether the lines that follow are kept for `rest`."""
        self._begin = f"--- {attempt} begins".encode()
        self._ends = tuple(f"--- {attempt} {word}".encode() for word in ("ends", "cancelled"))
        self.begun, self.keeps_before = False, keeps_before
        self._before: list[bytes] = []  # the lines before the begin
        self.over = False

    def of(self, line: bytes, end: bytes = b"\n") -> bytes:
        """Return the line, with its end, if it certainly belongs to the attempt."""
        if not self.begun and line.startswith(self._begin):
            self.begun = True
            self._before.clear()
        elif self.begun and BEGINS.match(line):
            self.over = True
        if not self.begun and self.keeps_before:
            self._before.append(line + end)
        if not self.begun or self.over:
            return b""
        self.over = line.startswith(self._ends)
        return line + end

    def rest(self) -> bytes:
        """Return the lines to print if the begin was never found."""
        return b"".join(self._before)


class OwnBytes:
    """Finds the bytes of one attempt in a stream that comes in pieces."""

    def __init__(self, lines: AttemptLines) -> None:
        self._lines = lines
        self._half = b""  # the incomplete last line

    def of(self, content: bytes) -> bytes:
        """Return those that certainly belong to the attempt. An incomplete line waits for its rest."""
        *lines, self._half = (self._half + content).split(b"\n")
        own = b"".join(self._lines.of(line) for line in lines)
        if len(self._half) > LINE_BYTES:  # no line of ours, which could be a mark, is so long
            own += self._lines.of(self._half, b"")
            self._half = b""
        return own


class AttemptLog:
    """Reads the log of an attempt, an entry of `task_attempts`, from its begin on."""

    def __init__(self, rows: LogPieces, blobs: LogObjects, attempt: Row) -> None:
        self._rows, self._blobs, self._attempt = rows, blobs, attempt
        name = f"task {attempt['task_id']} attempt {attempt['attempt']}"
        self._lines = AttemptLines(name, keeps_before=False)
        self._own = OwnBytes(self._lines)
        self._seen: set[tuple[str, int]] = set()  # boot, seq
        self._reached = False  # whether the last offset was reached
        self._is_shipping = False  # whether a piece is not stored yet
        self._has_gap = False  # whether bytes of it may have been lost
        self.missing_bytes = 0  # declared lost so far, as far as their number is known

    @property
    def complete(self) -> bool:
        """Whether every byte of it was read, from its own begin to its own end, or to the worker's next attempt."""
        return self._lines.begun and self._lines.over and not self._has_gap

    @property
    def ended(self) -> bool:
        """Whether nothing more can follow."""
        ended_at = self._attempt["ended_at"]
        if self._lines.over or ended_at is None or self._is_shipping or not self._reached:
            return self._lines.over
        return (datetime.now(UTC) - datetime.fromisoformat(ended_at)).total_seconds() > SETTLED_S

    def of(self, attempt: Row) -> None:
        """Take the attempt's row as it is now."""
        self._attempt = attempt

    async def more(self) -> AsyncGenerator[bytes]:
        """Yield the attempt's lines, piece by piece, as far as they are stored now. Raises PortError."""
        first, last = self._attempt["log_first"] or 0, self._attempt["log_last"]
        self._is_shipping = False
        for piece in await self._rows.log_pieces(self._attempt["worker_id"]):
            name, end = (piece["boot_id"], piece["seq"]), piece["last"] or sys.maxsize
            mine = launch_of(piece["boot_id"]) == self._attempt["nonce"] and piece["stream"] == STREAM
            until = sys.maxsize if last is None or self._lines.begun else last + AFTER_BYTES
            if not mine or name in self._seen or end <= first or piece["first"] >= until or self._lines.over:
                continue
            if piece["declared_lost"]:
                self._has_gap = True
                self.missing_bytes += max(0, min(end, last or end) - max(first, piece["first"]))
            elif not piece["shipped_at"]:
                self._is_shipping = True
                return
            else:
                content = await piece_content(self._blobs, piece)
                content = content[max(0, first - piece["first"]) :]
                near = max(0, until - max(first, piece["first"]))  # bytes in which it may begin
                own = await asyncio.to_thread(self._own.of, content[:near])
                if self._lines.begun:
                    own += await asyncio.to_thread(self._own.of, content[near:])
                if own:
                    yield own
            self._seen.add(name)
            self._reached = self._reached or (last is not None and end >= last)


async def piece_content(objects: LogObjects, piece: Row) -> bytes:
    """The bytes of a stored piece, an entry of the ledger. Raises PortError."""
    packed = await objects.get(piece["key"])
    return await asyncio.to_thread(_unpacked, packed, piece["sha256"], piece["key"])


def _unpacked(packed: bytes, sha256: str, key: str) -> bytes:
    """The bytes of a piece. Raises Unavailable if they are not those that were shipped."""
    try:
        content = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(packed, PIECE_BYTES)
    except zlib.error as error:
        raise Unavailable(f"{key}: {error}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise Unavailable(f"{key}: it is not what was shipped")
    return content
