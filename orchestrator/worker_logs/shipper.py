"""Worker logs to S3: by byte offset, compressed, without a gap and without duplicates.

A stream is an append-only file of one launch on the pod. Its bytes are shipped in pieces (pieces.py). The ledger says
where the next piece begins. A piece that a crash interrupted is finished first: if S3 does not have it, the same range
is read from the pod again and compared by SHA-256. Bytes that were lost with their host are declared lost.

A file that shrank, or whose last bytes have changed, begins a new generation (generations.py): the rest of the old one
is declared lost, and the new one is shipped from its beginning.

Shipped bytes are freed on the pod, so that its disk does not fill; the file keeps its length, so offsets stay valid. If
the pod or its file system cannot do this, the file stays as it is.

budget.py limits a pod that writes without end or answers slowly.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import structlog

from orchestrator.core.model import Worker
from orchestrator.core.states import State
from orchestrator.ports import Blobs, LogRange, PortError, SessionPool, Store, Unavailable
from orchestrator.worker_logs.budget import LOG_BYTES_PER_HOUR, Budgets, BudgetSpent, Round
from orchestrator.worker_logs.generations import following, launch_of
from orchestrator.worker_logs.ledger import PieceLedger, StreamEnd
from orchestrator.worker_logs.pieces import Pieces
from orchestrator.worker_logs.pod_files import PodFiles
from worker.protocol import STREAMS

PIECE_BYTES = 4 * 1024 * 1024
FREE_BYTES = 64 * 1024 * 1024  # so many shipped bytes of a file are freed at a time
KEEP_BYTES = 16 * 1024 * 1024  # so many shipped bytes stay, for a person who looks at the file on the pod
LAST_PASSES = 8  # over the files of a stopped agent, which should not grow any more
TAIL_BYTES = 256  # of the last piece are read again with the next one, because a replaced file has other bytes there
log = structlog.get_logger()


class Shipper:
    """Ships the logs of workers; one shipment per worker at a time."""

    def __init__(self, store: Store, ssh_pool: SessionPool, blobs: Blobs, *, python: str = "python3") -> None:
        self._store, self._ssh_pool, self._python = store, ssh_pool, python
        self._pieces = Pieces(store, blobs)
        self._ledgers: dict[str, PieceLedger] = {}
        self._gates: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._budgets = Budgets()

    async def ship(self, term: int, worker: Worker, turn: Round | None = None) -> int:
        """Ship the bytes that exist at the begin. Return how many this call confirmed in S3.

        A round that has used up its time ends early. BudgetSpent if the worker may ship no more bytes for now.
        """
        async with self._round(term, worker, turn or Round()) as one:
            shipped = await one.ship()
        if one.turn.withheld_bytes:
            raise BudgetSpent(f"{one.turn.withheld_bytes} bytes wait: {LOG_BYTES_PER_HOUR} an hour are all it may ship")
        return shipped

    async def finish(self, term: int, worker: Worker, reachable: bool) -> int:
        """Stop the agent and ship everything, or declare the rest lost. Raises Unavailable while neither is done.

        Return how many bytes of a reachable pod are declared lost because its byte budget did not allow them.
        """
        async with self._round(term, worker, Round(limit_s=math.inf)) as one:  # the caller has a deadline
            try:
                if reachable:
                    await one.drain()
                else:
                    await one.declare_lost()
            finally:  # if this was interrupted, only the database knows how far it got
                self._ledgers.pop(worker.id, None)
        return one.turn.withheld_bytes

    @asynccontextmanager
    async def _round(self, term: int, worker: Worker, turn: Round) -> AsyncIterator["_ShippingRound"]:
        async with self._gates.setdefault(worker.id, asyncio.Lock()):
            try:
                ledger = self._ledgers.get(worker.id)
                if ledger is None or ledger.term != term:
                    ledger = PieceLedger.of_rows(term, worker.id, await self._store.log_ends(worker.id))
                self._ledgers[worker.id] = ledger
                files = PodFiles(self._ssh_pool, self._python, worker, turn)
                yield _ShippingRound(self._store, self._pieces, self._budgets, files, ledger)
            except BaseException:  # cancellation too
                self._ledgers.pop(worker.id, None)  # only the database knows how far it got
                raise


class _ShippingRound:
    """One round of one worker."""

    def __init__(self, store: Store, pieces: Pieces, budgets: Budgets, files: PodFiles, ledger: PieceLedger) -> None:
        self._store, self._pieces, self._budgets, self._files, self._ledger = store, pieces, budgets, files, ledger
        self._worker, self._term, self.turn = files.worker, ledger.term, files.turn

    async def ship(self, *, look_for_launches: bool = False) -> int:
        shipped, ledger = 0, self._ledger
        if look_for_launches or not ledger.launches:
            ledger.launches = await self._files.launches()
        for launch_id in sorted(ledger.launches | ledger.unfinished | self._present):
            sizes = await self._files.sizes(launch_id)
            for stream in STREAMS:
                shipped += await self._ship_file(launch_id, stream, sizes.get(f"{stream}.log", 0))
                if self.turn.may_pause:
                    return shipped
        return shipped

    async def drain(self) -> None:
        """Stop every launch, then ship everything. If one cannot be stopped, ship what is there and raise.

        The present launch is stopped even if its start has not reached the pod yet: then it starts nothing. What the
        byte budget does not allow is declared lost, because the pod is paid for while it waits.
        """
        unstopped: PortError | None = None
        how = None  # the newest launch whose agent did not report its end
        for launch_id in sorted(await self._files.launches() | self._present):
            try:
                how = await self._files.stop(launch_id) or how
            except PortError as error:
                unstopped = error
        if self._worker.state is State.TERMINATING:
            await self._note_rest(how)
        for _ in range(LAST_PASSES):
            self.turn.withheld_bytes = 0
            if await self.ship(look_for_launches=True) == 0:
                break
        else:
            unstopped = unstopped or Unavailable("its logs are still being written to")
        if unstopped is not None:
            raise unstopped
        if self.turn.withheld_bytes:
            await self._declare_withheld()

    async def declare_lost(self) -> None:
        """Declare the bytes that were lost with the host: up to the last reported size, and any later ones."""
        launches = {boot_id for boot_id, _ in self._ledger.ends} | set(self._worker.log_bytes) | self._present
        launches |= set(self._worker.metadata.launches)  # that ended before anything of them was shipped
        for boot_id in sorted(launches - {""}):
            for stream in STREAMS:
                end = self._ledger.end(boot_id, stream)
                if not end.closed:
                    size = self._reported(launch_of(boot_id), stream)
                    known_bytes = "no" if size is None else size
                    why = f"lost with its host; its last heartbeat reported {known_bytes} bytes"
                    await self._declare_rest(boot_id, stream, end, size, why)

    async def _ship_file(self, launch_id: str, stream: str, size: int) -> int:
        """Ship one file in its newest generation. Return how many bytes this call confirmed in S3."""
        shipped = 0
        name, end = self._ledger.newest(launch_id, stream)
        if end.begun is not None:
            shipped += await self._finish_piece(end, end.begun)
        if not end.closed and await self._begins_again(launch_id, stream, end, size):
            log.warning("log_restarted", worker=self._worker.id, stream=stream, shipped=end.shipped, size=size)
            name = following(name)
            end = self._ledger.end(name, stream)
        if size > end.last and not end.closed:
            shipped += await self._ship_pieces(name, stream, end, size)
        await self._close_earlier(launch_id, stream, size)
        if end.shipped - KEEP_BYTES - end.cut >= FREE_BYTES:
            end.cut = end.shipped - KEEP_BYTES
            await self._files.free(launch_id, stream, end.cut)
        return shipped

    async def _ship_pieces(self, boot_id: str, stream: str, end: StreamEnd, size: int) -> int:
        began, budget = end.last, self._budgets.of(self._worker.id)
        while end.last < size and not self.turn.may_pause:
            first, last = end.last, min(size, end.last + PIECE_BYTES)
            if not budget.take(last - first):
                self.turn.withheld_bytes += size - first
                break
            content = await self._files.read(boot_id, stream, first, last)
            if len(content) != last - first:
                raise Unavailable(f"{stream}.log gave {len(content)} of the bytes {first} to {last}")
            end.tail = content[-TAIL_BYTES:]
            await self._pieces.begin(self._term, end, (self._worker.id, boot_id, stream), content)
            self.turn.shipped_bytes += last - first
        return end.last - began

    async def _finish_piece(self, end: StreamEnd, piece: LogRange) -> int:
        """Finish a piece that a crash interrupted. Return how many bytes this call confirmed in S3."""
        if await self._pieces.is_stored(piece):
            await self._pieces.confirm(self._term, end, piece)
        else:
            content = await self._files.read(piece.boot_id, piece.stream, piece.first, piece.last)
            if not await self._pieces.repeat(self._term, end, piece, content):
                return 0
        return piece.last - piece.first

    async def _begins_again(self, launch_id: str, stream: str, end: StreamEnd, size: int) -> bool:
        """Return whether the file is no longer the one that was read before.

        An empty file counts as a new one only when it has bytes or the worker ends: the first piece of the new
        generation shows in the ledger that the old one is over.
        """
        if size < end.last:
            return size > 0 or self._worker.state is State.TERMINATING
        if size == end.last or not end.tail:
            return False
        before = await self._files.read(launch_id, stream, end.last - len(end.tail), end.last)
        return before != end.tail

    async def _close_earlier(self, launch_id: str, stream: str, size: int) -> None:
        """Declare lost what S3 does not have of earlier generations."""
        reported = self._reported(launch_id, stream) or 0
        for name in self._ledger.generations(launch_id, stream)[:-1]:
            end = self._ledger.end(name, stream)
            if not end.closed:
                known = reported if reported > size else None  # larger than the present file: the old one's size
                why = f"the file was truncated or replaced on the pod; its size was {known or 'not'} known"
                await self._declare_rest(name, stream, end, known, why)
                end.closed, end.begun = True, None

    async def _declare_withheld(self) -> None:
        why = f"beyond the {LOG_BYTES_PER_HOUR} bytes an hour that the logs of a worker may take"
        for launch_id in sorted(self._ledger.launches | self._present):
            sizes = await self._files.sizes(launch_id)
            for stream in STREAMS:
                name, end = self._ledger.newest(launch_id, stream)
                size = sizes.get(f"{stream}.log", 0)
                if size > end.shipped and not end.closed:
                    await self._declare_rest(name, stream, end, size, why)

    async def _declare_rest(self, boot_id: str, stream: str, end: StreamEnd, size: int | None, why: str) -> None:
        await self._pieces.declare_rest(self._term, end, (self._worker.id, boot_id, stream), size, why)

    async def _note_rest(self, how: str | None) -> None:
        """Record how many log bytes have not arrived yet, because the worker's end waits for them."""
        rest = 0
        for launch_id in await self._files.launches():
            sizes = await self._files.sizes(launch_id)
            for stream in STREAMS:
                _, end = self._ledger.newest(launch_id, stream)
                rest += max(0, sizes.get(f"{stream}.log", 0) - end.shipped)
        await self._store.move(
            self._term,
            self._worker.id,
            from_states=[State.TERMINATING],
            reason=f"its agent had ended without a record: {how}" if how else "its agent was stopped",
            fields={"waiting_for": f"the last {rest} bytes of its logs to reach S3"},
        )

    @property
    def _present(self) -> set[str]:
        """The present launch, if there has been one, whether or not its start has reached the pod."""
        return {self._worker.nonce} if self._worker.nonce else set()

    def _reported(self, launch_id: str, stream: str) -> int | None:
        """The last size of a log that the agent has reported."""
        return self._worker.log_bytes.get(launch_id, {}).get(stream)
