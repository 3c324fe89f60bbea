"""A web page in place of the store: a proxy or a portal answers 200, and no attempt is lost for that."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from worker.downloads import Download
from worker.store import StoreConnection, TryLater, check

PAGE = b"<!DOCTYPE html>\n<html><title>Sign in</title></html>"


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
@pytest.mark.parametrize("body", [PAGE.decode(), "<html>", "\n <HTML lang='en'>"])
def test_a_write_that_a_page_acknowledges_is_repeated(method: str, body: str) -> None:
    """The store's own answers are empty, or XML of other names."""
    with pytest.raises(TryLater, match="web page"):
        check(200, body, method)
    for fine in ("", "<?xml version='1.0'?><InitiateMultipartUploadResult/>", "<CompleteMultipartUploadResult/>"):
        check(200, fine, method)


@pytest.fixture
def portal() -> Iterator[str]:
    """A server that answers everything with its page."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the base class's name
            """Quiet."""

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(PAGE)))
            self.end_headers()
            self.wfile.write(PAGE)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/o"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_page_is_no_object(portal: str, tmp_path: Path) -> None:
    """Neither the content of an input, nor proof that it was replaced."""
    target = tmp_path / "input.bin"
    download = Download("outputs/1/1/x", target, lambda _: None)
    connection = StoreConnection()
    with pytest.raises(TryLater, match="web page"):
        download.send({"url": portal, "location": "s3://b/x", "bytes": 7, "etag": "e"}, connection)
    connection.close()
    assert not target.exists()
