"""The bucket over boto3, in a few threads of its own.

boto3 takes a third of a second to import and is needed by few commands, so it is imported with the first use. An object
counts as stored only when a HEAD shows its size: a server that answers 200 and keeps nothing, or keeps less, is an
error here and not a hole in somebody's log.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.ports import BlobRefused, NoBucket, NotFound, ObjectExists, PortError, Unavailable, Upload

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

THREADS = 8  # calls at a time; each holds one connection and at most one piece of a log in memory
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
ATTEMPTS = 3  # in all, for throttling, 5xx and broken connections; boto backs off between them
CALL_TIMEOUT_S = 120.0  # over all attempts of one call
CLOSED = "S3: the client was closed"
MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
PRECONDITION_FAILED = 412  # HTTP status
T = TypeVar("T")


class S3Blobs:
    """Blobs in one bucket, under one prefix; without an endpoint it is AWS."""

    def __init__(
        self,
        endpoint_url: str | None,
        access_key: str,
        secret_key: str,
        bucket: str,
        prefix: str,
        region: str,
        *,
        on_call: Callable[[str, PortError | None], None] = lambda _operation, _error: None,
    ) -> None:
        """`on_call` is told of each call: the operation, and None or what it raised; NotFound is an answer."""
        self._endpoint_url = endpoint_url
        self._access_key = access_key
        self._secret_key = secret_key
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._region = region
        self._on_call = on_call
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="s3")

    async def put(self, key: str, content: bytes, *, content_type: str) -> None:
        """Store, then read the size back: an object that was not kept whole raises Unavailable."""
        name = self._prefix + key

        def put() -> int:
            client = self._client
            client.put_object(Bucket=self._bucket, Key=name, Body=content, ContentType=content_type)
            return int(client.head_object(Bucket=self._bucket, Key=name)["ContentLength"])

        try:
            kept_bytes = await self._in_thread("put", put)
        except NotFound as error:
            raise Unavailable(f"S3 took {key} and does not show it") from error
        if kept_bytes != len(content):
            raise Unavailable(f"S3 kept {kept_bytes} of the {len(content)} bytes of {key}")

    async def get(self, key: str) -> bytes:
        """The object's bytes, whole. Raises NotFound."""
        name = self._prefix + key

        def get() -> bytes:
            return self._client.get_object(Bucket=self._bucket, Key=name)["Body"].read()

        return await self._in_thread("get", get)

    async def delete(self, key: str) -> None:
        """Delete the object; one that is not there is no error."""
        name = self._prefix + key
        await self._in_thread("delete", lambda: self._client.delete_object(Bucket=self._bucket, Key=name))

    async def size(self, key: str) -> int:
        """The object's size in bytes. Raises NotFound."""
        name = self._prefix + key
        return await self._in_thread(
            "size", lambda: int(self._client.head_object(Bucket=self._bucket, Key=name)["ContentLength"])
        )

    async def look(self, key: str) -> Mapping[str, Any]:
        """What a HEAD shows of the object. Raises NotFound."""
        name = self._prefix + key
        shown = await self._in_thread("look", lambda: self._client.head_object(Bucket=self._bucket, Key=name))
        version, sha256 = shown.get("VersionId"), shown.get("Metadata", {}).get("sha256")
        seen = {"bytes": int(shown["ContentLength"]), "etag": shown["ETag"].strip('"')}
        return seen | ({"version": version} if version else {}) | ({"sha256": sha256[:64]} if sha256 else {})

    async def put_new(self, key: str, content: bytes) -> None:
        """Store if there is no object of this key. Raises ObjectExists."""
        name = self._prefix + key
        await self._in_thread(
            "put_new", lambda: self._client.put_object(Bucket=self._bucket, Key=name, Body=content, IfNoneMatch="*")
        )

    def sign_get(self, key: str, *, expires_s: int) -> str:
        """A URL that fetches the object with no further credential; nothing is sent to make it."""
        return self._sign("get_object", key, expires_s)

    def sign_head(self, key: str, *, expires_s: int) -> str:
        """A URL that tells of the object by HEAD with no further credential; nothing is sent to make it."""
        return self._sign("head_object", key, expires_s)

    def sign_put(self, key: str, *, expires_s: int, upload: Upload | None = None) -> str:
        """A URL that takes the object by PUT with no further credential; nothing is sent to make it.

        The headers of `upload` and its length are signed: the bucket refuses a request with others, and a body that
        its checksum does not fit.
        """
        if upload is None:
            return self._sign("put_object", key, expires_s)
        bound = {
            "IfNoneMatch": "*",
            "ContentLength": upload.size_bytes,
            "ContentType": upload.content_type,
            "ChecksumSHA256": upload.checksum,
            "Metadata": {"sha256": upload.sha256},
        }
        return self._sign("put_object", key, expires_s, **bound)

    def location(self, key: str) -> str:
        """`s3://bucket/prefix/key`."""
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def key_of(self, location: str) -> str | None:
        """The inverse of `location`; None for a location in another bucket or prefix."""
        start = f"s3://{self._bucket}/{self._prefix}"
        key = location.removeprefix(start)
        return key if location.startswith(start) and key else None

    async def close(self) -> None:
        """Give the threads back; calls that have not begun, or come later, raise Unavailable."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    @cached_property
    def _client(self) -> "S3Client":
        import boto3  # noqa: PLC0415  see the module's docstring
        from botocore.config import Config  # noqa: PLC0415

        return boto3.session.Session().client(
            "s3",
            endpoint_url=self._endpoint_url,
            aws_access_key_id=self._access_key,
            aws_secret_access_key=self._secret_key,
            region_name=self._region,
            config=Config(
                signature_version="s3v4",
                # A custom endpoint has no name per bucket in DNS.
                s3={"addressing_style": "path" if self._endpoint_url else "auto"},
                # The newer default, a CRC in a trailing chunk, is refused by several servers that are not AWS.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=READ_TIMEOUT_S,
                max_pool_connections=THREADS,
            ),
        )

    def _sign(self, operation: str, key: str, expires_s: int, **bound: Any) -> str:
        arguments = {"Bucket": self._bucket, "Key": self._prefix + key, **bound}
        return self._client.generate_presigned_url(operation, Params=arguments, ExpiresIn=expires_s)

    async def _in_thread(self, operation: str, call: Callable[[], T]) -> T:
        try:
            begun = self._threads.submit(_translated, call)
        except RuntimeError as error:  # so the executor says that it was shut down
            raise Unavailable(CLOSED) from error
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                answer = await asyncio.wrap_future(begun)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) and not task.cancelling():
                raise Unavailable(CLOSED) from None  # the call was dropped, not its caller
            raise
        except PortError as error:
            self._on_call(operation, error)
            raise
        except TimeoutError:
            late = Unavailable(f"S3 did not answer within {CALL_TIMEOUT_S:.0f} s")
            self._on_call(operation, late)
            raise late from None
        self._on_call(operation, None)
        return answer


def _translated(call: Callable[[], T]) -> T:
    """The call's answer, or what went wrong in the port's words."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        return call()
    except ClientError as error:
        raise _refusal(error.response, str(error)) from error
    except (BotoCoreError, HTTPError, OSError) as error:  # HTTPError: the body broke off while it was read
        raise Unavailable(f"S3: {type(error).__name__}: {error}") from error


def _refusal(response: Any, text: str) -> PortError:
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == "NoSuchBucket":
        return NoBucket(text)
    if code == "NotImplemented":  # a header that the server does not know: asking again is of no use
        return BlobRefused(text)
    if status == PRECONDITION_FAILED:
        return ObjectExists(text)
    if code in MISSING:
        return NotFound(text)
    if status >= 500 or status in {0, 408, 429} or code in {"SlowDown", "RequestTimeTooSkewed", "RequestTimeout"}:  # noqa: PLR2004  RFC 9110
        return Unavailable(text)
    return BlobRefused(text)
