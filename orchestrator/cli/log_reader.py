"""A worker's streams as they lie in S3, read by the ledger, so that a hole is named and not passed over."""

import gzip
import hashlib
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.output import Output, ago, octets, span
from orchestrator.cli.session import utcnow
from orchestrator.cli.worker_rows import is_live
from orchestrator.errors import LOG_OBJECT_BAD, LOG_OBJECT_GONE, NO_BUCKET, Failure
from orchestrator.observability.redaction import plain
from orchestrator.ports import NotFound, PortError
from orchestrator.worker_logs.generations import launch_of

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore
    from orchestrator.ports import Blobs

Piece = Mapping[str, Any]
Key = tuple[str, str, int]  # boot, stream, seq


class Reader:
    """What was shown of one worker's streams."""

    def __init__(
        self, store: "SqlStore", blobs: "Blobs", worker_id: str, streams: Sequence[str], output: Output
    ) -> None:
        self._store, self._blobs, self._worker_id, self._streams, self._output = (
            store,
            blobs,
            worker_id,
            streams,
            output,
        )
        self._shown: set[Key] = set()
        self._half: dict[str, bytes] = defaultdict(bytes)  # the line at the end of a piece, until its rest comes
        self._pieces: list[Piece] = []

    async def tail(self, lines: int, *, whole: bool) -> bool:
        """The last so many lines of each stream; 0: everything. `whole`: also a last line that has no end yet.

        False if the ledger is empty: nothing was shipped, and nothing declared lost.
        """
        self._pieces = await self._ledger()
        for stream in self._streams:
            pieces = _readable([piece for piece in self._pieces if piece["stream"] == stream])
            self._shown |= {_key(piece) for piece in pieces}
            await (self._last(stream, pieces, lines) if lines else self._all(pieces))
            if whole:
                self._flush(stream)
        return any(piece["shipped_at"] or piece["declared_lost"] for piece in self._pieces)

    async def cut(self, attempt: Piece, task_id: str) -> str:
        """What an attempt wrote, among the bytes that heartbeats told of; what of it is not there, in words."""
        stream, own, half, there = self._streams[0], _Own(f"task {task_id} attempt {attempt['attempt']}"), b"", 0
        first, last = attempt["log_first"] or 0, attempt["log_last"]
        self._pieces = await self._ledger()
        for piece in self._pieces:
            mine = launch_of(piece["boot_id"]) == attempt["nonce"] and piece["stream"] == stream
            begin, end = max(first, piece["first"]), min(last or sys.maxsize, piece["last"] or sys.maxsize)
            if not mine or begin >= end or own.over:
                continue
            self._tell_lost(piece)
            if piece["shipped_at"]:
                content = await self._read(piece)
                *lines, half = (half + content[begin - piece["first"] : end - piece["first"]]).split(b"\n")
                self._print(stream, b"".join(own.of(line) for line in lines))
                there += end - begin
        self._print(stream, (own.of(half) if half else b"") + own.rest())
        if own.over:
            return ""
        if last is None:
            return "its end is not there" if attempt["outcome"] else "it has not ended: later lines may follow"
        return f"{octets(last - first - there)} of {octets(last - first)} are missing" if there < last - first else ""

    async def more(self) -> bool:
        """What was shipped since; False when no more can come."""
        row = (await self._store.worker(self._worker_id))["worker"]
        self._pieces = await self._ledger()
        for stream in self._streams:
            mine = [piece for piece in self._pieces if piece["stream"] == stream]
            fresh = [piece for piece in _readable(mine) if _key(piece) not in self._shown]
            self._shown |= {_key(piece) for piece in fresh}
            await self._all(fresh)
        if row is not None and is_live(row):
            return True
        for stream in self._streams:
            self._flush(stream)
        self._output.say(f"{self._worker_id} has ended; this was all.")
        return False

    def closing_words(self, row: Mapping[str, Any]) -> None:
        """What was not shown: nothing shipped, or not yet."""
        shipped, lost = defaultdict[tuple[str, str], int](int), 0
        for piece in self._pieces:
            if piece["shipped_at"]:
                shipped[piece["boot_id"], piece["stream"]] += piece["last"] - piece["first"]
            lost += bool(piece["declared_lost"])
        told = row.get("log_bytes") or {}
        waiting = sum(
            max(0, size - shipped[boot, stream])
            for boot, sizes in told.items()
            for stream, size in sizes.items()
            if stream in self._streams
        )
        if waiting and is_live(row):
            age = span(ago(row.get("last_heartbeat"), utcnow()))
            self._output.say(
                f"{octets(waiting)} more lay on the pod at its last heartbeat, {age} ago; -f shows them come."
            )

    async def _ledger(self) -> list[Piece]:
        return list(await self._store.log_pieces(self._worker_id))

    async def _last(self, stream: str, pieces: Sequence[Piece], lines: int) -> None:
        """Read backwards until there are enough lines, then show them in order."""
        kept: list[bytes] = []
        breaks, start = 0, len(pieces)
        while start > 0 and breaks <= lines:
            start -= 1
            if pieces[start]["shipped_at"]:
                content = await self._read(pieces[start])
                breaks += content.count(b"\n")
                kept.append(content)
        text = b"".join(reversed(kept))
        ends_open = not text.endswith(b"\n")
        self._print(stream, b"\n".join(text.split(b"\n")[-lines - (not ends_open) :]))
        for piece in pieces[start:]:
            self._tell_lost(piece)

    async def _all(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._tell_lost(piece)
            if piece["shipped_at"]:
                self._print(piece["stream"], await self._read(piece))

    async def _read(self, piece: Piece) -> bytes:
        """The raw bytes of one object, checked against the ledger. Raises Failure."""
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

    def _print(self, stream: str, content: bytes) -> None:
        *whole, self._half[stream] = (self._half[stream] + content).split(b"\n")
        for line in whole:
            text = line.decode("utf-8", "replace").rstrip("\r")
            if self._output.json:
                self._output.document(stream=stream, line=text)
            else:
                sys.stdout.write(f"{stream:<7} | {plain(text)}\n" if len(self._streams) > 1 else f"{plain(text)}\n")
        sys.stdout.flush()

    def _flush(self, stream: str) -> None:
        if self._half[stream]:
            self._print(stream, b"\n")

    def _tell_lost(self, piece: Piece) -> None:
        if not piece["declared_lost"]:
            return
        first, last = piece["first"], piece["last"]
        size = "an unknown number of bytes" if last is None else octets(last - first)
        until = "on" if last is None else f"to {last}"
        self._output.say(f"{piece['stream']}: {size} from byte {first} {until} are lost: {piece['reason']}", "yellow")
        if self._output.json:
            self._output.document(
                stream=piece["stream"], lost={"first": first, "last": last, "reason": piece["reason"]}
            )


class _Own:
    """The lines of one attempt among others'; all lines where the mark of its begin never comes.

    What heartbeats tell is not enough: a quick task is over before the next of them, and its offsets are others' too.
    """

    def __init__(self, attempt: str) -> None:
        self._begin = f"--- {attempt} begins".encode()
        self._ends = tuple(f"--- {attempt} {word}".encode() for word in ("ends", "cancelled"))
        self._before: list[bytes] | None = []  # until it has begun
        self.over = False

    def of(self, line: bytes) -> bytes:
        """The line, if it is known to be one of them."""
        if self._before is not None and line.startswith(self._begin):
            self._before = None
        if self._before is not None:
            self._before.append(line + b"\n")
        if self._before is not None or self.over:
            return b""
        self.over = line.startswith(self._ends)
        return line + b"\n"

    def rest(self) -> bytes:
        """What there was instead of them."""
        return b"".join(self._before or ())


def _readable(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces up to the first that is still on its way: what follows it would come out of order."""
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
