"""The bucket over boto3, in a few threads.

boto3 takes a third of a second to import and few commands need it, so it is imported at the first use. An object counts
as stored only if a HEAD shows its size: if a server answers 200 and stores less, or nothing, the call raises an error,
and the log gets no gap.
"""

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from orchestrator.adapters.http_client import proxy
from orchestrator.adapters.s3_signing import presigned
from orchestrator.ports import BlobRefused, NoBucket, NotFound, ObjectExists, PortError, Unavailable

if TYPE_CHECKING:
    from boto3.session import Session
    from mypy_boto3_s3 import S3Client

THREADS = 8  # simultaneous calls; each holds one connection and at most one piece of a log in memory
CONNECT_TIMEOUT_S = 5.0
MAX_GET_BYTES = 128 * 1024 * 1024  # of an object that is read as a whole: a piece of a log, or a list of files
CHUNK_BYTES = 1024 * 1024
MAX_UPLOADS = 10_000  # multipart uploads that one call lists
MAX_PAGES = 100  # pages of one list: a page may be empty, and say that there are more
CLOSED = "S3: the client was closed"
MALFORMED = (KeyError, ValueError, RecursionError)  # boto's and ours for a reply that does not match the API of S3
MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
PRECONDITION_FAILED = 412  # HTTP status
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a call waits for the server."""

    read_timeout_s: float
    attempts: int  # in all, for throttling, 5xx and broken connections; boto pauses between them
    call_timeout_s: float  # for all attempts of one call


USUAL = Patience(30.0, 3, 120.0)
ONE_LOOK = Patience(8.0, 1, 15.0)  # for a person who waits for the answer
OWN_SETTINGS: dict[str, Any] = {  # of boto's: neither the environment nor a file of the user's has a say
    "profile": (None, None, None, None),
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
}
_one_at_a_time = threading.Lock()  # a session makes no two clients at once


def s3_client(**options: Any) -> "S3Client":
    """A client of boto3 with the region, keys and options given. All share what boto3 has read about S3's API."""
    with _one_at_a_time:
        client: S3Client = _session().client("s3", **options)
        return client


@cache
def _session() -> "Session":
    import boto3  # noqa: PLC0415  see the module's docstring
    from botocore.session import Session as Core  # noqa: PLC0415

    # A profile of the person who is logged in, and its keys, are not those of the bucket.
    return boto3.session.Session(botocore_session=Core(session_vars=OWN_SETTINGS))


