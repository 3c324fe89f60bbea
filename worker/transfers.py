"""Outputs up and dependencies down, over URLs signed for one key: no storage credential is ever on the pod."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import re
import time
from urllib.parse import urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from .host import Channel

TRIES = 6  # of one transfer, each with a fresh URL
STALL_S = 60.0  # without a byte moving
BLOCK_BYTES = 1 << 20
ASK_S = 30.0  # for the agent to answer; it asks the orchestrator once
REDIRECTS = 3
OK = 200


class TransferError(Exception):
    """The bytes did not get where they should; the text never holds a signed URL."""


class _Broken(Exception):
    """One try failed; another may not."""


class Door:
    """Asks the agent for signed URLs and moves the bytes itself: the agent stays free to hear a cancellation."""

    def __init__(self, channel: Channel, *, patience_s: float) -> None:
        self._channel = channel
        self._patience_s = patience_s  # how long the orchestrator may be unreachable

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
        why = ""
        for tries in range(TRIES):
            if tries:
                time.sleep(min(8.0, 0.25 * 2.0**tries))
            item = self._grant(method, key)
            try:
                return move(item)
            except _Broken as error:
                why = str(error)
            except (OSError, http.client.HTTPException) as error:
                why = f"{type(error).__name__}: {error}"
        raise TransferError(f"{method} of {key} failed {TRIES} times, the last time with: {why}")

    def _grant(self, method: str, key: str) -> dict[str, Any]:
        """A signed URL; waits for an orchestrator that is away."""
        until, pause_s = time.monotonic() + self._patience_s, 0.25
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
            if time.monotonic() > until:
                raise TransferError(f"{method} of {key}: no grant within {self._patience_s:.0f} s: {reply['error']}")
            time.sleep(pause_s)
            pause_s = min(reply.get("again_s", 8.0), pause_s * 2)


def _put(item: dict[str, Any], source: Path, size: int) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with source.open("rb") as file:
        for block in iter(lambda: file.read(BLOCK_BYTES), b""):
            digest.update(block)
        file.seek(0)
        with contextlib.closing(_connect(item["url"])) as connection:
            connection.request("PUT", _target(item["url"]), body=file, headers={"Content-Length": str(size)})
            answer = connection.getresponse()
            body = answer.read(1000)
    if answer.status != OK:
        raise _Broken(f"HTTP {answer.status}: {body.decode('utf-8', 'replace')[:300]}")
    etag = (answer.headers.get("ETag") or "").strip('"')
    if re.fullmatch(r"[0-9a-f]{32}", etag) and etag != digest.hexdigest():
        raise _Broken("the store kept other bytes than were sent (its MD5 differs)")
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
            if answer.status != OK:
                raise _Broken(f"HTTP {answer.status}: {answer.read(300).decode('utf-8', 'replace')}")
            length, part = answer.headers.get("Content-Length"), target.with_name(f"{target.name}.part")
            size = 0
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                for block in iter(lambda: answer.read(BLOCK_BYTES), b""):  # noqa: B023 read to its end in this turn
                    size += file.write(block)
        if length is not None and size != int(length):
            raise _Broken(f"{size} of {length} bytes arrived")
        part.replace(target)
        return
    raise _Broken("too many redirects")


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.netloc.rpartition("@")[2], timeout=STALL_S)


def _target(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
