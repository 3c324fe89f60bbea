"""A store of small parts with the faults that a real one shows rarely; and the agent's end of a handler's channel."""

import base64
import hashlib
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, quote, urlsplit


class MultipartStore:
    """Objects by path; each fault is how often it strikes."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.received: Counter[str] = Counter()  # requests by method and kind
        self.part_bytes = 0  # bodies of parts
        self.cut_parts = 0  # close the connection in the middle of a part
        self.forget_uploads = 0  # answer a part with NoSuchUpload, and forget the upload
        self.lose_replies = 0  # complete, and close the connection without an answer
        self.late_errors = 0  # complete nothing, and say so with status 200
        self.lose_objects = 0  # complete or store, and forget the object
        self.corrupt = 0  # complete or store other bytes
        self.knows_conditions = True
        self.encrypts = False  # with a key of KMS: ETags that look like an MD5 and are none
        handler = type("Handler", (_Handler,), {"store": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def strikes(self, fault: str) -> bool:
        """Whether this fault strikes now."""
        left: int = getattr(self, fault)
        setattr(self, fault, max(0, left - 1))
        return left > 0

    def keep(self, path: str, body: bytes) -> None:
        self.objects[path] = body[:-1] + b"?" if self.strikes("corrupt") else body
        if self.strikes("lose_objects"):
            del self.objects[path]


class Granting:
    """Grants all that is asked for; `told` is what it was told."""

    def __init__(self, store: MultipartStore, *, knows_multipart: bool = True) -> None:
        self._store, self._knows_multipart = store, knows_multipart
        self.told: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)

    def ask(self, message: dict[str, Any], _timeout_s: float) -> dict[str, Any]:
        self.asked += message["items"]
        return {"items": [self._granted(item) for item in message["items"]]}

    def _granted(self, item: dict[str, Any]) -> dict[str, Any]:
        url = f"{self._store.url}/{item['key']}"
        granted = {**item, "location": f"s3://bucket/{item['key']}", "check": {"url": url, "headers": {}}}
        once = {"If-None-Match": "*"} if item.get("once") else {}
        if "upload_id" in item and self._knows_multipart:
            each = [
                {"url": f"{url}?partNumber={part['n']}&uploadId={quote(item['upload_id'], safe='')}", "headers": {}}
                for part in item["parts"]
            ]
            upload = f"{url}?uploadId={quote(item['upload_id'], safe='')}"
            ends = {"complete": {"url": upload, "headers": once}, "abort": {"url": upload, "headers": {}}}
            return {**granted, "parts": each, **ends}
        if item.get("multipart") and self._knows_multipart:
            return {**granted, "create": {"url": f"{url}?uploads", "headers": {}}}
        return {**granted, "url": url, "headers": once}


class _Handler(BaseHTTPRequestHandler):
    store: MultipartStore
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the base class's name
        """Quiet."""

    def do_POST(self) -> None:
        path, query, body = self._asked()
        if "uploads" in query:
            upload_id = f"upload/{len(self.store.uploads)}&"
            self.store.uploads[upload_id] = {}
            self._say(200, f"<R><UploadId>{upload_id.replace('&', '&amp;')}</UploadId></R>".encode(), "begin")
            return
        parts = self.store.uploads.get(query["uploadId"])
        if self.store.strikes("late_errors"):
            self._say(200, b"<Error><Code>InternalError</Code></Error>", "late")
        elif parts is None:
            self._say(404, b"<Error><Code>NoSuchUpload</Code></Error>", "unknown")
        elif not self._may_write(path):
            return
        else:
            numbers = [int(number) for number in re.findall(rb"<PartNumber>(\d+)<", body)]
            etags = re.findall(rb"<ETag>&quot;|<ETag>\"", body)
            assert (numbers, len(etags)) == (sorted(parts), len(numbers))
            self.store.keep(path, b"".join(parts[number] for number in numbers))
            del self.store.uploads[query["uploadId"]]
            self._say(None if self.store.strikes("lose_replies") else 200, b"<R/>", "complete")

    def do_PUT(self) -> None:
        path, query, body = self._asked()
        if "partNumber" not in query:
            if self._may_write(path):
                self.store.keep(path, body)
                self._say(200, b"", "whole", self._etag(body))
            return
        self.store.part_bytes += len(body)
        if self.store.strikes("cut_parts"):
            self._say(None, b"", "cut")
            return
        if self.store.strikes("forget_uploads"):
            self.store.uploads.pop(query["uploadId"], None)
        if query["uploadId"] not in self.store.uploads:
            self._say(404, b"<Error><Code>NoSuchUpload</Code></Error>", "unknown")
            return
        self.store.uploads[query["uploadId"]][int(query["partNumber"])] = body
        self._say(200, b"", "part", self._etag(body))

    def do_HEAD(self) -> None:
        path, _, _ = self._asked()
        body = self.store.objects.get(path)
        self.store.received["HEAD"] += 1
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Length", str(len(body or b"")))
        if body is not None:
            digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
            self.send_header("x-amz-checksum-sha256", digest)
        self.end_headers()

    def do_DELETE(self) -> None:
        _, query, _ = self._asked()
        self.store.uploads.pop(query["uploadId"], None)
        self._say(204, b"", "abort")

    def _may_write(self, path: str) -> bool:
        condition = self.headers["If-None-Match"] is not None
        if condition and not self.store.knows_conditions:
            self._say(501, b"<Error><Code>NotImplemented</Code></Error>", "unknown condition")
        elif condition and path in self.store.objects:
            self._say(412, b"<Error><Code>PreconditionFailed</Code></Error>", "exists")
        else:
            return True
        return False

    def _asked(self) -> tuple[str, dict[str, str], bytes]:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        return parts.path, query, self.rfile.read(int(self.headers["Content-Length"] or 0))

    def _etag(self, body: bytes) -> dict[str, str]:
        digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
        if self.store.encrypts:
            return {"ETag": f'"{digest[::-1]}"', "x-amz-server-side-encryption": "aws:kms"}
        return {"ETag": f'"{digest}"'}

    def _say(self, status: int | None, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        """Answer; without a status, close the connection."""
        self.store.received[kind] += 1
        if status is None:
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body if status != 204 else b"")
