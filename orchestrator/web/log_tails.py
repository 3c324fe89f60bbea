"""The ends of logs in the bucket, for pages that show them again and again: each object is read once."""

import asyncio
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from orchestrator.worker_logs.attempt_log import AttemptLog, LogObjects, piece_content
from orchestrator.worker_logs.generations import MARK

MAX_LINES = 200  # of one tail
MAX_LINE_CHARS = 2_000
MAX_TAIL_CHARS = 64 << 10
MAX_PIECES = 40  # that one look reads of a stream; if they are tiny, the tail has fewer lines
MAX_SCAN_BYTES = 64 << 20  # of an attempt's log, which is read from its begin
MAX_REMEMBERED = 100  # workers, and attempts
LAUNCH_CHARS = 6  # of the name of a launch, in the place of a line
FIRST_STREAM = "handler"  # before the others: it has what people look for

Row = Mapping[str, Any]
T = TypeVar("T")


class LedgerRows(Protocol):
    """Which pieces of a worker's logs there are."""

    async def log_pieces(self, worker_id: str) -> Sequence[Row]: ...


@dataclass(frozen=True, slots=True)
class TailLine:
    """A line, or a gap."""

    place: str  # unique within its log: of the first byte
    text: str
    is_gap: bool = False


@dataclass(frozen=True, slots=True)
class LogTail:
    """The last lines of a stream."""

    stream: str
    lines: Sequence[TailLine]
    stored_bytes: int
    is_whole: bool  # whether the lines are all there are


@dataclass(slots=True)
class _Tail:
    """The lines of one stream or attempt, of which the oldest are dropped."""

    lines: deque[TailLine] = field(default_factory=deque)
    chars: int = 0
    half: bytes = b""  # the incomplete last line …
    half_at: str = "0"  # … and its place
    launch: str = ""
    dropped: bool = False

    def add(self, launch: str, first: int, content: bytes) -> None:
        """Take bytes that follow the earlier ones."""
        if launch != self.launch:
            self._end_line()
            self.launch = launch
        begin = first - len(self.half)
        *whole, self.half = (self.half + content).split(b"\n")
        for line in whole:
            self._append(TailLine(f"{launch}-{begin}", _text(line)))
            begin += len(line) + 1
        self.half_at = f"{launch}-{begin}"
        if len(self.half) > MAX_TAIL_CHARS:
            self._end_line()

    def gap(self, place: str, why: str) -> None:
        """Note that bytes are missing here."""
        self._end_line()
        self._append(TailLine(place, why, is_gap=True))

    def shown(self) -> list[TailLine]:
        """The lines, with the incomplete last one."""
        return [*self.lines, *([TailLine(self.half_at, _text(self.half))] if self.half else [])]

    def _end_line(self) -> None:
        if self.half:
            self._append(TailLine(self.half_at, _text(self.half)))
            self.half = b""

    def _append(self, line: TailLine) -> None:
        self.lines.append(line)
        self.chars += len(line.text)
        while len(self.lines) > MAX_LINES or self.chars > MAX_TAIL_CHARS:
            self.chars -= len(self.lines.popleft().text)
            self.dropped = True


