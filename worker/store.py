"""A kept-alive connection to the store, and the meaning of the store's answers."""

from __future__ import annotations

import http.client
import re
import time
from urllib.parse import urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STALL_S = 60.0  # seconds without a transferred byte
IDLE_S = 5.0  # after this time the store may have closed the connection, so a new one is opened
BLOCK_BYTES = 256 << 10  # bytes read from a file and written to a connection at a time
ANSWER_BYTES = 64 << 10  # bytes of an answer; if there are more, the connection closes
QUOTED_CHARS = 300  # characters of an answer in an error
OK, PARTIAL = 200, 206
NO_CONTENT = 204
RANGE = 416  # the object has no bytes at this offset
EXISTS = 412  # the write was conditional on no object, and there is one
CONFLICT = 409  # another write of the object is in progress
UNKNOWN = 501  # the store does not support the condition
MISSING = {404, 410}
CHECKSUM = "x-amz-checksum"  # in the error of a store that does not support it
REFUSED = {301, 302, 303, 307, 308, 401, 403, *MISSING}  # an operator must fix these: keys, policy, bucket, region
BUSY = {"SlowDown", "RequestTimeout", "RequestTimeTooSkewed"}  # codes that S3 sends with a 4xx status too
PAGE = re.compile(r"\s{0,100}<(?:!doctype\s+)?html", re.IGNORECASE)
CODE = re.compile(r"<Code>([A-Za-z]{1,64})</Code>|\"Code\": *\"([A-Za-z]{1,64})\"")


class Unconditional(Exception):
    """The store supports no conditional write, or no checksum."""


class AlreadyStored(Exception):
    """The store already has an object under this key."""


class UploadGone(Exception):
    """The store does not have the multipart upload, or lost the object that it made of it."""


class TryLater(Exception):
    """The store does not answer, or refuses what it should allow: wait for it."""


class RequestFailed(Exception):
    """The store answered with an error that this request causes."""


class Again(Exception):
    """The request needs a new presigned URL. This is no failure."""


class StoreConnection:
    """A kept-alive connection for one thread. Any failure closes it; the next request then opens a new one."""

    def __init__(self, stall_s: float = STALL_S) -> None:
        self._stall_s = stall_s
        self._connection: http.client.HTTPConnection | None = None
        self._origin = ("", "")
        self._used_at = 0.0

    def send(
        self, method: str, url: str, headers: dict[str, str] | None = None, body: Any = None
    ) -> http.client.HTTPResponse:
        """Return the answer with its body unread. Read the body, with `text` or to its end, before the next request."""
        parts = urlsplit(url)
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        connection = self._open((parts.scheme, parts.netloc.rpartition("@")[2]))
        try:
            try:
                connection.request(method, target, body=body, headers=headers or {})
            except (BrokenPipeError, ConnectionResetError) as error:
                answer = _early(connection, error)
            else:
                answer = connection.getresponse()
        except BaseException:
            self.close()
            raise
        self._used_at = time.monotonic()
        return answer

    def text(self, answer: http.client.HTTPResponse) -> str:
        """Read the body of an answer, ANSWER_BYTES at most."""
        try:
            content = answer.read(ANSWER_BYTES)
        except BaseException:
            self.close()
            raise
        if not answer.isclosed() or answer.will_close:
            self.close()
        return content.decode("utf-8", "replace")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _open(self, origin: tuple[str, str]) -> http.client.HTTPConnection:
        if origin != self._origin or time.monotonic() - self._used_at > IDLE_S:
            self.close()
        if self._connection is None:
            kind = http.client.HTTPSConnection if origin[0] == "https" else http.client.HTTPConnection
            self._connection, self._origin = kind(origin[1], timeout=self._stall_s, blocksize=BLOCK_BYTES), origin
        return self._connection


def _early(connection: http.client.HTTPConnection, error: OSError) -> http.client.HTTPResponse:
    """Return the answer of a store that refused the request before it read the body, or raise `error`."""
    try:
        return connection.getresponse()
    except (OSError, http.client.HTTPException):
        raise error from None


def refuse_page(answer: http.client.HTTPResponse) -> None:
    """Raise TryLater for a web page in place of an object: a proxy's or a portal's. An object has an ETag."""
    if "text/html" in (answer.headers.get("Content-Type") or "") and not answer.headers.get("ETag"):
        raise TryLater("a web page answers in place of the store")


def check(status: int, body: str, method: str) -> None:
    """Raise the exception for an answer that is no success. `body` is its text."""
    if status in {OK, PARTIAL, NO_CONTENT}:
        if PAGE.match(body):
            raise TryLater(f"a web page answers in place of the store: {body[:QUOTED_CHARS]}")
        return
    found = CODE.search(body)
    code = (found[1] or found[2]) if found else ""
    text = f"HTTP {status} {code}: {body[:QUOTED_CHARS]}"
    writes = method in {"PUT", "POST"}
    if code == "NoSuchUpload":
        raise UploadGone(text)
    if writes and status == EXISTS:
        raise AlreadyStored(text)
    if writes and (status == UNKNOWN or code == "NotImplemented" or CHECKSUM in body.lower()):
        raise Unconditional(text)
    if status == CONFLICT or status >= 500 or status in {408, 429} or code in BUSY:  # noqa: PLR2004 RFC 9110
        raise TryLater(f"the store is unavailable: {text}")
    if method == "GET" and (status in MISSING or status in {EXISTS, RANGE}) and code != "NoSuchBucket":
        raise RequestFailed(text)
    if status in REFUSED:
        fix = "the operator must check S3_BUCKET, the AWS keys and their policy"
        raise TryLater(f"the store refuses; {fix}: {text}")
    raise RequestFailed(text)
