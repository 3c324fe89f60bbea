"""Uploads: a file in one write, or in parts. A part that the store has acknowledged is not sent again.

Each request says what must be signed for it, and sends itself once with the signed URLs. `transfer_loop.py` repeats it.
"""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, unescape

from .content import SHA256_HEADER, Body, Piece, etag_of, part_bytes, pieces, stored_difference
from .store import (
    Again,
    AlreadyStored,
    RequestFailed,
    StoreConnection,
    TryLater,
    Unconditional,
    UploadGone,
    check,
)
from .transfer_errors import Exists

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, NoReturn

XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"
ETAG_CHARS = 256  # there may be 10,000 of them in memory
UPLOAD_ID = re.compile(r"<UploadId>([^<]{1,1024})</UploadId>")


class StoreRequest:
    """A request that the transfer loop repeats until it succeeds."""

    what = ""
    failures = 0  # answers with an error that the request itself causes
    is_corrupted = False  # the store acknowledged it, but has other bytes

    def send(self, item: dict[str, Any], connection: StoreConnection) -> None:
        """Send once. Raises the exceptions of `store.check`, OSError, http.client.HTTPException, TransferError."""
        raise NotImplementedError


class File(StoreRequest):
    """The first `size` bytes of a file in one write."""

    def __init__(self, key: str, source: Path, size: int) -> None:
        self.key, self.source, self.size, self.what = key, source, size, f"PUT of {key}"
        self.location = ""
        self.once = True  # a conditional write with a signed checksum
        self._acknowledged = False
        self._read: Piece | None = None

    @property
    def piece(self) -> Piece:
        if self._read is None:
            self._read = pieces(self.source, self.size)[0]
        return self._read

    def wanted(self) -> dict[str, Any]:
        plain = {"method": "PUT", "key": self.key, "verify": True}
        if not self.once:
            return plain
        return {**plain, "once": True, "bytes": self.piece.size, "sha256": self.piece.sha256.hex()}

    def send(self, item: dict[str, Any], connection: StoreConnection) -> None:
        try:
            with self.source.open("rb") as file:
                _put(item, connection, file, self.piece)
        except Unconditional as error:
            _without_condition(self, error)
        except AlreadyStored:
            differs = stored_difference(item, connection, self.piece, strict=True)
            if differs and self._acknowledged:
                self._corrupt(differs)
            if differs:
                why = f"{item['location']} was stored before with other content ({differs})"
                raise Exists(f"{why}: an output is written once") from None
        else:
            self._acknowledged = True
            try:
                differs = stored_difference(item, connection, self.piece)
            except UploadGone:
                raise TryLater("the store acknowledged the file, and does not have it") from None
            if differs:
                self._corrupt(differs)
        self.location = item["location"]

    def _corrupt(self, differs: str) -> None:
        """Replace the object: it is not what any task stored."""
        self.once, self.is_corrupted = False, True
        raise RequestFailed(f"the store has other bytes than were sent: {differs}")


class Part(StoreRequest):
    """One part of a multipart upload."""

    def __init__(self, upload: Multipart, number: int, piece: Piece) -> None:
        self.upload, self.number, self.piece = upload, number, piece
        self.what = f"PUT of part {number} of {upload.key}"
        self.etag = ""

    def send(self, item: dict[str, Any], connection: StoreConnection) -> None:
        try:
            with self.upload.source.open("rb") as file:
                etag = _put(item, connection, file, self.piece)
        except Unconditional as error:
            _without_condition(self.upload, error)
        if not etag or len(etag) > ETAG_CHARS:
            raise RequestFailed(f"the store returned no usable ETag: {etag[:ETAG_CHARS]!r}")
        self.etag = etag


class Multipart:
    """A multipart upload of the first `size` bytes of a file: its id, and the parts that the store has acknowledged.

    These have an ETag.
    """

    def __init__(self, key: str, source: Path, size: int) -> None:
        self.key, self.source = key, source
        self.whole, parts = pieces(source, size, part_bytes(size))
        self.parts = [Part(self, number, piece) for number, piece in enumerate(parts, 1)]
        self.upload_id = ""
        self.once = True
        self.location = ""

    @property
    def sent(self) -> int:
        return sum(part.piece.sent for part in self.parts)

    def begin_again(self) -> None:
        """Forget the upload that the store has lost."""
        self.upload_id = ""
        for part in self.parts:
            part.etag = ""

    def wanted(self, parts: list[Part] | None = None) -> dict[str, Any]:
        """Return what must be signed: the start of the upload, or these parts and its completion."""
        item: dict[str, Any] = {"method": "PUT", "key": self.key, "verify": True}
        if self.once:
            item.update(once=True, bytes=self.whole.size, sha256=self.whole.sha256.hex())
        if not self.upload_id:
            return {**item, "multipart": True}
        each: list[dict[str, Any]] = [{"n": part.number, "bytes": part.piece.size} for part in parts or ()]
        if self.once:
            each = [{**one, "sha256": part.piece.sha256.hex()} for one, part in zip(each, parts or ())]
        return {**item, "upload_id": self.upload_id, "parts": each}

    def completion(self) -> str:
        """Return the body of the completion."""
        checksum = "<ChecksumSHA256>{}</ChecksumSHA256>" if self.once else ""
        each = "".join(
            f"<Part><PartNumber>{part.number}</PartNumber><ETag>{escape(part.etag)}</ETag>"
            f"{checksum.format(part.piece.checksum)}</Part>"
            for part in self.parts
        )
        return f'<CompleteMultipartUpload xmlns="{XMLNS}">{each}</CompleteMultipartUpload>'


