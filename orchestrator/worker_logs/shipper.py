"""Worker logs to S3: by byte offset, compressed, without a gap and never twice.

A stream is an append-only file of one launch on the pod. Its bytes go out in pieces [first, last); the ledger decides
what the next piece is, and a piece's row is written before its upload:

    read -> log_begin -> put -> log_shipped

A crash in between leaves a begun piece, which the next shipment finishes first: from S3 if it had arrived, else from
the pod, the same range with the same sha256. What went with its host is declared lost, with what is known of its size.

A file that shrank, or whose last bytes are no longer those that were read, begins a new generation
(log_generations.py): what the old one still held is declared lost, and the new one is shipped from its beginning.

A file only grows, and a worker may live for weeks: what has been in S3 for a while becomes a hole, so that the offsets
stay and the pod's disk does not fill. Where the pod or its file system cannot do that, the file stays as it is.

A pod that writes without end or answers slowly takes nothing from the others: log_budget.py has its bounds.
"""

import asyncio
import gzip
import hashlib
import math
import time
import zlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import structlog

from orchestrator.core.model import Worker
from orchestrator.core.states import State
from orchestrator.pods import agent_commands, agent_control
from orchestrator.ports import (
    BlobRefused,
    Blobs,
    LogRange,
    NotFound,
    PortError,
    Session,
    SessionPool,
    Store,
    Unavailable,
)
from orchestrator.worker_logs.budget import LOG_BYTES_PER_HOUR, Budgets, BudgetSpent, Round
from orchestrator.worker_logs.generations import following, launch_of
from worker.protocol import STREAMS

PIECE_BYTES = 4 * 1024 * 1024
CUT_BYTES = 64 * 1024 * 1024  # of a file that are in S3, before their room is given back …
NEAR_BYTES = 16 * 1024 * 1024  # … but for the last of them, for who looks on the pod itself
LEVEL = 6
CONTENT_TYPE = "application/gzip"
CONNECT_TIMEOUT_S = 15.0  # at the end, when there is no next time …
SHIP_CONNECT_S = 5.0  # … and before, when it comes in a few seconds and what is wrong should be told soon
READ_TIMEOUT_S = 30.0
STOP_GRACE_S = 5.0  # for an agent to give up what it holds; the tasks had the drain before
LAST_PASSES = 8  # over files that nobody should be writing to any more
TAIL_BYTES = 256  # of the last piece, read again with the next one: a file that was replaced shows other bytes
LAUNCHES = 100  # directories looked at on one pod, in case somebody makes more
log = structlog.get_logger()


@dataclass(slots=True)
class _End:
    """Where the ledger of one stream ends."""

    seq: int = 0  # the next piece's
    last: int = 0  # bytes given to pieces so far
    shipped: int = 0  # where the last piece that arrived ends
    cut: int = 0  # where the hole at the file's beginning was last to end
    begun: LogRange | None = None  # a piece without proof of arrival
    closed: bool = False  # declared lost to the end
    tail: bytes = b""  # what the file held before `last`, as far as this process has read it


@dataclass(slots=True)
class _Ledger:
    """What is known of one worker's pieces, so that they are read from the database once and not every few seconds."""

    term: int
    ends: dict[tuple[str, str], _End] = field(default_factory=dict)
    launches: frozenset[str] = frozenset()  # seen on the pod

    @property
    def unfinished(self) -> set[str]:
        """Launches with a piece that has begun, whether or not the pod still shows them."""
        return {launch_of(boot_id) for (boot_id, _), end in self.ends.items() if end.begun is not None}

    def end(self, boot_id: str, stream: str) -> _End:
        return self.ends.setdefault((boot_id, stream), _End())

    def generations(self, launch_id: str, stream: str) -> list[str]:
        """The names under which a stream of a launch is known, oldest first; at least the launch's own."""
        known = {name for name, its_stream in self.ends if its_stream == stream and launch_of(name) == launch_id}
        return sorted(known | {launch_id})


