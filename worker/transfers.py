"""Outputs up and dependencies down, over URLs signed for one key: no storage credential is ever on the pod."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import http.client
import itertools
import os
import re
import stat
import time
import zlib
from urllib.parse import urlsplit

from . import protocol
from .waits import ORCHESTRATOR, STORE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from .channel import Channel

WRONG_TRIES = 6  # of a transfer that the store answers clearly, and with an error of the request itself
PAUSE_MAX_S = 15.0  # between two tries of one transfer; each has a fresh URL, so that none expires while it waits
STALL_S = 60.0  # without a byte moving
BLOCK_BYTES = 1 << 20
ASK_S = 30.0  # for the agent to answer; it asks the orchestrator once
REDIRECTS = 3
ROOM_BYTES = 16 << 20  # that the disk must have left while a result waits on it
OK = 200
MISSING = {404, 410}
EXISTS = 412  # a write on condition that there is no object found one
CONFLICT = 409  # … or another write of it under way
UNKNOWN = 501  # the store does not know the condition
CHECKSUM = "x-amz-checksum"  # named in the error of a store that does not take it
REFUSED = {301, 302, 303, 307, 308, 401, 403, *MISSING}  # statuses that an operator mends: keys, policy, bucket, region
BUSY = {"SlowDown", "RequestTimeout", "RequestTimeTooSkewed"}  # codes that S3 sends with a 4xx status too
MD5 = re.compile(r"[0-9a-f]{32}")  # an ETag of this form is the MD5 of what was stored
# What the pod's own disk answers; every other OSError is the network's.
LOCAL = {
    errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ENOTDIR, errno.EIO, errno.EROFS, errno.ENOSPC, errno.EDQUOT,
    errno.EFBIG, errno.EMFILE, errno.ENAMETOOLONG,
}  # fmt: skip


class TransferError(Exception):
    """The bytes did not get where they should; the text never holds a signed URL."""

    code: str | None = None  # of the failure; None: the handler's own
    retryable = True
    outage = False  # whether a service outside is the cause: then the attempt is handed back, and not counted


class Unserved(TransferError):
    """A service was away for longer than this pod can wait."""

    outage = True


class Exists(TransferError):
    """Another file was stored under this name by the same attempt."""

    code = protocol.OUTPUT_EXISTS


class ResultRefused(TransferError):
    """The handler returned more than a result may hold."""

    code = "RESULT_REFUSED"
    retryable = False


class Replaced(TransferError):
    """A dependency's output is not the object that it was completed with."""

    code = protocol.OUTPUT_REPLACED
    retryable = False


class _Unconditional(Exception):
    """The store takes no condition, or no checksum."""


class _Exists(Exception):
    """The store has an object of this key already."""


class _Away(Exception):
    """The store did not answer, or refuses what it should allow: wait for it."""


class _Wrong(Exception):
    """The store answered, and this request is the reason of its error."""


