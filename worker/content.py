"""A piece of a file: its digests, its bytes as the body of a request, and the comparison with an object."""

from __future__ import annotations

import base64
import hashlib
import re

from .store import BLOCK_BYTES, MISSING, StoreConnection, UploadGone, check, refuse_page
from .transfer_errors import TransferError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import IO, Any

MAX_PARTS = 10_000  # of one object: the limit of S3
MIN_PART_BYTES = 8 << 20
MD5 = re.compile(r"[0-9a-f]{32}(-[0-9]{1,5})?")  # an ETag of this form is the MD5 of the object, or of its parts
SHA256_HEADER = "x-amz-checksum-sha256"


class Piece:
    """`size` bytes from `first` on, with their digests. `sent` counts every byte written to a connection."""

    __slots__ = ("first", "md5", "sent", "sha256", "size")

    def __init__(self, first: int, size: int, md5: bytes, sha256: bytes) -> None:
        self.first, self.size, self.md5, self.sha256 = first, size, md5, sha256
        self.sent = 0

    @property
    def checksum(self) -> str:
        """The SHA-256 in the encoding of S3."""
        return base64.b64encode(self.sha256).decode()


class Body:
    """A piece of an open file as the body of a request of http.client."""

    def __init__(self, file: IO[bytes], piece: Piece) -> None:
        file.seek(piece.first)
        self._file, self._piece, self._left = file, piece, piece.size

    def read(self, size: int = BLOCK_BYTES) -> bytes:
        """Return the next bytes. Raises TransferError if the file became shorter."""
        block = self._file.read(min(size, self._left))
        if self._left and not block:
            raise _shorter(self._file)
        self._left -= len(block)
        self._piece.sent += len(block)
        return block


def part_bytes(size: int) -> int:
    """Return the size of the parts of a file: 8 MiB, or more if there were too many parts."""
    return max(MIN_PART_BYTES, -(-size // MAX_PARTS))


def pieces(source: Path, size: int, each_bytes: int | None = None) -> tuple[Piece, list[Piece]]:
    """Return the first `size` bytes of a file as a piece, and their parts of `each_bytes`. One block is in memory.

    The file may grow meanwhile. Raises TransferError if it became shorter.
    """
    with source.open("rb") as file:
        if each_bytes is None:
            return _read(file, 0, size), []
        sha256 = hashlib.sha256()
        parts = [_read(file, first, min(each_bytes, size - first), sha256) for first in range(0, size, each_bytes)]
    return Piece(0, size, b"", sha256.digest()), parts


def _read(file: IO[bytes], first: int, size: int, *whole: Any) -> Piece:
    md5, sha256, left = hashlib.md5(usedforsecurity=False), hashlib.sha256(), size
    while left:
        block = file.read(min(BLOCK_BYTES, left))
        if not block:
            raise _shorter(file)
        left -= len(block)
        for digest in (md5, sha256, *whole):
            digest.update(block)
    return Piece(first, size, md5.digest(), sha256.digest())


def _shorter(file: IO[bytes]) -> TransferError:
    return TransferError(f"{file.name} was changed during the upload: it is shorter now")


def etag_of(answer: Any) -> str | None:
    """Return the MD5 in the ETag of an answer; None if the ETag is no MD5, as with encryption by KMS or client keys."""
    headers = answer.headers
    etag = (headers.get("ETag") or "").strip('"')
    own_keys = headers.get("x-amz-server-side-encryption-customer-algorithm")
    if own_keys or "kms" in (headers.get("x-amz-server-side-encryption") or ""):
        return None
    return etag if MD5.fullmatch(etag) else None


def difference(answer: Any, whole: Piece, parts: Sequence[Piece] = (), *, strict: bool = False) -> str | None:
    """Compare the answer to a HEAD with the file: size, then checksum, MD5 or the writer's SHA-256; None if equal.

    If the answer has none of these digests, equal sizes are enough unless `strict`.
    """
    headers = answer.headers
    if headers.get("Content-Length") != str(whole.size):
        return f"it has {headers.get('Content-Length')} bytes, not {whole.size}"
    shown, etag = headers.get(SHA256_HEADER), etag_of(answer)
    if shown is not None:
        return None if shown in {whole.checksum, composite(parts)} else f"its SHA-256 is {shown[:90]}"
    if etag is not None:
        md5s = hashlib.md5(b"".join(part.md5 for part in parts), usedforsecurity=False).hexdigest()
        expected = f"{md5s}-{len(parts)}" if parts else whole.md5.hex()
        return None if etag == expected else f"its MD5 is {etag}, not {expected}"
    recorded = headers.get("x-amz-meta-sha256", "")
    if recorded or strict:
        return (
            None
            if recorded == whole.sha256.hex()
            else f"its writer recorded the SHA-256 {recorded[:64] or 'of nothing'}"
        )
    return None


def composite(parts: Sequence[Piece]) -> str:
    """Return the checksum of an object of parts in the encoding of S3."""
    digest = hashlib.sha256(b"".join(part.sha256 for part in parts)).digest()
    return f"{base64.b64encode(digest).decode()}-{len(parts)}"


def stored_difference(
    item: dict[str, Any],
    connection: StoreConnection,
    whole: Piece,
    parts: Sequence[Piece] = (),
    *,
    strict: bool = False,
) -> str | None:
    """Ask the store for the object and compare (see `difference`). Raises UploadGone if there is no object.

    An earlier release of the orchestrator does not always sign a HEAD. Then the result is None.
    """
    head = item.get("check") or ({"url": item["head"]} if "head" in item else None)
    if head is None:
        return None
    answer = connection.send("HEAD", head["url"], head.get("headers"))
    connection.text(answer)
    if answer.status in MISSING:
        raise UploadGone("the store does not have the object")
    check(answer.status, "", "HEAD")
    refuse_page(answer)
    return difference(answer, whole, parts, strict=strict)