class Shipper:
    """Ships the logs of workers; one shipment a worker at a time."""

    def __init__(self, store: Store, lines: SessionPool, blobs: Blobs, *, python: str = "python3") -> None:
        self._store, self._lines, self._blobs, self._python = store, lines, blobs, python
        self._ledgers: dict[str, _Ledger] = {}
        self._gates: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._budgets = Budgets()
        self._log_schedule: dict[str, Round] = {}  # the shipment under way of each worker

    async def ship(self, term: int, worker: Worker, turn: Round | None = None) -> int:
        """Ship what was there when it began; the bytes that are proven in S3 by this call.

        A round that has used up its time ends early. BudgetSpent if the worker may ship no more bytes for now.
        """
        turn = turn or Round()
        async with self._gate(worker.id), self._in_round(worker.id, turn):
            shipped = await self._ship(term, worker)
        if turn.withheld_bytes:
            raise BudgetSpent(f"{turn.withheld_bytes} bytes wait: {LOG_BYTES_PER_HOUR} an hour are all it may ship")
        return shipped

    async def finish(self, term: int, worker: Worker, reachable: bool) -> int:
        """Stop the agent and ship everything, or declare the rest lost; raises Unavailable while neither is done.

        Return how many bytes of a reachable pod are declared lost because its byte budget did not allow them.
        """
        turn = Round(limit_s=math.inf)  # the caller has a deadline
        async with self._gate(worker.id), self._in_round(worker.id, turn):
            try:
                if reachable:
                    await self._drain(term, worker, turn)
                else:
                    await self._declare(term, worker)
            finally:  # done, or cut off in the middle: then how far it got stands in the database alone
                self._ledgers.pop(worker.id, None)
        return turn.withheld_bytes

    @asynccontextmanager
    async def _in_round(self, worker_id: str, turn: Round) -> AsyncIterator[None]:
        self._log_schedule[worker_id] = turn
        try:
            yield
        finally:
            del self._log_schedule[worker_id]

    def _gate(self, worker_id: str) -> asyncio.Lock:
        return self._gates.setdefault(worker_id, asyncio.Lock())

    async def _ship(self, term: int, worker: Worker, *, look_for_launches: bool = False) -> int:
        shipped = 0
        try:
            ledger = await self._ledger(term, worker.id)
            if look_for_launches or not ledger.launches:
                ledger.launches = await self._launches(worker)
            for boot_id in sorted(ledger.launches | ledger.unfinished | _present(worker)):
                sizes = await self._sizes(worker, boot_id)
                for stream in STREAMS:
                    shipped += await self._ship_stream(term, worker, boot_id, stream, sizes.get(f"{stream}.log", 0))
                    if self._log_schedule[worker.id].resting:
                        return shipped
        except BaseException:  # cancellation too
            self._ledgers.pop(worker.id, None)  # how far it got stands in the database
            raise
        return shipped

    async def _ship_stream(self, term: int, worker: Worker, launch_id: str, stream: str, size: int) -> int:
        """One file, in its newest generation; the bytes that are proven in S3 by this call."""
        ledger, shipped = self._ledgers[worker.id], 0
        *_, name = ledger.generations(launch_id, stream)
        end = ledger.end(name, stream)
        if end.begun is not None:
            shipped += await self._complete(term, worker, end, end.begun)
        if not end.closed and await self._begins_anew(worker, launch_id, stream, end, size):
            log.warning("log_restarted", worker=worker.id, stream=stream, shipped=end.shipped, size=size)
            name = following(name)
            end = ledger.end(name, stream)
        if size > end.last and not end.closed:
            shipped += await self._stream(term, worker, name, stream, size)
        await self._close_earlier(term, worker, launch_id, stream, size)
        if end.shipped - NEAR_BYTES - end.cut >= CUT_BYTES:
            await self._cut(worker, launch_id, stream, end)
        return shipped

    async def _begins_anew(self, worker: Worker, launch_id: str, stream: str, end: _End, size: int) -> bool:
        """Whether the file is no longer the one that was read before.

        An empty one waits for its first bytes: they show in the ledger that the old one is over. At the end it counts.
        """
        if size < end.last:
            return size > 0 or worker.state is State.TERMINATING
        if size == end.last or not end.tail:
            return False
        before = await self._read(worker, launch_id, stream, end.last - len(end.tail), end.last)
        return before != end.tail

    async def _close_earlier(self, term: int, worker: Worker, launch_id: str, stream: str, size: int) -> None:
        """Declare what earlier generations still held: in the ledger a later one shows that they are over."""
        ledger = self._ledgers[worker.id]
        told = worker.log_bytes.get(launch_id, {}).get(stream) or 0
        for name in ledger.generations(launch_id, stream)[:-1]:
            end = ledger.end(name, stream)
            if not end.closed:
                known = told if told > size else None  # a size that the present file has not reached was the old one's
                why = f"the file was truncated or replaced on the pod; its size was {known or 'not'} known"
                await self._declare_stream(term, worker.id, (name, stream), end, known, why)
                end.closed, end.begun = True, None

    async def _stream(self, term: int, worker: Worker, boot_id: str, stream: str, size: int) -> int:
        end = self._ledgers[worker.id].end(boot_id, stream)
        began, turn, budget = end.last, self._log_schedule[worker.id], self._budgets.of(worker.id)
        while end.last < size and not turn.resting:
            first, last = end.last, min(size, end.last + PIECE_BYTES)
            if not budget.take(last - first):
                turn.withheld_bytes += size - first
                break
            content = await self._read(worker, boot_id, stream, first, last)
            if len(content) != last - first:
                raise Unavailable(f"{stream}.log gave {len(content)} of the bytes {first} to {last}")
            end.tail = content[-TAIL_BYTES:]
            digest, packed = await asyncio.to_thread(_packed, content)
            key = f"logs/{worker.id}/{boot_id}/{stream}/{end.seq:08d}-{first}-{last}.log.gz"
            piece = LogRange(worker.id, boot_id, stream, end.seq, first, last, digest, key)
            await self._store.log_begin(term, piece)
            end.seq, end.last, end.begun = end.seq + 1, last, piece
            await self._put(term, end, piece, packed)
            turn.shipped_bytes += last - first
        return end.last - began

    async def _put(self, term: int, end: _End, piece: LogRange, packed: bytes | None) -> None:
        """The second half of a piece; without bytes it has arrived already."""
        if packed is not None:
            await self._blobs.put(piece.key, packed, content_type=CONTENT_TYPE)
        await self._store.log_shipped(term, piece)
        end.begun, end.shipped = None, piece.last

    async def _complete(self, term: int, worker: Worker, end: _End, piece: LogRange) -> int:
        """Bring a begun piece to its end; bytes that are no longer what they were are declared lost."""
        packed = None
        if not await self._has_arrived(piece):
            content = await self._read(worker, piece.boot_id, piece.stream, piece.first, piece.last)
            digest, packed = await asyncio.to_thread(_packed, content)
            if digest != piece.sha256:
                why = "the file was rewritten on the pod before this piece had arrived"
                log.warning("log_rewritten", worker=worker.id, stream=piece.stream, first=piece.first, last=piece.last)
                where = (worker.id, piece.boot_id, piece.stream, piece.first, piece.last)
                await self._store.log_lost(term, *where, why)
                end.begun = None
                return 0
        await self._put(term, end, piece, packed)
        return piece.last - piece.first

    async def _cut(self, worker: Worker, boot_id: str, stream: str, end: _End) -> None:
        """Give the room of what is in S3 back to the pod's disk; what comes of it can wait for the next time."""
        end.cut = end.shipped - NEAR_BYTES
        try:
            async with self._session(worker) as session:
                command = agent_commands.cut_command(boot_id, stream, end.cut)
                done = await session.run(command, timeout_s=READ_TIMEOUT_S)
        except PortError as error:
            log.info("log_uncut", worker=worker.id, stream=stream, error=f"{type(error).__name__}: {error}"[:300])
        else:
            log.info("log_cut", worker=worker.id, stream=stream, bytes=end.cut, exit_status=done.exit_status)

    async def _has_arrived(self, piece: LogRange) -> bool:
        try:
            packed = await self._blobs.get(piece.key)
        except NotFound:
            return False
        return await asyncio.to_thread(_digest, packed) == piece.sha256

    async def _drain(self, term: int, worker: Worker, turn: Round) -> None:
        """Stop every launch, then ship until nothing is left; if one cannot be stopped, ship what is there.

        What the byte budget does not allow any more is declared lost: the pod is paid for while it waits.

        The present one too if its start has not come to the pod yet: it starts nothing then.
        """
        unstopped: PortError | None = None
        for boot_id in sorted(await self._launches(worker) | _present(worker)):
            try:
                await self._stop(worker, boot_id)
            except PortError as error:
                unstopped = error
        if worker.state is State.TERMINATING:
            await self._say_left(term, worker)
        for _ in range(LAST_PASSES):
            turn.withheld_bytes = 0
            if await self._ship(term, worker, look_for_launches=True) == 0:
                break
        else:
            unstopped = unstopped or Unavailable("its logs are still being written to")
        if unstopped is not None:
            raise unstopped
        if turn.withheld_bytes:
            await self._declare_withheld(term, worker)

    async def _declare_withheld(self, term: int, worker: Worker) -> None:
        ledger = await self._ledger(term, worker.id)
        why = f"beyond the {LOG_BYTES_PER_HOUR} bytes an hour that the logs of a worker may take"
        for boot_id in sorted(ledger.launches | _present(worker)):
            sizes = await self._sizes(worker, boot_id)
            for stream in STREAMS:
                *_, newest = ledger.generations(boot_id, stream)
                end, size = ledger.end(newest, stream), sizes.get(f"{stream}.log", 0)
                if size > end.shipped and not end.closed:
                    await self._declare_stream(term, worker.id, (newest, stream), end, size, why)

    async def _say_left(self, term: int, worker: Worker) -> None:
        """Write down how much of the logs has not arrived yet: that is what the worker's end waits for."""
        ledger, left = await self._ledger(term, worker.id), 0
        for boot_id in await self._launches(worker):
            sizes = await self._sizes(worker, boot_id)
            for stream in STREAMS:
                *_, newest = ledger.generations(boot_id, stream)
                left += max(0, sizes.get(f"{stream}.log", 0) - ledger.end(newest, stream).shipped)
        waiting_for = {"waiting_for": f"the last {left} bytes of its logs to reach S3"}
        await self._store.move(
            term, worker.id, from_states=[State.TERMINATING], reason="its agent was stopped", fields=waiting_for
        )

    async def _stop(self, worker: Worker, boot_id: str) -> None:
        if worker.code_sha is None:
            raise Unavailable(f"nothing is known of what runs on {worker.id}")
        async with self._session(worker) as session:
            await agent_control.stop(
                session, python=self._python, agent_sha=worker.code_sha, nonce=boot_id, grace_s=STOP_GRACE_S
            )

    async def _declare(self, term: int, worker: Worker) -> None:
        """Say what went with the host: up to the size last heard of, and whatever came after that."""
        ledger = await self._ledger(term, worker.id)
        launches = {boot_id for boot_id, _ in ledger.ends} | set(worker.log_bytes) | _present(worker)
        launches |= set(worker.metadata.get("launches", ()))  # that ended before anything of them was shipped
        for boot_id in sorted(launches - {""}):
            for stream in STREAMS:
                end = ledger.end(boot_id, stream)
                if not end.closed:
                    told = worker.log_bytes.get(launch_of(boot_id), {}).get(stream)
                    why = f"lost with its host; its last heartbeat told of {told if told is not None else 'no'} bytes"
                    await self._declare_stream(term, worker.id, (boot_id, stream), end, told, why)

    async def _declare_stream(
        self, term: int, worker_id: str, where: tuple[str, str], end: _End, told: int | None, why: str
    ) -> None:
        known = max(end.last, told or 0)
        try:
            if end.begun is not None and await self._has_arrived(end.begun):
                await self._put(term, end, end.begun, None)
        except (Unavailable, BlobRefused) as error:  # a pod is not kept, and paid for, until S3 answers again
            why += f"; whether the last piece begun had arrived is unknown: {str(error)[:200]}"
        if known > end.shipped:
            log.warning("log_lost", worker=worker_id, stream=where[1], first=end.shipped, last=known)
            await self._store.log_lost(term, worker_id, *where, end.shipped, known, why)
        await self._store.log_lost(term, worker_id, *where, end.shipped, None, f"{why}; what came after is unknown")

    async def _ledger(self, term: int, worker_id: str) -> _Ledger:
        known = self._ledgers.get(worker_id)
        if known is None or known.term != term:
            known = _Ledger(term)
            for row in await self._store.log_ends(worker_id):
                end = known.end(row["boot_id"], row["stream"])
                end.seq = row["seq"] + 1
                end.closed = row["last"] is None
                end.last = end.last if row["last"] is None else row["last"]
                end.shipped = end.last if row["shipped_at"] else end.shipped
                if row["shipped_at"] is None and not row["declared_lost"]:
                    names = ("boot_id", "stream", "seq", "first", "last", "sha256", "key")
                    end.begun = LogRange(worker_id, *(row[name] for name in names))
            self._ledgers[worker_id] = known
        return known

    @asynccontextmanager
    async def _session(self, worker: Worker) -> AsyncIterator[Session]:
        """A session whose time counts for the worker's round; Unavailable if the round has none left."""
        turn, began_s = self._log_schedule[worker.id], time.monotonic()
        if turn.over:
            raise Unavailable(f"its pod has taken more than {turn.limit_s:g} s of one round to answer")
        last = worker.state is State.TERMINATING
        try:
            timeout_s = CONNECT_TIMEOUT_S if last else SHIP_CONNECT_S
            async with self._lines.session(worker, timeout_s=timeout_s) as session:
                yield session
        finally:
            turn.waited_s += time.monotonic() - began_s

    async def _launches(self, worker: Worker) -> frozenset[str]:
        async with self._session(worker) as session:
            return frozenset(_names(await session.list(agent_commands.RUNS_DIR, timeout_s=READ_TIMEOUT_S) or ()))

    async def _sizes(self, worker: Worker, boot_id: str) -> dict[str, int]:
        async with self._session(worker) as session:
            return dict(await session.list(f"{agent_commands.run_dir(boot_id)}/logs", timeout_s=READ_TIMEOUT_S) or {})

    async def _read(self, worker: Worker, boot_id: str, stream: str, first: int, last: int) -> bytes:
        path = f"{agent_commands.run_dir(launch_of(boot_id))}/logs/{stream}.log"
        async with self._session(worker) as session:
            return await session.read(path, first, last - first, timeout_s=READ_TIMEOUT_S) or b""


def _present(worker: Worker) -> set[str]:
    """Its present launch, if there has been one, whether or not the start has come to the pod."""
    return {worker.nonce} if worker.nonce else set()


def _names(found: Iterable[str]) -> list[str]:
    """Directories that a launch of ours can have made."""
    return sorted(name for name in found if agent_commands.NONCE.fullmatch(name))[:LAUNCHES]


def _packed(content: bytes) -> tuple[str, bytes]:
    """sha256 and gzip, the same bytes for the same content."""
    return hashlib.sha256(content).hexdigest(), gzip.compress(content, LEVEL, mtime=0)


def _digest(packed: bytes) -> str | None:
    try:
        return hashlib.sha256(gzip.decompress(packed)).hexdigest()
    except (EOFError, OSError, zlib.error):
        return None
