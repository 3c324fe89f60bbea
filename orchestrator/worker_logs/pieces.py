"""Pieces of logs in the database and in S3. A piece is the bytes [first, last) of a stream.

The row of a piece is written before its upload: read -> log_begin -> put -> log_shipped. A crash in between leaves a
piece that has begun. Bytes that no longer exist are declared lost, with their size.
"""

import asyncio
import gzip
import hashlib
import zlib

import structlog

from orchestrator.ports import BlobRefused, Blobs, LogRange, NotFound, Store, Unavailable
from orchestrator.worker_logs.ledger import StreamEnd

LEVEL = 6
ASK_S = 10.0  # to ask S3 for a piece before the rest is declared lost: a flush has 60 s, the client of S3 takes longer
CONTENT_TYPE = "application/gzip"
log = structlog.get_logger()


class Pieces:
    """Writes pieces and losses. The methods raise the errors of the store and of the object store."""

    def __init__(self, store: Store, blobs: Blobs) -> None:
        self._store, self._blobs = store, blobs

    async def begin(self, term: int, end: StreamEnd, where: tuple[str, str, str], content: bytes) -> None:
        """Write the row of the next piece, then upload it. `where`: worker id, boot id, stream."""
        digest, packed = await asyncio.to_thread(compress, content)
        first, last = end.last, end.last + len(content)
        key = f"logs/{'/'.join(where)}/{end.seq:08d}-{first}-{last}.log.gz"
        piece = LogRange(*where, end.seq, first, last, digest, key)
        await self._store.log_begin(term, piece)
        end.seq, end.last, end.begun = end.seq + 1, last, piece
        await self._put(term, end, piece, packed)

    async def is_stored(self, piece: LogRange) -> bool:
        """Return whether S3 has the piece."""
        try:
            packed = await self._blobs.get(piece.key)
        except NotFound:
            return False
        return await asyncio.to_thread(digest_of, packed) == piece.sha256

    async def confirm(self, term: int, end: StreamEnd, piece: LogRange) -> None:
        """Record that S3 has the piece."""
        await self._put(term, end, piece, None)

    async def repeat(self, term: int, end: StreamEnd, piece: LogRange, content: bytes) -> bool:
        """Upload a piece again. If its bytes have changed, declare it lost and return False."""
        digest, packed = await asyncio.to_thread(compress, content)
        if digest == piece.sha256:
            await self._put(term, end, piece, packed)
            return True
        log.warning("log_rewritten", worker=piece.worker_id, stream=piece.stream, first=piece.first, last=piece.last)
        why = "the file was rewritten on the pod before this piece had arrived"
        await self._store.log_lost(term, piece.worker_id, piece.boot_id, piece.stream, piece.first, piece.last, why)
        end.begun = None
        return False

    async def declare_rest(
        self, term: int, end: StreamEnd, where: tuple[str, str, str], size: int | None, why: str
    ) -> None:
        """Declare lost what S3 does not have of a stream. `size` is the last known one; later bytes are unknown."""
        known = max(end.last, size or 0)
        try:
            if end.begun is not None and await self._is_known_to_be_stored(end.begun):
                await self.confirm(term, end, end.begun)
        except (Unavailable, BlobRefused) as error:  # do not keep and pay for a pod until S3 answers again
            why += f"; whether the last piece begun had arrived is unknown: {str(error)[:200]}"
        if known > end.shipped:
            log.warning("log_lost", worker=where[0], stream=where[2], first=end.shipped, last=known)
            await self._store.log_lost(term, *where, end.shipped, known, why)
        await self._store.log_lost(term, *where, end.shipped, None, f"{why}; what came after is unknown")

    async def _is_known_to_be_stored(self, piece: LogRange) -> bool:
        """Return whether S3 has the piece. Unavailable if it does not say so soon."""
        try:
            async with asyncio.timeout(ASK_S):
                return await self.is_stored(piece)
        except TimeoutError as error:
            raise Unavailable(f"S3 did not answer within {ASK_S:g} s") from error

    async def _put(self, term: int, end: StreamEnd, piece: LogRange, packed: bytes | None) -> None:
        """Upload a piece, unless `packed` is None, and record that S3 has it."""
        if packed is not None:
            await self._blobs.put(piece.key, packed, content_type=CONTENT_TYPE)
        await self._store.log_shipped(term, piece)
        end.begun, end.shipped = None, piece.last


def compress(content: bytes) -> tuple[str, bytes]:
    """Return the SHA-256 and the gzip of the content: always the same bytes for the same content."""
    return hashlib.sha256(content).hexdigest(), gzip.compress(content, LEVEL, mtime=0)


def digest_of(packed: bytes) -> str | None:
    """Return the SHA-256 of the content of a gzip file; None if the file is damaged."""
    try:
        return hashlib.sha256(gzip.decompress(packed)).hexdigest()
    except (EOFError, OSError, zlib.error):
        return None
