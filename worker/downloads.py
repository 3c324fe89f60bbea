"""A download, complete or not at all. A try continues at the byte that the earlier one reached."""

from __future__ import annotations

import contextlib
import hashlib
import os

from .rules import NAME_PART_BYTES
from .store import BLOCK_BYTES, EXISTS, OK, PARTIAL, RANGE, StoreConnection, TryLater, check, refuse_page
from .transfer_errors import Replaced, TransferError
from .uploads import StoreRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

REDIRECTS = 3
NAME_BYTES = 4_096


def inside(folder: Path, name: str) -> Path:
    """Return the path of an output below a folder. Raises TransferError for a name that leaves it."""
    parts = name.split("/")
    if {"", ".", ".."} & set(parts) or "\0" in name or len(name.encode("utf-8", "replace")) > NAME_BYTES:
        raise TransferError(f"{name[:200]!r} is not a name below a folder")
    return folder.joinpath(*parts)


class Download(StoreRequest):
    """Fetches an object into a file. `received` counts the bytes of all tries."""

    def __init__(self, key: str, target: Path, report: Callable[[str], None], size: int | None = None) -> None:
        """`report` is called with the progress after each block. `size`: the bytes that it must have, if known."""
        self.key, self.what, self._report = key, f"GET of {key}", report
        self._known = {} if size is None else {"bytes": size}
        part = f"{target.name}.part"
        if len(os.fsencode(part)) > NAME_PART_BYTES:
            part = f"{hashlib.sha256(os.fsencode(part)).hexdigest()}.part"
        self._target, self._part = target, target.with_name(part)
        self.received = 0
        self._forget()

    def wanted(self) -> dict[str, Any]:
        return {"method": "GET", "key": self.key}

    def send(self, item: dict[str, Any], connection: StoreConnection) -> None:
        item = {**self._known, **item}
        answer = self._request(item["url"], connection)
        if answer.status in {EXISTS, RANGE} and self.reached:  # another object than before
            connection.text(answer)
            self._forget()
            raise TryLater("the object was replaced during the download")
        if answer.status not in {OK, PARTIAL}:
            check(answer.status, connection.text(answer), "GET")
        try:
            refuse_page(answer)
        except TryLater:
            connection.close()
            raise
        if answer.status != PARTIAL:
            self._forget()
        expected = None if answer.length is None else self.reached + answer.length
        if expected is not None and item.get("bytes", expected) != expected:
            connection.close()
            raise Replaced(f"{item['location']} has {expected} bytes, and its task was completed with {item['bytes']}")
        self._etag = (answer.headers.get("ETag") or "").strip('"')
        self._write(answer, connection, item.get("bytes"))
        if expected is not None and self.reached != expected:
            raise TryLater(f"{self.reached} of {expected} bytes arrived")
        found = {"etag": self._etag, "bytes": self.reached, "sha256": self._digest.hexdigest()}
        if differing := [name for name, value in found.items() if item.get(name, value) != value]:
            self._part.unlink()
            raise Replaced(f"{item['location']} is not the object with which its task was completed ({differing})")
        self._part.replace(self._target)

    def _forget(self) -> None:
        self.reached, self._etag, self._digest = 0, "", hashlib.sha256()

    def _request(self, url: str, connection: StoreConnection) -> Any:
        """Request the missing bytes and return the answer with its body unread."""
        if self.reached and not self._has_reached_bytes():
            self._forget()
        rest = {"Range": f"bytes={self.reached}-", "If-Match": f'"{self._etag}"'} if self.reached and self._etag else {}
        for _ in range(REDIRECTS):
            answer = connection.send("GET", url, rest)
            location = answer.headers.get("Location", "")
            if answer.status not in {301, 302, 303, 307, 308} or not location.startswith("http"):
                return answer
            connection.close()
            url = location
        raise TryLater("too many redirects")

    def _has_reached_bytes(self) -> bool:
        with contextlib.suppress(OSError):
            return self._part.stat().st_size == self.reached
        return False

    def _write(self, answer: Any, connection: StoreConnection, most_bytes: int | None) -> None:
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)  # in each try: the handler may remove it
            with self._part.open("r+b" if self.reached else "wb") as file:
                file.seek(self.reached)
                while (most_bytes is None or self.reached <= most_bytes) and (block := answer.read(BLOCK_BYTES)):
                    file.write(block)
                    self._digest.update(block)
                    self.reached += len(block)
                    self.received += len(block)
                    self._report(f"{self.reached >> 20} MiB of {self.key} have arrived")
        except BaseException:
            connection.close()
            with contextlib.suppress(OSError):
                os.truncate(self._part, self.reached)
            raise
        if not answer.isclosed():
            connection.close()
