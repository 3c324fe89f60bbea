"""Outputs up and dependencies down, over URLs signed for one key: no storage credential is ever on the pod."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import itertools
import os
import re
import time
import zlib
from urllib.parse import urlsplit

from .waits import ORCHESTRATOR, STORE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from .host import Channel

WRONG_TRIES = 6  # of a transfer that the store answers clearly, and with an error of the request itself
PAUSE_MAX_S = 15.0  # between two tries of one transfer; each has a fresh URL, so that none expires while it waits
STALL_S = 60.0  # without a byte moving
BLOCK_BYTES = 1 << 20
ASK_S = 30.0  # for the agent to answer; it asks the orchestrator once
REDIRECTS = 3
ROOM_BYTES = 16 << 20  # that the disk must have left while a result waits on it
OK = 200
MISSING = {404, 410}
REFUSED = {301, 302, 303, 307, 308, 401, 403, *MISSING}  # statuses that an operator mends: keys, policy, bucket, region
BUSY = {"SlowDown", "RequestTimeout", "RequestTimeTooSkewed"}  # codes that S3 sends with a 4xx status too
# What the pod's own disk answers; every other OSError is the network's.
LOCAL = {
    errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ENOTDIR, errno.EIO, errno.EROFS, errno.ENOSPC, errno.EDQUOT,
    errno.EFBIG, errno.EMFILE, errno.ENAMETOOLONG,
}  # fmt: skip


class TransferError(Exception):
    """The bytes did not get where they should; the text never holds a signed URL."""

    outage = False  # whether a service outside is the cause: then the attempt is handed back, and not counted


class Unserved(TransferError):
    """A service was away for longer than this pod can wait."""

    outage = True


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
        size = source.stat().st_size
        location: str = self._try("PUT", key, lambda item: _put(item, source, size))
        return location, size

    def get(self, location: str, task_id: str, target: Path) -> None:
        """Fetch `location`, left by `task_id`, whole or not at all. Raises TransferError."""
        start = location.find(f"/outputs/{task_id}/")
        if start < 0:
            raise TransferError(f"{location} does not lie among the outputs of the task {task_id}")
        self._try("GET", location[start + 1 :], lambda item: _get(item["url"], target))

    def _try(self, method: str, key: str, move: Any) -> Any:
        """Move the bytes, waiting for the store as long as the disk has room. The attempt's clock stands meanwhile."""
        wait = _Wait(self._channel, self._task_id, next(self._numbers), self._clock)
        wrong = 0
        wait.tell("")
        try:
            while True:
                item = self._grant(method, key, wait)
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

    def _grant(self, method: str, key: str, wait: _Wait) -> dict[str, Any]:
        """A signed URL; waits for an orchestrator that is away."""
        until = self._clock.monotonic() + self._patience_s
        while True:
            try:
                reply = self._channel.ask({"op": "grants", "items": [{"method": method, "key": key}]}, ASK_S)
            except TimeoutError as error:
                reply = {"error": str(error), "final": False}
            if reply.get("items"):
                item: dict[str, Any] = reply["items"][0]
                return item
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
    if answer.status >= 500 or answer.status in {408, 429} or code in BUSY:  # noqa: PLR2004 RFC 9110
        raise _Away(f"the store does not serve: {said}")
    if method == "GET" and answer.status in MISSING and code != "NoSuchBucket":
        raise _Wrong(said)
    if answer.status in REFUSED:
        raise _Away(f"the store refuses; the operator must check S3_BUCKET, the AWS keys and their policy: {said}")
    raise _Wrong(said)


def _put(item: dict[str, Any], source: Path, size: int) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with source.open("rb") as file:
        for block in iter(lambda: file.read(BLOCK_BYTES), b""):
            digest.update(block)
        file.seek(0)
        with contextlib.closing(_connect(item["url"])) as connection:
            connection.request("PUT", _target(item["url"]), body=file, headers={"Content-Length": str(size)})
            answer = connection.getresponse()
            _check(answer, "PUT")
            answer.read(1000)
    etag = (answer.headers.get("ETag") or "").strip('"')
    if re.fullmatch(r"[0-9a-f]{32}", etag) and etag != digest.hexdigest():
        raise _Wrong("the store kept other bytes than were sent (its MD5 differs)")
    location: str = item["location"]
    return location


def _get(url: str, target: Path) -> None:
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
        if length is not None and size != int(length):
            raise _Away(f"{size} of {length} bytes arrived")
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