class Start(StoreRequest):
    """The start of a multipart upload. `is_refused`: the orchestrator's release does not support such uploads."""

    def __init__(self, upload: Multipart) -> None:
        self.upload, self.what = upload, f"start of the upload of {upload.key}"
        self.is_refused = False

    def send(self, item: dict[str, Any], connection: StoreConnection) -> None:
        if "create" not in item:
            self.is_refused = True
            return
        answer = connection.send("POST", item["create"]["url"], {"Content-Length": "0", **item["create"]["headers"]})
        answered = connection.text(answer)
        try:
            check(answer.status, answered, "POST")
        except Unconditional as error:
            _without_condition(self.upload, error)
        found = UPLOAD_ID.search(answered)
        if found is None:
            raise RequestFailed(f"the store returned no upload id: {answered[:200]}")
        self.upload.upload_id, self.upload.location = unescape(found[1]), item["location"]


class Completion(StoreRequest):
    """The completion of a multipart upload, and the HEAD after it."""

    def __init__(self, upload: Multipart) -> None:
        self.upload, self.what = upload, f"completion of the upload of {upload.key}"

    def send(self, item: dict[str, Any], connection: StoreConnection) -> None:
        upload, end = self.upload, item["complete"]
        pieces_sent = [part.piece for part in upload.parts]
        body = upload.completion().encode()
        answer = connection.send(
            "POST", end["url"], {**end["headers"], "Content-Length": str(len(body)), "Content-Type": "text/xml"}, body
        )
        answered = connection.text(answer)
        before: Exception | None = None
        try:
            check(answer.status, answered, "POST")
            if "<Error>" in answered:  # S3 sends status 200 before it knows the result
                check(500, answered, "POST")
        except Unconditional as error:
            _without_condition(upload, error)
        except (AlreadyStored, UploadGone) as error:
            before = error  # an earlier try may have completed it, and its answer was lost
        differs = stored_difference(item, connection, upload.whole, pieces_sent, strict=before is not None)
        if differs and isinstance(before, AlreadyStored):
            why = f"{item['location']} was stored before with other content ({differs})"
            raise Exists(f"{why}: an output is written once")
        if differs and before:
            raise before
        if differs:
            upload.once = False  # the object is not what any task stored: replace it
            raise UploadGone(f"the store has other bytes than were sent: {differs}")


class Abort(StoreRequest):
    """The abort of a multipart upload: the store deletes its parts."""

    def __init__(self, upload: Multipart) -> None:
        self.upload, self.what = upload, f"abort of the upload of {upload.key}"

    def send(self, item: dict[str, Any], connection: StoreConnection) -> None:
        answer = connection.send("DELETE", item["abort"]["url"])
        check(answer.status, connection.text(answer), "DELETE")


def _put(item: dict[str, Any], connection: StoreConnection, file: Any, piece: Piece) -> str:
    """Send the piece and return its ETag. Raises RequestFailed if the store reports other bytes."""
    headers = {"Content-Length": str(piece.size), **item.get("headers", {})}
    answer = connection.send("PUT", item["url"], headers, Body(file, piece))
    check(answer.status, connection.text(answer), "PUT")
    shown, etag = answer.headers.get(SHA256_HEADER), etag_of(answer)
    if shown is None and etag is not None and etag != piece.md5.hex():
        raise RequestFailed("the store has other bytes than were sent (its MD5 differs)")
    if shown is not None and shown != piece.checksum:
        raise RequestFailed("the store has other bytes than were sent (its SHA-256 differs)")
    return answer.headers.get("ETag") or ""


def _without_condition(upload: File | Multipart, error: Unconditional) -> NoReturn:
    """Repeat the request at once without condition and checksum, because the store does not support them."""
    if not upload.once:
        raise TryLater(f"the store is unavailable: {error}") from None
    upload.once = False  # then only the recorded size and digest protect the object
    raise Again from None
