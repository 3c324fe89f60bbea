"""A gateway for one task on this machine: `handlers test` runs the real agent against it.

It answers the calls of worker/protocol.py without a database, and stores the outputs as files of one directory.
"""

import functools
import hashlib
import json
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import quote, unquote

from worker import protocol

RPC = "/rest/v1/rpc/"
MAX_BODY_BYTES = 8 << 20  # of one call; the agent's largest is a result of 1 MiB
BLOCK_BYTES = 1 << 20
Answer = Mapping[str, Any]
_md5 = functools.partial(hashlib.md5, usedforsecurity=False)  # the ETag of an object of a bucket


class LocalGateway:
    """Gives one task to an agent, and remembers the task's progress and end."""

    def __init__(self, task: Mapping[str, Any], outputs: Path) -> None:
        """`task` has the keys protocol.CLAIMED. `outputs` is created with the first output."""
        self.token = secrets.token_hex(32)
        self.progress: Mapping[str, Any] | None = None
        self.health: Mapping[str, Any] = {}
        self.claimed = False
        self.ended: Mapping[str, Any] | None = None  # the arguments of complete, fail or release
        self.stored: list[Path] = []
        self.changed = threading.Condition()
        self._task, self._outputs = task, outputs.resolve()
        self._claim_no: int | None = None
        self._granted: dict[str, Path] = {}  # path of a URL -> file
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"gateway": self}))
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The URL that the agent calls."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, function: str, args: Mapping[str, Any]) -> Answer | None:
        """Answer one call. None for an unknown function."""
        known: dict[str, Callable[[Mapping[str, Any]], Answer]] = {
            protocol.REGISTER: lambda _: {},
            protocol.HEARTBEAT: self._heartbeat,
            protocol.CLAIM: self._claim,
            protocol.COMPLETE: self._end,
            protocol.COMPLETE_OUTPUT: self._end,
            protocol.FAIL: self._end,
            protocol.RELEASE: self._end,
            protocol.COMPLETE_MANY: self._complete_many,
            protocol.COMPLETE_AND_CLAIM: self._complete_many,
            protocol.GRANTS: self._grant,
        }
        if function not in known:
            return None
        with self.changed:
            reply = known[function](args)
            self.changed.notify_all()
            wanted = protocol.STOP if self.ended is not None else protocol.RUN
            return {"outcome": protocol.OK, "wanted": wanted, **reply}

    def file_of(self, url_path: str) -> Path | None:
        """Return the file of a granted URL."""
        with self.changed:
            return self._granted.get(url_path)

    def has(self, path: Path) -> bool:
        """Whether this run has stored the output: it is written once."""
        with self.changed:
            return path in self.stored

    def note_stored(self, path: Path) -> None:
        """Remember an output that is complete."""
        with self.changed:
            self.stored.append(path)

    def _heartbeat(self, args: Mapping[str, Any]) -> Answer:
        for one in args.get("p_tasks") or ():
            self.progress = one.get("progress") or self.progress
        self.health = args.get("p_health") or self.health
        return {}

    def _claim(self, args: Mapping[str, Any]) -> Answer:
        """Hand out the task with the first claim, and with its repetitions."""
        if self._claim_no is None:
            self._claim_no, self.claimed = args["p_claim_no"], True
        if args["p_claim_no"] == self._claim_no:
            return {"tasks": [self._task]}
        return {"tasks": []}

    def _end(self, args: Mapping[str, Any]) -> Answer:
        self.ended = args if self.ended is None else self.ended
        return {}

    def _complete_many(self, args: Mapping[str, Any]) -> Answer:
        for one in args["p_results"]:
            self._end({"p_result_data": one["result_data"], "p_output_location": None})
        return {"outcomes": [protocol.OK for _ in args["p_results"]], "tasks": []}

    def _grant(self, args: Mapping[str, Any]) -> Answer:
        """Grant what the store would: outputs of this task. A release without multipart uploads gets whole files."""
        items, refused = [], []
        for item in args["p_items"]:
            key = str(item["key"])
            name = key.removeprefix(str(self._task["output_prefix"]))
            file = (self._outputs / name).resolve()
            if item["method"] != "PUT" or name == key or not file.is_relative_to(self._outputs):
                refused.append(key)
                continue
            path = f"/{self.token}/{quote(key)}"
            self._granted[path] = file
            url = self.url + path
            items.append({"method": "PUT", "key": key, "url": url, "head": url, "location": file.as_uri()})
        return {"items": items, "refused": refused}


class _Handler(BaseHTTPRequestHandler):
    """One connection. The agent and its handler host keep connections open."""

    protocol_version = "HTTP/1.1"
    gateway: LocalGateway

    def do_POST(self) -> None:
        content = self.rfile.read(min(self._length(), MAX_BODY_BYTES))
        if self.headers.get("Authorization") != f"Bearer {self.gateway.token}" or not self.path.startswith(RPC):
            self._send(403, {"code": protocol.BAD_TOKEN, "message": "not the token of this run"})
            return
        reply = self.gateway.answer(self.path.removeprefix(RPC), cast("Mapping[str, Any]", json.loads(content)))
        if reply is None:
            self._send(404, {"code": protocol.UNKNOWN_FUNCTION, "message": "no such function"})
        else:
            self._send(200, reply)

    def do_HEAD(self) -> None:
        file = self._file()
        if file is None or not self.gateway.has(file):
            self.send_response(404)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(file.stat().st_size))
            with file.open("rb") as content:
                self.send_header("ETag", f'"{hashlib.file_digest(content, _md5).hexdigest()}"')
        self.end_headers()

    def do_PUT(self) -> None:
        file = self._file()
        if file is None:
            self._send(403, {})
            return
        is_there, left = self.gateway.has(file), self._length()
        file.parent.mkdir(parents=True, exist_ok=True)
        with Path(os.devnull if is_there else file).open("wb") as target:
            while left > 0 and (block := self.rfile.read(min(left, BLOCK_BYTES))):
                left -= target.write(block)
        if left:
            return
        if is_there:
            self._send(412, {})
            return
        self.gateway.note_stored(file)
        self._send(200, {})

    def _file(self) -> Path | None:
        return self.gateway.file_of(self.path) or self.gateway.file_of(quote(unquote(self.path)))

    def log_message(self, *_: object) -> None:
        """The command shows what matters."""

    def _length(self) -> int:
        return int(self.headers.get("Content-Length") or 0)

    def handle(self) -> None:
        """The agent may end, or its process be killed, before it has read an answer."""
        with suppress(ConnectionError):
            super().handle()

    def _send(self, status: int, reply: Answer) -> None:
        content = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
