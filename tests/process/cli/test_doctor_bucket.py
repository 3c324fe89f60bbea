"""What `doctor s3` says of a bucket that does not keep an object against a second write."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from orchestrator.adapters.s3 import S3Blobs
from orchestrator.diagnostics.doctor.connectivity import is_written_once, uploads_are_aborted
from orchestrator.diagnostics.doctor.findings import Section

UNKNOWN = b"<Error><Code>NotImplemented</Code><Message>A header is not implemented</Message></Error>"


@pytest.fixture(params=[200, 501])
def bucket(request: pytest.FixtureRequest) -> Iterator[tuple[int, S3Blobs]]:
    """A server that ignores the condition, or one that does not know it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = UNKNOWN if request.param == 501 else b""
            self.send_response(request.param)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            body = b"<Error><Code>AccessDenied</Code></Error>"
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield request.param, S3Blobs(f"http://127.0.0.1:{server.server_port}", "key", "secret", "bucket", "", "us-east-1")
    server.shutdown()
    server.server_close()


async def test_a_bucket_that_lets_outputs_be_replaced_is_reported(bucket: tuple[int, S3Blobs]) -> None:
    """A warning, what follows from it, and what to do: nothing stops working."""
    status, blobs = bucket
    section = Section("s3")
    await is_written_once(blobs, "doctor/x", section)
    await blobs.close()
    (finding,) = section.findings
    assert finding.status == "warn"
    assert ("knows no" if status == 501 else "ignores") in finding.what
    assert "OUTPUT_REPLACED" in finding.why


async def test_with_a_key_that_may_not_list_uploads_doctor_names_the_lifecycle_rule(
    bucket: tuple[int, S3Blobs],
) -> None:
    """Parts of a lost pod's upload would stay for ever."""
    _, blobs = bucket
    section = Section("s3")
    await uploads_are_aborted(blobs, section)
    await blobs.close()
    (finding,) = section.findings
    assert finding.status == "warn"
    assert "AbortIncompleteMultipartUpload" in (finding.fix or "")