class S3Blobs:
    """Objects in one bucket, under one prefix. Without an endpoint, the service is AWS."""

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
        patience: Patience = USUAL,
    ) -> None:
        """Configure the bucket. `on_call` gets each call: the operation, and None or its exception.

        NotFound counts as an answer. Raises SettingsError if a proxy of the environment cannot be used.
        """
        self._endpoint_url = endpoint_url
        self._access_key = access_key
        self._secret_key = secret_key
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._region = region
        self._on_call, self._patience = on_call, patience
        url = endpoint_url or f"https://{bucket}.s3.{region}.amazonaws.com"
        through = proxy(url)
        self._proxies = dict.fromkeys(("http", "https"), through) if through else {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="s3")

    async def put(self, key: str, content: bytes, *, content_type: str) -> None:
        """Store an object, then check its size. Raises Unavailable if it was not stored completely."""
        name = self._prefix + key

        def put() -> int:
            client = self._client
            client.put_object(Bucket=self._bucket, Key=name, Body=content, ContentType=content_type)
            return int(_of_object(client.head_object(Bucket=self._bucket, Key=name))["ContentLength"])

        try:
            kept_bytes = await self._in_thread("put", put)
        except NotFound as error:
            raise Unavailable(f"S3 took {key} and does not show it") from error
        if kept_bytes != len(content):
            raise Unavailable(f"S3 kept {kept_bytes} of the {len(content)} bytes of {key}")

    async def get(self, key: str) -> bytes:
        """Return all bytes of an object. Raises NotFound, and Unavailable for more than MAX_GET_BYTES."""
        name = self._prefix + key

        def get() -> bytes:
            content = bytearray()
            body = _of_object(self._client.get_object(Bucket=self._bucket, Key=name))["Body"]
            for chunk in body.iter_chunks(CHUNK_BYTES):
                content += chunk
                if len(content) > MAX_GET_BYTES:
                    body.close()
                    raise Unavailable(f"S3: {name} has more than {MAX_GET_BYTES} bytes")
            return bytes(content)

        return await self._in_thread("get", get)

    async def delete(self, key: str) -> None:
        """Delete an object. A missing object is no error."""
        name = self._prefix + key
        await self._in_thread("delete", lambda: self._client.delete_object(Bucket=self._bucket, Key=name))

    async def size(self, key: str) -> int:
        """Return the size in bytes. Raises NotFound."""
        name = self._prefix + key

        def size() -> int:
            return int(_of_object(self._client.head_object(Bucket=self._bucket, Key=name))["ContentLength"])

        return await self._in_thread("size", size)

    async def look(self, key: str) -> Mapping[str, Any]:
        """Return what a HEAD shows of the object. Raises NotFound."""
        name = self._prefix + key

        def look() -> dict[str, Any]:
            shown = _of_object(self._client.head_object(Bucket=self._bucket, Key=name))
            version, sha256 = shown.get("VersionId"), shown.get("Metadata", {}).get("sha256")
            seen = {"bytes": int(shown["ContentLength"]), "etag": shown["ETag"].strip('"')}
            return seen | ({"version": version} if version else {}) | ({"sha256": sha256[:64]} if sha256 else {})

        return await self._in_thread("look", look)

    async def put_new(self, key: str, content: bytes) -> None:
        """Store the object if none has this key. Raises ObjectExists."""
        name = self._prefix + key
        await self._in_thread(
            "put_new", lambda: self._client.put_object(Bucket=self._bucket, Key=name, Body=content, IfNoneMatch="*")
        )

    def sign(
        self, method: str, key: str, *, expires_s: int, query: Mapping[str, str] = {}, headers: Mapping[str, str] = {}
    ) -> str:
        """Return a URL for one request with exactly these headers, which needs no other credential. Sends nothing."""
        url = f"{self._url}{quote(self._prefix + key, safe='/~')}"
        keys = (self._access_key, self._secret_key)
        return presigned(method, url, keys=keys, region=self._region, expires_s=expires_s, query=query, headers=headers)

    async def abort_uploads(self, prefix: str, *, older_than: datetime) -> int:
        """Abort multipart uploads below a prefix that began before the given time. Return their number."""

        def abort() -> int:
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix, PaginationConfig={"MaxItems": MAX_UPLOADS}
            )
            some = itertools.islice(pages, MAX_PAGES)
            old = [one for page in some for one in page.get("Uploads", ()) if one["Initiated"] < older_than]
            for one in old:
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=one["Key"], UploadId=one["UploadId"])
            return len(old)

        return await self._in_thread("abort_uploads", abort, may_be_refused=True)

    def location(self, key: str) -> str:
        """Return `s3://bucket/prefix/key`."""
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def key_of(self, location: str) -> str | None:
        """Return the key of a location. None for a location in another bucket or prefix."""
        start = f"s3://{self._bucket}/{self._prefix}"
        key = location.removeprefix(start)
        return key if location.startswith(start) and key else None

    async def close(self) -> None:
        """End the threads. Calls that have not begun, and later calls, raise Unavailable."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    @cached_property
    def _client(self) -> "S3Client":
        from botocore.config import Config  # noqa: PLC0415  see the module's docstring

        return s3_client(
            endpoint_url=self._endpoint_url,
            aws_access_key_id=self._access_key,
            aws_secret_access_key=self._secret_key,
            region_name=self._region,
            config=Config(
                proxies=self._proxies,
                signature_version="s3v4",
                # A custom endpoint has no DNS name per bucket.
                s3={"addressing_style": "path" if self._endpoint_url else "auto"},
                # boto's newer default, a CRC in a trailing chunk, is refused by several servers other than AWS.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                retries={"mode": "standard", "total_max_attempts": self._patience.attempts},
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=self._patience.read_timeout_s,
                max_pool_connections=THREADS,
            ),
        )

    @cached_property
    def _url(self) -> str:
        """Return the bucket's URL as boto3 addresses it, with a slash at its end."""
        signed: str = self._client.generate_presigned_url("get_object", Params={"Bucket": self._bucket, "Key": "k"})
        return signed.partition("?")[0].removesuffix("k")

    async def _in_thread(self, operation: str, call: Callable[[], T], *, may_be_refused: bool = False) -> T:
        """Run the call in a thread and return its answer.

        With `may_be_refused`, a refusal is not reported as a store error.
        """
        try:
            begun = self._threads.submit(_translated, call)
        except RuntimeError as error:  # the executor's error for a call after its shutdown
            raise Unavailable(CLOSED) from error
        try:
            async with asyncio.timeout(self._patience.call_timeout_s):
                answer = await asyncio.wrap_future(begun)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) and not task.cancelling():
                raise Unavailable(CLOSED) from None  # the executor dropped the call; the caller was not cancelled
            raise
        except PortError as error:
            if not (may_be_refused and isinstance(error, BlobRefused)):
                self._on_call(operation, error)
            raise
        except TimeoutError:
            late = Unavailable(f"S3 did not answer within {self._patience.call_timeout_s:.0f} s")
            self._on_call(operation, late)
            raise late from None
        self._on_call(operation, None)
        return answer


def _of_object(answer: Any) -> dict[str, Any]:
    """Return an answer about an object. Raises Unavailable for another one, such as the web page of a portal."""
    if "ETag" not in answer:
        raise Unavailable("S3 answered without an ETag: something else answers in its place")
    return {**answer}


def _translated(call: Callable[[], T]) -> T:
    """Run the call and return its answer. Raises the port's errors."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        return call()
    except ClientError as error:
        raise _refusal(error.response, str(error)) from error
    except (BotoCoreError, HTTPError, OSError) as error:  # HTTPError: the body ended while it was read
        raise Unavailable(f"S3: {type(error).__name__}: {error}") from error
    except MALFORMED as error:
        raise Unavailable(f"S3: the answer cannot be read ({type(error).__name__}: {error})") from error


def _refusal(response: Any, text: str) -> PortError:
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == "NoSuchBucket":
        return NoBucket(text)
    if code == "NotImplemented":  # the server does not know a header, so a repetition is useless
        return BlobRefused(text)
    if status == PRECONDITION_FAILED:
        return ObjectExists(text)
    if code in MISSING:
        return NotFound(text)
    if status >= 500 or status in {0, 408, 429} or code in {"SlowDown", "RequestTimeTooSkewed", "RequestTimeout"}:  # noqa: PLR2004  RFC 9110
        return Unavailable(text)
    return BlobRefused(text)
