"""The bucket, and its errors."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from orchestrator.ports.errors import PortError


class NotFound(PortError):
    """No such object."""


class BlobRefused(PortError):
    """The server refused the call (wrong key, forbidden): the same call would fail again."""


class NoBucket(BlobRefused):
    """The bucket does not exist."""


class ObjectExists(BlobRefused):
    """A conditional write found an object under its key."""


class Blobs(Protocol):
    """The S3 bucket; keys are relative to S3_PREFIX."""

    async def put(self, key: str, content: bytes, *, content_type: str) -> None:
        """Store, then read size back (HEAD) and compare: an object that was not kept raises Unavailable."""
        ...

    async def get(self, key: str) -> bytes: ...
    async def size(self, key: str) -> int: ...
    async def look(self, key: str) -> Mapping[str, Any]:
        """HEAD: {bytes, etag}, and `version` and `sha256` where the bucket or the writer gave one. Raises NotFound."""
        ...

    async def put_new(self, key: str, content: bytes) -> None:
        """Store if there is no object of this key. Raises ObjectExists."""
        ...

    def sign(
        self, method: str, key: str, *, expires_s: int, query: Mapping[str, str] = ..., headers: Mapping[str, str] = ...
    ) -> str:
        """A URL for one request with exactly these query parameters and headers; nothing is sent to make it."""
        ...

    async def abort_uploads(self, prefix: str, *, older_than: datetime) -> int:
        """Abort multipart uploads below a prefix that began before then; how many. Raises BlobRefused if it may not."""
        ...

    def location(self, key: str) -> str:
        """`s3://bucket/prefix/key`."""
        ...

    def key_of(self, location: str) -> str | None:
        """The inverse of `location`; None for a location in another bucket or prefix."""
        ...
