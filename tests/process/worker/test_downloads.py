"""A download continues where it broke, unless what it had is gone or no longer what the store has."""

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from worker.downloads import Download
from worker.store import StoreConnection, TryLater
from worker.transfer_errors import Replaced

FIRST_BYTES = 600_000  # that arrive before the connection breaks


class Source:
    """One object, whose first answer breaks off."""

    def __init__(self) -> None:
        self.content = os.urandom(1_000_000)
        self.ranges: list[str | None] = []
        self.knows_ranges = True
        source = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the base class's name
                """Quiet."""

            def do_GET(self) -> None:
                asked = self.headers["Range"]
                source.ranges.append(asked)
                etag = hashlib.md5(source.content, usedforsecurity=False).hexdigest()
                first = int(re.findall(r"\d+", asked)[0]) if asked and source.knows_ranges else 0
                if asked and self.headers["If-Match"] != f'"{etag}"':
                    self.send_response(412)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206 if first else 200)
                self.send_header("Content-Length", str(len(source.content) - first))
                self.send_header("ETag", f'"{etag}"')
                self.end_headers()
                if len(source.ranges) == 1:
                    self.wfile.write(source.content[:FIRST_BYTES])
                    self.close_connection = True
                else:
                    self.wfile.write(source.content[first:])

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/o"

    def item(self, **recorded: Any) -> dict[str, Any]:
        return {"url": self.url, "location": "s3://bucket/o", **recorded}


@pytest.fixture
def source() -> Iterator[Source]:
    """An object."""
    source = Source()
    threading.Thread(target=source.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield source
    source.server.shutdown()
    source.server.server_close()


def broken(source: Source, target: Path) -> Download:
    """A download whose first try broke off."""
    download = Download("o", target, lambda _: None)
    with pytest.raises(TryLater, match="600000 of 1000000 bytes arrived"):
        download.send(source.item(), StoreConnection())
    assert download.reached == FIRST_BYTES
    return download


def test_it_asks_for_the_rest_alone(source: Source, tmp_path: Path) -> None:
    """By range, of the same object, and compared as a whole."""
    download = broken(source, tmp_path / "o")
    sha256 = hashlib.sha256(source.content).hexdigest()
    download.send(source.item(sha256=sha256, bytes=1_000_000), StoreConnection())
    assert (tmp_path / "o").read_bytes() == source.content
    assert (source.ranges, download.received) == ([None, "bytes=600000-"], 1_000_000)


def _lose_all(source: Source, tmp_path: Path) -> None:
    (tmp_path / "to" / "o.part").unlink()
    (tmp_path / "to").rmdir()


def _lose_some(source: Source, tmp_path: Path) -> None:
    os.truncate(tmp_path / "to" / "o.part", 5)


def _no_ranges(source: Source, tmp_path: Path) -> None:
    source.knows_ranges = False


@pytest.mark.parametrize("damage", [_lose_all, _lose_some, _no_ranges])
def test_it_begins_again_without_what_it_had(
    source: Source, tmp_path: Path, damage: Callable[[Source, Path], None]
) -> None:
    """The directory is created again with each try; a store without ranges sends everything."""
    download = broken(source, tmp_path / "to" / "o")
    damage(source, tmp_path)
    download.send(source.item(), StoreConnection())
    assert (tmp_path / "to" / "o").read_bytes() == source.content


@pytest.mark.parametrize("recorded", [5, 1_000_001])
def test_an_object_of_another_size_is_not_fetched(source: Source, tmp_path: Path, recorded: int) -> None:
    """Its size shows before its bytes come: the disk is not filled with what nobody may have."""
    with pytest.raises(Replaced, match="has 1000000 bytes"):
        Download("o", tmp_path / "o", lambda _: None).send(source.item(bytes=recorded), StoreConnection())
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_was_replaced_meanwhile_is_fetched_from_its_beginning(source: Source, tmp_path: Path) -> None:
    """Halves of two objects never meet; what the record says decides in the end."""
    download = broken(source, tmp_path / "o")
    before, source.content = source.content, os.urandom(1_000_000)
    with pytest.raises(TryLater, match="replaced"):
        download.send(source.item(), StoreConnection())
    with pytest.raises(Replaced):
        download.send(source.item(sha256=hashlib.sha256(before).hexdigest()), StoreConnection())
    download.send(source.item(), StoreConnection())
    assert (tmp_path / "o").read_bytes() == source.content
