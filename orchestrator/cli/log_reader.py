"""Reads a worker's streams from S3 by the ledger, so that missing bytes are reported."""

import gzip
import hashlib
import sys
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from orchestrator.cli.log_lines import LogLine, stamp
from orchestrator.cli.session import utcnow
from orchestrator.cli.worker_rows import is_live
from orchestrator.diagnostics.amounts import ago, moment, octets, span
from orchestrator.errors import LOG_OBJECT_BAD, LOG_OBJECT_GONE, NO_BUCKET, Failure
from orchestrator.ports import NotFound, PortError
from orchestrator.worker_logs.attempt_log import AFTER_BYTES, AttemptLines
from orchestrator.worker_logs.generations import launch_of

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore
    from orchestrator.ports import Blobs

Piece = Mapping[str, Any]
Key = tuple[str, str, int]  # boot, stream, seq


class Reader:
    """The position in one worker's streams."""

    def __init__(self, store: "SqlStore", blobs: "Blobs", worker_id: str, streams: Sequence[str]) -> None:
        self._store, self._blobs, self.worker_id, self.streams = store, blobs, worker_id, streams
        self._shown: set[Key] = set()
        self._half: dict[str, bytes] = defaultdict(bytes)  # the incomplete last line of a piece
        self._at: dict[str, datetime] = {}  # the time of each stream's last line
        self._pieces: list[Piece] = []

    async def load(self) -> bool:
        """Read the ledger. Return False if it is empty: nothing was shipped, and nothing declared lost."""
        self._pieces = await self._ledger()
        return any(piece["shipped_at"] or piece["declared_lost"] for piece in self._pieces)

    def tails(self, lines: int, *, whole: bool) -> list[AsyncIterator[LogLine]]:
        """Return the last `lines` lines of each stream; 0: all. `whole`: also an incomplete last line."""
        return [self._tail(stream, lines, whole=whole) for stream in self.streams]

    async def fresh(self) -> tuple[list[AsyncIterator[LogLine]], bool]:
        """Return what was shipped since, and whether more can follow."""
        row = (await self._store.worker(self.worker_id))["worker"]
        self._pieces = await self._ledger()
        more = row is not None and is_live(row)
        return [self._fresh(stream, whole=not more) for stream in self.streams], more

    async def cut(self, attempt: Piece, task_id: str, show: Callable[[LogLine], None]) -> str:
        """Show the output of an attempt, found by the offsets in heartbeats and its own marks.

        Returns a text about missing bytes.
        """
        stream, half, there = self.streams[0], b"", 0
        own = AttemptLines(f"task {task_id} attempt {attempt['attempt']}")
        first, last, at = attempt["log_first"] or 0, attempt["log_last"], moment(attempt["started_at"])
        self._pieces = await self._ledger()
        for piece in self._pieces:
            mine = launch_of(piece["boot_id"]) == attempt["nonce"] and piece["stream"] == stream
            begin, end = max(first, piece["first"]), piece["last"] or sys.maxsize
            near = end if own.begun or last is None else min(last + AFTER_BYTES, end)  # up to where it may begin
            if not mine or begin >= near or own.over:
                continue
            at = moment(piece["begun_at"])
            if piece["declared_lost"]:
                show(self._loss(piece))
            if piece["shipped_at"]:
                content = await self._read(piece)
                middle = near if last is None else min(max(begin, last), near)
                for since, until in ((begin, middle), (middle, near), (near, end)):
                    if since == near and not own.begun:
                        break
                    own.keeps_before = last is None or since < last
                    *lines, half = (half + content[since - piece["first"] : until - piece["first"]]).split(b"\n")
                    for line in self._split(stream, b"".join(own.of(line) for line in lines), at):
                        show(line)
                    there += until - since
        for line in self._split(stream, (own.of(half) if half else b"") + own.rest(), at):
            show(line)
        if own.over:
            return ""
        if last is None or (own.begun and attempt["outcome"] not in (None, "lost")):
            return "its end is not there" if attempt["outcome"] else "it has not ended: later lines may follow"
        return f"{octets(last - first - there)} of {octets(last - first)} are missing" if there < last - first else ""

    def not_shipped(self, row: Mapping[str, Any]) -> str | None:
        """Return a text about bytes that the pod has and S3 has not."""
        shipped = defaultdict[tuple[str, str], int](int)
        for piece in self._pieces:
            if piece["shipped_at"]:
                shipped[piece["boot_id"], piece["stream"]] += piece["last"] - piece["first"]
        waiting = sum(
            max(0, size - shipped[boot, stream])
            for boot, sizes in (row.get("log_bytes") or {}).items()
            for stream, size in sizes.items()
            if stream in self.streams
        )
        if not waiting or not is_live(row):
            return None
        age = span(ago(row.get("last_heartbeat"), utcnow()))
        return f"the pod had {octets(waiting)} more at its last heartbeat, {age} ago; -f follows them."

    async def _ledger(self) -> list[Piece]:
        """Return the pieces by launch, the earliest first, and by their order within it."""
        pieces = await self._store.log_pieces(self.worker_id)
        begun: dict[str, str] = {}
        for piece in pieces:
            begun[piece["boot_id"]] = min(begun.get(piece["boot_id"], piece["begun_at"]), piece["begun_at"])
        return sorted(
            pieces, key=lambda piece: (begun[piece["boot_id"]], piece["boot_id"], piece["stream"], piece["seq"])
        )

    async def _tail(self, stream: str, lines: int, *, whole: bool) -> AsyncIterator[LogLine]:
        """Read backwards until there are enough lines, then yield them in order."""
        pieces = _readable([piece for piece in self._pieces if piece["stream"] == stream])
        self._shown |= {_key(piece) for piece in pieces}
        kept: dict[int, bytes] = {}
        breaks, start = 0, len(pieces) if lines else 0
        while start > 0 and breaks <= lines:
            start -= 1
            if pieces[start]["shipped_at"]:
                kept[start] = await self._read(pieces[start])
                breaks += kept[start].count(b"\n")
        is_open = bool(kept) and not kept[max(kept)].endswith(b"\n")
        skip = max(0, breaks + is_open - lines) if lines else 0
        for number in range(start, len(pieces)):
            piece = pieces[number]
            if piece["declared_lost"]:
                yield self._loss(piece)
            if piece["shipped_at"]:
                content = kept.pop(number) if number in kept else await self._read(piece)
                for line in self._split(stream, content, moment(piece["begun_at"])):
                    skip -= 1
                    if skip < 0:
                        yield line
        if whole:
            for line in self._split(stream, b"", None, end=True):
                yield line

    async def _fresh(self, stream: str, *, whole: bool) -> AsyncIterator[LogLine]:
        mine = [piece for piece in self._pieces if piece["stream"] == stream]
        pieces = [piece for piece in _readable(mine) if _key(piece) not in self._shown]
        self._shown |= {_key(piece) for piece in pieces}
        for piece in pieces:
            if piece["declared_lost"]:
                yield self._loss(piece)
            if piece["shipped_at"]:
                for line in self._split(stream, await self._read(piece), moment(piece["begun_at"])):
                    yield line
        if whole:
            for line in self._split(stream, b"", None, end=True):
                yield line

    async def _read(self, piece: Piece) -> bytes:
        """Return the bytes of one object, verified against the ledger. Raises Failure."""
        where = f"{piece['key']} (bytes {piece['first']}-{piece['last']} of {piece['stream']})"
        try:
            packed = await self._blobs.get(piece["key"])
        except NotFound:
            raise Failure(LOG_OBJECT_GONE, why=f"{where} was shipped at {piece['shipped_at']}") from None
        except PortError as error:
            raise Failure(NO_BUCKET, why=f"{where}: {error}") from None
        try:
            content = gzip.decompress(packed)
        except (OSError, EOFError, zlib.error) as error:
            raise Failure(LOG_OBJECT_BAD, why=f"{where}: {error}") from None
        if hashlib.sha256(content).hexdigest() != piece["sha256"]:
            raise Failure(LOG_OBJECT_BAD, why=f"{where}: its sha256 is not the ledger's")
        return content

    def _split(self, stream: str, content: bytes, until: datetime | None, *, end: bool = False) -> Iterator[LogLine]:
        """Yield the whole lines; with `end`, also an incomplete last one. They were written before `until`.

        A line without a time has that of the line before it in this content, else of the next one that has one, else
        `until`.
        """
        *whole, self._half[stream] = (self._half[stream] + content).split(b"\n")
        if end and self._half[stream]:
            whole.append(self._half.pop(stream))
        texts = [line.decode("utf-8", "replace").rstrip("\r") for line in whole]
        stamps = [stamp(text) for text in texts]
        at = next(filter(None, stamps), until or self._at.get(stream))
        for text, exact in zip(texts, stamps, strict=True):
            at = exact or at
            yield LogLine(at, exact is not None, self.worker_id, stream, text)
        if at is not None:
            self._at[stream] = at

    def _loss(self, piece: Piece) -> LogLine:
        lost = {name: piece[name] for name in ("first", "last", "reason")}
        return LogLine(moment(piece["begun_at"]), False, self.worker_id, piece["stream"], "", lost)


def _readable(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces before the first incomplete one, to keep the order."""
    ready: list[Piece] = []
    held: set[str] = set()  # boots with such a piece
    for piece in pieces:
        if not piece["shipped_at"] and not piece["declared_lost"]:
            held.add(piece["boot_id"])
        elif piece["boot_id"] not in held:
            ready.append(piece)
    return ready


def _key(piece: Piece) -> Key:
    return piece["boot_id"], piece["stream"], piece["seq"]