class Door:
    """Asks the agent for signed URLs and moves the bytes itself: the agent stays free to hear a cancellation.

    An outage of the store is waited out, however long it lasts. The orchestrator may be away for `patience_s`.
    """

    def __init__(
        self, channel: Channel, task_id: str, directory: Path, *, patience_s: float, clock: Any = time
    ) -> None:
        self._channel, self._task_id, self._directory, self._clock = channel, task_id, directory, clock
        self._patience_s = patience_s  # how long the orchestrator may be unreachable
        self._numbers = itertools.count(1)

    def put(self, key: str, source: Path) -> tuple[str, int]:
        """(location, bytes) of the stored file. Raises TransferError."""
        if source.stat().st_size > protocol.MAX_UPLOAD_BYTES:
            most = f"{protocol.MAX_UPLOAD_BYTES >> 30} GiB, the most that S3 takes in one write"
            raise TransferError(f"{source.name} has more than {most}: split it, or compress it")
        if not stat.S_ISREG(source.stat().st_mode):  # a pipe would block, and a device never ends
            raise TransferError(f"{source} is no regular file: only those can be stored")
        size, md5, sha256 = _digests(source)
        terms: dict[str, Any] = {"once": True, "bytes": size, "sha256": sha256}
        put = functools.partial(_put, source=source, size=size, md5=md5)
        try:
            return self._try("PUT", key, put, terms), size
        except _Unconditional:  # then what is recorded of the object protects it alone
            return self._try("PUT", key, put), size

    def get(self, location: str, task_id: str, target: Path) -> None:
        """Fetch `location`, left by `task_id`, whole or not at all. Raises TransferError."""
        start = location.find(f"/outputs/{task_id}/")
        if start < 0:
            raise TransferError(f"{location} does not lie among the outputs of the task {task_id}")
        self._try("GET", location[start + 1 :], lambda item: _get(item, target))

    def _try(self, method: str, key: str, move: Any, terms: dict[str, Any] | None = None) -> Any:
        """Move the bytes, waiting for the store as long as the disk has room. The attempt's clock stands meanwhile."""
        wait = _Wait(self._channel, self._task_id, next(self._numbers), self._clock)
        wrong = 0
        wait.tell("")
        try:
            while True:
                item = self._grant({"method": method, "key": key, **(terms or {})}, wait)
                try:
                    return move(item)
                except _Wrong as error:
                    why, wrong = str(error), wrong + 1
                    if wrong >= WRONG_TRIES:
                        raise TransferError(f"{method} of {key} failed {wrong} times, the last time: {why}") from None
                except _Away as error:
                    why = str(error)
                except (OSError, http.client.HTTPException) as error:
                    why = f"{type(error).__name__}: {error}"
                    if isinstance(error, OSError) and error.errno in LOCAL:
                        raise TransferError(f"{method} of {key} failed on this pod: {why}") from error
                self._check_room(f"{method} of {key}", why)
                wait.pause(STORE, why, PAUSE_MAX_S)
        finally:
            wait.tell(None)

    def _check_room(self, what: str, why: str) -> None:
        disk = os.statvfs(self._directory)
        if disk.f_bavail * disk.f_frsize < ROOM_BYTES:
            raise Unserved(f"{what} waited for the store ({why}), and the pod's disk is full")

    def _grant(self, wanted: dict[str, Any], wait: _Wait) -> dict[str, Any]:
        """A signed URL; waits for an orchestrator that is away."""
        method, key = wanted["method"], wanted["key"]
        until = self._clock.monotonic() + self._patience_s
        while True:
            try:
                reply = self._channel.ask({"op": "grants", "items": [wanted]}, ASK_S)
            except TimeoutError as error:
                reply = {"error": str(error), "final": False}
            if reply.get("items"):
                item: dict[str, Any] = reply["items"][0]
                return item
            if reply.get("replaced"):
                raise Replaced(f"{key} is not the object with which its task was completed")
            if "error" not in reply or reply["final"]:
                raise TransferError(f"{method} of {key} was not granted: {reply.get('error', 'refused')}")
            if self._clock.monotonic() > until:
                raise Unserved(f"{method} of {key}: no grant within {self._patience_s:.0f} s: {reply['error']}")
            wait.pause(ORCHESTRATOR, reply["error"], reply.get("again_s", 8.0))


class _Wait:
    """One transfer's pauses, each told to the agent."""

    def __init__(self, channel: Channel, task_id: str, number: int, clock: Any) -> None:
        self._channel, self._task_id, self._number, self._clock = channel, task_id, number, clock
        self._tries = 0
        self._since = ""

    def tell(self, service: str | None, why: str = "") -> None:
        self._channel.send({
            "op": "service", "task": self._task_id, "seq": self._number, "service": service, "why": why,
            "tries": self._tries, "since": self._since,
        })  # fmt: skip

    def pause(self, service: str, why: str, most_s: float) -> None:
        """Sleep for longer after each try; not all pods of a fleet for equally long."""
        self._since = self._since or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock.time()))
        self._tries += 1
        self.tell(service, why)
        spread = 0.75 + zlib.crc32(f"{self._task_id}{self._tries}".encode()) % 1000 / 2000
        self._clock.sleep(spread * min(most_s, 0.25 * 2.0 ** min(self._tries, 10)))


