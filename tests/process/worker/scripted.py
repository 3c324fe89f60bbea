"""The agent's two counterparts in these tests: an orchestrator over real HTTP, and a pod that is a directory."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol, Self

from orchestrator.pods import agent_commands
from orchestrator.pods.bundle import build_bundle
from testbed.services.free_port import free_port
from worker import protocol

PATIENCE_S = 60.0  # for something that should happen well within a second
MANY = {protocol.COMPLETE_MANY, protocol.COMPLETE_AND_CLAIM}  # what an older gateway does not know
ONE = {protocol.COMPLETE, protocol.COMPLETE_OUTPUT}  # nor does it know the second of these
TOKEN = "the-worker-token-of-this-test"


class Orchestrator:
    """Answers the worker RPC from a script: tasks are handed out in order; everything said is remembered."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.queued: list[dict[str, Any]] = []
        self.running: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.completed: dict[str, list[dict[str, Any]]] = {}
        self.failures: dict[str, list[dict[str, Any]]] = {}
        self.released: dict[str, str] = {}
        self.requeues = False  # whether a released task is queued again
        self.objects: dict[str, bytes] = {}
        self.knows_conditions: bool | None = True  # None: the store refuses them as not implemented
        self.knows_checksums = True
        self.lose_uploads = 0  # that are stored, and not answered
        self.wanted = protocol.RUN
        self.cancel: set[str] = set()
        self.fenced: set[str] = set()
        self.overtaken: set[str] = set()  # the same, but no heartbeat tells of it before the result is refused
        self.stuck_s: float | None = (
            None  # after so long without a sign of life a task is stuck; None: an older database
        )
        self.led: bool | None = None  # whether somebody leads; None: a database that does not say
        self.refusal: tuple[int, str] | None = None  # answer every call with this status and code; 200: a portal's
        self.refuse_results = False  # answer every completion with a 413
        self.max_failure_chars = 1 << 20  # answer a failure with a longer message with a 413
        self.held_up: set[str] = set()  # tasks that a trigger of the database refuses to complete
        self.knows_many = True  # an older gateway knows no completion of many, and none that claims
        self.knows_uploads = True  # an older gateway knows no completion that says when it uploaded
        self.bucket_away = False  # answer every completion with a 503
        self.lose_replies_to: list[
            str
        ] = []  # act on the next call to each, but cut the connection instead of answering
        self.break_uploads = 0  # answer that many PUTs with a 503
        self.store_says: tuple[int, str] | None = None  # answer every PUT and GET with this status and S3 code
        self.store_asked = 0  # PUTs and GETs
        self.bearers: list[str] = []  # the tokens of all calls
        self.tokens = {TOKEN}  # that are let in
        self.sealed: list[list[str]] = []  # the answers to renewals, in order; then none
        self.granted: dict[int, list[dict[str, Any]]] = {}  # by claim number
        self.health: dict[str, Any] = {}  # the last p_health that was not null
        self.healths: list[dict[str, Any] | None] = []  # each p_health as it was sent
        self._server: ThreadingHTTPServer | None = None
        self._port = free_port()  # not one that an outgoing connection may take while nobody listens
        self.up()

    def up(self) -> None:
        """Listen, on the same port each time."""
        handler = type("Handler", (_Handler,), {"orchestrator": self})
        self._server = _Server(("127.0.0.1", self._port), handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def down(self) -> None:
        """Stop listening and cut every connection."""
        server, self._server = self._server, None
        if isinstance(server, _Server):
            server.shutdown()
            server.cut()
            server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def submit(self, task_id: str, task_type: str, params: Any = None, **fields: Any) -> None:
        with self.changed:
            attempt = fields.pop("attempt", 1)
            self.queued.append({
                "id": task_id, "task_type": task_type, "params": params, "attempt": attempt, "max_attempts": 3,
                "timeout_s": None, "dependencies": [], "output_prefix": f"outputs/{task_id}/{attempt}/", **fields,
            })  # fmt: skip
            self.changed.notify_all()

    def tell(self, **wishes: Any) -> None:
        """Set `wanted`, `cancel`, `fenced`, `overtaken`, `led`, `refusal`: from now on in the answers."""
        with self.changed:
            for name, value in wishes.items():
                setattr(self, name, value)
            self.changed.notify_all()

    def until(self, condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
        """Wait for something to have been said; returns it."""
        with self.changed:
            found = self.changed.wait_for(condition, timeout_s)
            failed = [about for name, about in self.calls if name == "worker_fail"]
            assert found, f"not within {timeout_s} s; failed: {failed}; said: {[name for name, _ in self.calls][-20:]}"
            return found

    def count(self, function: str) -> int:
        with self.changed:
            return sum(name == function for name, _ in self.calls)

    def calls_of(self, function: str) -> list[dict[str, Any]]:
        with self.changed:
            return [args for name, args in self.calls if name == function]

    def completion(self, task_id: str) -> dict[str, Any]:
        """The (only) completion of a task, waited for."""
        self.until(lambda: self.completed.get(task_id))
        (args,) = self.completed[task_id]
        return args

    def failure(self, task_id: str) -> dict[str, Any]:
        """The p_failure of a task's last failure, waited for."""
        found: dict[str, Any] = self.until(lambda: self.failures.get(task_id))[-1]["p_failure"]
        return found

    def answer(self, function: str, args: dict[str, Any], gone: Callable[[], bool]) -> dict[str, Any]:
        with self.changed:
            if function == protocol.HEARTBEAT:
                self._note_health(args)
            self.calls.append((function, args))
            self.changed.notify_all()
            if function == protocol.CLAIM:
                return self._claim(args, gone)
            return {
                protocol.REGISTER: self._register, protocol.HEARTBEAT: self._heartbeat,
                protocol.COMPLETE: self._complete, protocol.COMPLETE_OUTPUT: self._complete,
                protocol.COMPLETE_MANY: self._complete_many,
                protocol.COMPLETE_AND_CLAIM: lambda args: (
                    self._complete_many(args) | self._claim({**args, "p_wait_s": 0}, lambda: False)
                ),
                protocol.FAIL: self._fail, protocol.RELEASE: self._release, protocol.GRANTS: self._grants,
                protocol.RENEW: self._renew,
            }[function](args)  # fmt: skip

    def _note_health(self, args: dict[str, Any]) -> None:
        """Null means unchanged, as in the database: what is remembered of the call has the value that holds."""
        self.healths.append(args["p_health"])
        self.health = args["p_health"] = self.health if args["p_health"] is None else args["p_health"]

    def findings(self) -> dict[str, dict[str, Any]]:
        """The findings that the newest heartbeat reports, by code."""
        with self.changed:
            return {one["code"]: one for one in self.health.get(protocol.FINDINGS, [])}

    def _register(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"outcome": "ok", "wanted": self.wanted}

    def _claim(self, args: dict[str, Any], gone: Callable[[], bool]) -> dict[str, Any]:
        number, until = args["p_claim_no"], time.monotonic() + args["p_wait_s"]
        if number not in self.granted:
            while not (self.queued or self.wanted != protocol.RUN or gone()) and time.monotonic() < until:
                self.changed.wait(0.02)  # seconds between looks at whether the caller is still there
            taken = [] if self.wanted != protocol.RUN or gone() else self.queued[: args["p_batch"]]
            del self.queued[: len(taken)]
            self.running.update({task["id"]: task for task in taken})
            self.granted = {number: taken}
        return {"outcome": "ok", "wanted": self.wanted, "tasks": self.granted[number]}

    def _heartbeat(self, args: dict[str, Any]) -> dict[str, Any]:
        named = {task["id"] for task in args["p_tasks"]}
        return {
            "outcome": "ok", "wanted": self.wanted, "cancel": sorted(named & self.cancel),
            "fenced": sorted(named & self.fenced), **({} if self.stuck_s is None else {"stuck": self._stuck(args)}),
            **({} if self.led is None else {"led": self.led}),
        }  # fmt: skip

    def _stuck(self, args: dict[str, Any]) -> list[str]:
        return [task["id"] for task in args["p_tasks"] if task.get("still_s", 0) >= (self.stuck_s or 0)]

    def _complete(self, args: dict[str, Any]) -> dict[str, Any]:
        if args["p_task_id"] in self.fenced | self.overtaken:
            return {"outcome": "fenced"}
        if args["p_task_id"] in self.completed:
            return {"outcome": "already"}
        self._end(args, self.completed)
        return {"outcome": "ok"}

    def _complete_many(self, args: dict[str, Any]) -> dict[str, Any]:
        each = [
            {"p_task_id": one["task_id"], "p_attempt": one["attempt"], "p_output_location": None,
             "p_result_data": one["result_data"]}
            for one in args["p_results"]
        ]  # fmt: skip
        return {"outcome": "ok", "outcomes": [self._complete(one)["outcome"] for one in each]}

    def _fail(self, args: dict[str, Any]) -> dict[str, Any]:
        self._end(args, self.failures)
        return {"outcome": "failed"}

    def _end(self, args: dict[str, Any], ended: dict[str, list[dict[str, Any]]]) -> None:
        ended.setdefault(args["p_task_id"], []).append(args)
        self.running.pop(args["p_task_id"], None)
        self.changed.notify_all()

    def _release(self, args: dict[str, Any]) -> dict[str, Any]:
        self.released[args["p_task_id"]] = args["p_reason"]
        if self.requeues:
            self.queued.append(self.running[args["p_task_id"]])
        self.changed.notify_all()
        return {"outcome": "ok"}

    def _renew(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"outcome": "ok", "sealed": self.sealed.pop(0) if self.sealed else []}

    def _grants(self, args: dict[str, Any]) -> dict[str, Any]:
        items = [{**item, "url": f"{self.url}/store/{item['key']}?signed=1", "location": f"s3://bucket/x/{item['key']}"}
                 for item in args["p_items"]]  # fmt: skip
        return {"outcome": "ok", "items": items, "refused": []}


def _tasks_of(function: str, args: dict[str, Any]) -> set[str]:
    """The tasks that a call completes."""
    if function in MANY:
        return {one["task_id"] for one in args["p_results"]}
    return {args["p_task_id"]} if function in ONE else set()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        super().__init__(address, handler)
        self.open: set[Any] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open.add(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is part of the tests."""

    def cut(self) -> None:
        for connection in list(self.open):
            try:
                connection.shutdown(2)
            except OSError:
                continue


class _Handler(BaseHTTPRequestHandler):
    orchestrator: Orchestrator
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the base class's name
        """Quiet."""

    def do_POST(self) -> None:
        function = self.path.removeprefix("/rest/v1/rpc/")
        args = json.loads(self._body())
        orchestrator = self.orchestrator
        with orchestrator.changed:
            orchestrator.bearers.append(self.headers["Authorization"].removeprefix("Bearer "))
        assert orchestrator.bearers[-1] in orchestrator.tokens
        if orchestrator.refusal:
            with orchestrator.changed:
                orchestrator.calls.append((function, args))
                orchestrator.changed.notify_all()
            status, code = orchestrator.refusal
            self._reply(status, {"code": code, "message": "no", "details": None, "hint": None})
            return
        message = args.get("p_failure", {}).get("message", "")
        if (orchestrator.refuse_results and function in ONE | MANY) or len(message) > orchestrator.max_failure_chars:
            self._reply(413, {"code": "PGRST102", "message": "too large", "details": None, "hint": None})
            return
        if named := orchestrator.held_up & _tasks_of(function, args):
            with orchestrator.changed:
                orchestrator.calls.append((function, args))
                orchestrator.changed.notify_all()
            self._reply(
                *(400, {"code": "P0001", "message": "not now", "details": None, "hint": None})
                if function in MANY
                else (202, {"outcome": protocol.PENDING, "why": f"the database refuses {min(named)}"})
            )
            return
        if (function in MANY and not orchestrator.knows_many) or (
            function == protocol.COMPLETE_OUTPUT and not orchestrator.knows_uploads
        ):
            self._reply(404, {"code": "PGRST202", "message": "no such function", "details": None, "hint": None})
            return
        if orchestrator.bucket_away and function in ONE | MANY:
            with orchestrator.changed:
                orchestrator.calls.append((function, args))
                orchestrator.changed.notify_all()
            self._reply(503, {"code": "OUTPUT_UNKNOWN", "message": "ask again", "details": None, "hint": None})
            return
        answer = orchestrator.answer(function, args, self._gone)
        if function in orchestrator.lose_replies_to:
            orchestrator.lose_replies_to.remove(function)
            self.close_connection = True
            return
        self._reply(200, answer)

    def do_PUT(self) -> None:
        body = self._body()
        if self._store_is_down():
            return
        if self.orchestrator.break_uploads:
            self.orchestrator.break_uploads -= 1
            self._reply(503, {"Code": "SlowDown"})
            return
        if self.orchestrator.knows_conditions is None and self.headers["If-None-Match"]:
            self._reply(501, {"Code": "NotImplemented"})
            return
        if not self.orchestrator.knows_checksums and self.headers["x-amz-checksum-sha256"]:
            why = "Unsupported header 'x-amz-checksum-sha256' received for this API call."
            self._reply(400, {"Code": "InvalidArgument", "Message": why})
            return
        if self.headers["If-None-Match"] == "*" and self._key() in self.orchestrator.objects:
            self._reply(412, {"Code": "PreconditionFailed"})
            return
        self.orchestrator.objects[self._key()] = body
        if self.orchestrator.lose_uploads:
            self.orchestrator.lose_uploads -= 1
            self.close_connection = True
            return
        self._reply(200, {}, ETag=f'"{hashlib.md5(body).hexdigest()}"')  # noqa: S324 what S3 does

    def _store_is_down(self) -> bool:
        orchestrator = self.orchestrator
        with orchestrator.changed:
            orchestrator.store_asked += 1
            orchestrator.changed.notify_all()
        if orchestrator.store_says is None:
            return False
        status, code = orchestrator.store_says
        self._reply(status, {"Code": code})
        return True

    def do_HEAD(self) -> None:
        body = self.orchestrator.objects.get(self._key())
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Length", str(len(body or b"")))
        self.send_header("ETag", f'"{hashlib.md5(body or b"").hexdigest()}"')  # noqa: S324 what S3 does
        self.end_headers()

    def do_GET(self) -> None:
        if self._store_is_down():
            return
        body = self.orchestrator.objects.get(self._key())
        if body is None:
            self._reply(404, {"Code": "NoSuchKey"})
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.md5(body).hexdigest()}"')  # noqa: S324 what S3 does
        self.end_headers()
        self.wfile.write(body)

    def _gone(self) -> bool:
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _key(self) -> str:
        return self.path.removeprefix("/store/").partition("?")[0]

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def _reply(self, status: int, answer: Mapping[str, Any], **headers: str) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


class Reachable(Protocol):
    """Somebody whom an agent can call."""

    @property
    def url(self) -> str:
        """Where."""
        ...


@dataclass
class Pod:
    """A home directory with the bundle in it, and what `start` and `stop` over SSH would do there."""

    home: Path
    orchestrator: Reachable
    code: Mapping[str, str] = field(default_factory=dict)  # the user's files
    nonce: str = "launch-1"
    python: str = sys.executable
    env: Mapping[str, str] = field(default_factory=dict)  # in addition to that of the test

    def __post_init__(self) -> None:
        source = self.home / "source"
        for name, text in self.code.items():
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            if name.endswith(".sh"):
                path.chmod(0o755)
        self.bundle = build_bundle(source if self.code else None)
        code = self.home / ".orchestrator" / "code"
        code.mkdir(parents=True)
        (code / f"agent-{self.bundle.agent_sha}.pyz").write_bytes(self.bundle.agent)
        if self.bundle.code:
            (code / f"user-{self.bundle.code_sha}.zip").write_bytes(self.bundle.code)

    @property
    def run(self) -> Path:
        return self.home / ".orchestrator" / "run" / self.nonce

    def agent(self, *words: str, stdin: str = "") -> tuple[int, dict[str, Any]]:
        """Run a subcommand of the agent: (exit status, its JSON line)."""
        pyz = f".orchestrator/code/agent-{self.bundle.agent_sha}.pyz"
        done = subprocess.run(
            [self.python, "-I", pyz, *words, "--run-dir", f".orchestrator/run/{self.nonce}"],
            cwd=self.home, input=stdin, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False,
            env={**os.environ, **self.env},
        )  # fmt: skip
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def start(self, handlers: Mapping[str, str] | None = None, **config: Any) -> dict[str, Any]:
        """Start the agent; returns its line."""
        status, line = self.agent("start", stdin=json.dumps(self.config(handlers, **config)))
        assert status == 0, line
        return line

    def config(self, handlers: Mapping[str, str] | None = None, **config: Any) -> dict[str, Any]:
        return {
            "worker_id": "gpu-20260101_000000-0badf00d", "nonce": self.nonce, "api_url": self.orchestrator.url,
            "token": TOKEN, "pool": "default", "handlers": dict(handlers or {}), "user_code": self.bundle.code_sha,
            "python": self.python, "setup_command": None, "start_command": None, "heartbeat_s": 0.2, "lease_s": 2,
            "deadman_s": 60, "claim_wait_s": 1, "batch": 1, "default_timeout_s": 60, "env": {}, **config,
        }  # fmt: skip

    def stop(self, grace_s: float = PATIENCE_S) -> dict[str, Any]:
        return self.agent("stop", "--grace-s", str(grace_s))[1]

    def calls_unanswered(self) -> bool:
        """What the orchestrator's question over SSH shows: whether a call has just got no answer."""
        command = agent_commands.unanswered_command(self.nonce)
        shown = subprocess.run(["sh", "-c", command], cwd=self.home, capture_output=True, check=True, timeout=10)
        return agent_commands.is_unanswered(shown.stdout)

    def log(self, stream: str) -> str:
        return (self.run / "logs" / f"{stream}.log").read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The agent's own log lines of one event."""
        log, written = self.run / "logs" / "agent.log", ""
        if log.exists():
            written = log.read_text().rpartition("\n")[0]  # the last line may be half written
        return [line for line in map(json.loads, written.splitlines()) if line["event"] == name]

    def ended(self, timeout_s: float = PATIENCE_S) -> str:
        """Why the agent ended, waited for."""
        wait_for(lambda: not self.agent("probe")[1]["alive"], timeout_s, pause_s=0.1)
        reason: str = json.loads((self.run / "done.json").read_text())["reason"]
        return reason


def wait_for(condition: Callable[[], Any], timeout_s: float = PATIENCE_S, pause_s: float = 0.02) -> Any:
    """Poll for something outside; returns it."""
    until = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < until, f"not within {timeout_s} s"
        time.sleep(pause_s)
    return found


def live(pids: Sequence[int]) -> list[int]:
    """Those of the pids that run, zombies not counted."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):  # it ended, perhaps between the opening and the reading
            continue
        if state not in "ZX":
            found.append(pid)
    return found