@dataclass(slots=True)
class _Worker:
    """What is known of the logs of one worker."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tails: dict[str, _Tail] = field(default_factory=lambda: defaultdict(_Tail))
    seen: set[tuple[str, str, int]] = field(default_factory=set)  # boot, stream, seq


@dataclass(slots=True)
class _Attempt:
    """What is known of the log of one attempt."""

    log: AttemptLog
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tail: _Tail = field(default_factory=_Tail)
    bytes: int = 0


class LogTails:
    """The ends of the logs of workers and attempts. All methods run on one event loop, and raise PortError."""

    def __init__(self, rows: LedgerRows, objects: LogObjects) -> None:
        self._rows, self._objects = rows, objects
        self._workers: OrderedDict[str, _Worker] = OrderedDict()
        self._attempts: OrderedDict[tuple[str, int], _Attempt] = OrderedDict()

    async def of_worker(self, worker_id: str) -> Sequence[LogTail]:
        """The tail of each stream of a worker that has anything stored or lost, the handler's first."""
        known = _remembered(self._workers, worker_id, _Worker)
        async with known.lock:
            pieces = readable(await self._rows.log_pieces(worker_id))
            for stream in {piece["stream"] for piece in pieces}:
                await self._read(known, [piece for piece in pieces if piece["stream"] == stream])
            stored: dict[str, int] = defaultdict(int)
            for piece in pieces:
                stored[piece["stream"]] += _size(piece) if piece["shipped_at"] else 0
            order = sorted(known.tails, key=lambda name: (name != FIRST_STREAM, name))
            return [_tail(name, known.tails[name], stored[name]) for name in order]

    async def of_attempt(self, attempt: Row) -> Sequence[LogTail]:
        """The tail of an attempt's log, as far as it is stored."""
        key = (attempt["task_id"], attempt["attempt"])
        known = _remembered(
            self._attempts, key, lambda: _Attempt(AttemptLog(self._rows, self._objects, attempt))
        )  # fmt: skip
        async with known.lock:
            known.log.of(attempt)
            if known.bytes < MAX_SCAN_BYTES:
                async with aclosing(known.log.more()) as parts:
                    async for part in parts:
                        known.tail.add("attempt", known.bytes, part)
                        known.bytes += len(part)
            return [_tail(FIRST_STREAM, known.tail, known.bytes)]

    async def _read(self, known: _Worker, pieces: Sequence[Row]) -> None:
        """Read the pieces of one stream that are new; of many, the last ones."""
        fresh = [piece for piece in pieces if _key(piece) not in known.seen]
        if not fresh:
            return
        tail, begin = known.tails[fresh[0]["stream"]], _begin(fresh)
        tail.dropped = tail.dropped or begin > 0
        known.seen |= {_key(piece) for piece in fresh[:begin]}
        for piece in fresh[begin:]:
            launch, _, generation = piece["boot_id"].partition(MARK)
            name = f"{launch[:LAUNCH_CHARS]}{generation}"
            if piece["shipped_at"]:
                content = await piece_content(self._objects, piece)
                cut = len(content) - MAX_TAIL_CHARS if len(content) > MAX_TAIL_CHARS else 0
                tail.dropped = tail.dropped or cut > 0
                tail.add(name, piece["first"] + cut, content[cut:])
            else:
                lost = f"{_size(piece) or 'some'} bytes were lost: {piece['reason']}"
                tail.gap(f"{name}-{piece['first']}-gap", lost)
            known.seen.add(_key(piece))


def readable(pieces: Sequence[Row]) -> list[Row]:
    """The pieces that were stored or lost: launch by launch, up to the first one that is still on its way."""
    begun: dict[str, str] = {}
    for piece in pieces:
        begun[piece["boot_id"]] = min(begun.get(piece["boot_id"], piece["begun_at"]), piece["begun_at"])
    ready, held = [], set()
    for piece in sorted(pieces, key=lambda one: (begun[one["boot_id"]], one["boot_id"], one["stream"], one["seq"])):
        launch = piece["boot_id"], piece["stream"]
        if launch in held or not (piece["shipped_at"] or piece["declared_lost"]):
            held.add(launch)
        else:
            ready.append(piece)
    return ready


def _begin(pieces: Sequence[Row]) -> int:
    """The index of the first piece that is needed for a full tail."""
    begin, size = len(pieces), 0
    while begin > max(0, len(pieces) - MAX_PIECES) and size < MAX_TAIL_CHARS:
        begin -= 1
        size += _size(pieces[begin]) if pieces[begin]["shipped_at"] else 0
    return begin


def _tail(stream: str, tail: _Tail, stored_bytes: int) -> LogTail:
    return LogTail(stream, tail.shown(), stored_bytes, not tail.dropped)


def _text(line: bytes) -> str:
    text = line.decode("utf-8", "replace").rstrip("\r")
    return text if len(text) <= MAX_LINE_CHARS else text[: MAX_LINE_CHARS - 1] + "…"


def _size(piece: Row) -> int:
    return int((piece["last"] or piece["first"]) - piece["first"])


def _key(piece: Row) -> tuple[str, str, int]:
    return piece["boot_id"], piece["stream"], piece["seq"]


def _remembered(known: OrderedDict[Any, T], key: Any, make: Any) -> T:
    """The entry of a key, a new one if there is none; the ones that were used least recently are dropped."""
    if key not in known:
        known[key] = make()
    known.move_to_end(key)
    while len(known) > MAX_REMEMBERED:
        known.popitem(last=False)
    return known[key]