def _check(answer: Any, method: str) -> None:
    """Raise what an answer other than 200 means."""
    if answer.status == OK:
        return
    body = answer.read(1000).decode("utf-8", "replace")
    found = re.search(r"<Code>([A-Za-z]{1,64})</Code>|\"Code\": *\"([A-Za-z]{1,64})\"", body)
    code = (found[1] or found[2]) if found else ""
    said = f"HTTP {answer.status} {code}: {body[:300]}"
    if method == "PUT" and answer.status == EXISTS:
        raise _Exists(said)
    if method == "PUT" and (answer.status == UNKNOWN or code == "NotImplemented" or CHECKSUM in body.lower()):
        raise _Unconditional(said)
    if answer.status == CONFLICT or answer.status >= 500 or answer.status in {408, 429} or code in BUSY:  # noqa: PLR2004 RFC 9110
        raise _Away(f"the store does not serve: {said}")
    if method == "GET" and answer.status in MISSING and code != "NoSuchBucket":
        raise _Wrong(said)
    if answer.status in REFUSED:
        raise _Away(f"the store refuses; the operator must check S3_BUCKET, the AWS keys and their policy: {said}")
    raise _Wrong(said)


def _digests(source: Path) -> tuple[int, str, str]:
    """(bytes, MD5, SHA-256) of a file."""
    size, md5, sha256 = 0, hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with source.open("rb") as file:
        for block in iter(lambda: file.read(BLOCK_BYTES), b""):
            size += len(block)
            md5.update(block)
            sha256.update(block)
    return size, md5.hexdigest(), sha256.hexdigest()


def _put(item: dict[str, Any], source: Path, size: int, md5: str) -> str:
    headers = {"Content-Length": str(size), **item.get("headers", {})}
    location: str = item["location"]
    try:
        with source.open("rb") as file, contextlib.closing(_connect(item["url"])) as connection:
            connection.request("PUT", _target(item["url"]), body=file, headers=headers)
            answer = connection.getresponse()
            _check(answer, "PUT")
            answer.read(1000)
    except _Unconditional as error:
        if "headers" in item:
            raise
        raise _Away(f"the store does not serve: {error}") from None
    except _Exists:
        if not _is_same(item, size, md5):
            raise Exists(f"{location} was stored before with other content: an output is written once") from None
        return location  # by an earlier try, whose answer was lost
    etag = (answer.headers.get("ETag") or "").strip('"')
    if MD5.fullmatch(etag) and etag != md5:
        raise _Wrong("the store kept other bytes than were sent (its MD5 differs)")
    return location


def _is_same(item: dict[str, Any], size: int, md5: str) -> bool:
    """Whether the store has this file already: by its MD5, or where its ETag is none, by its size and SHA-256."""
    with contextlib.closing(_connect(item["head"])) as connection:
        connection.request("HEAD", _target(item["head"]))
        answer = connection.getresponse()
        _check(answer, "HEAD")
    etag = (answer.headers.get("ETag") or "").strip('"')
    if answer.headers.get("Content-Length") != str(size):
        return False
    if MD5.fullmatch(etag):
        return etag == md5
    sha256: str = item["headers"]["x-amz-meta-sha256"]
    return sha256 == answer.headers.get("x-amz-meta-sha256")


def _get(item: dict[str, Any], target: Path) -> None:
    url, digest = item["url"], hashlib.sha256()
    for _ in range(REDIRECTS):
        with contextlib.closing(_connect(url)) as connection:
            connection.request("GET", _target(url))
            answer = connection.getresponse()
            if answer.status in {301, 302, 303, 307, 308} and answer.headers.get("Location", "").startswith("http"):
                url = answer.headers["Location"]
                continue
            _check(answer, "GET")
            length, part = answer.headers.get("Content-Length"), target.with_name(f"{target.name}.part")
            size = 0
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                for block in iter(lambda: answer.read(BLOCK_BYTES), b""):  # noqa: B023 read to its end in this turn
                    size += file.write(block)
                    digest.update(block)
        if length is not None and size != int(length):
            raise _Away(f"{size} of {length} bytes arrived")
        etag = (answer.headers.get("ETag") or "").strip('"')
        found = {"etag": etag, "bytes": size, "sha256": digest.hexdigest()}
        if differing := [name for name, value in found.items() if item.get(name, value) != value]:
            part.unlink()
            raise Replaced(f"{item['location']} is not the object with which its task was completed ({differing})")
        part.replace(target)
        return
    raise _Away("too many redirects")


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.netloc.rpartition("@")[2], timeout=STALL_S)


def _target(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
