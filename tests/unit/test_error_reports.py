"""Reports of the daemon's own errors, as a receiver of Sentry's protocol gets them."""

import gzip
import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import brotli
import pytest
import structlog

from orchestrator.observability.error_reports import ErrorReports, reporting_errors
from orchestrator.observability.logging import configure

CANARIES = ("canary-param", "canary-secret", "canary-message", "canary-fact", "canary-environment")


class Sentry:
    """What a project has got."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.changed = threading.Condition()
        self.dsn = ""

    def events(self, count: int) -> list[dict[str, Any]]:
        """Wait for so many events."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.bodies) >= count, 60)
            return [json.loads(body.splitlines()[2]) for body in self.bodies]


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    """A receiver on this machine."""
    got = Sentry()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = {"gzip": gzip.decompress, "br": brotli.decompress}[self.headers["content-encoding"]](body)
            with got.changed:
                got.bodies.append(body.decode())
                got.changed.notify_all()
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    got.dsn = f"http://0123456789abcdef0123456789abcdef@127.0.0.1:{server.server_address[1]}/1"
    yield got
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def logged() -> Iterator[io.StringIO]:
    """The log, as the daemon writes it; then as it was."""
    root, before, hooks = logging.getLogger(), logging.getLogger().handlers[:], (sys.excepthook, threading.excepthook)
    level, unraisable, options = root.level, sys.unraisablehook, structlog.get_config()
    out = io.StringIO()
    configure("INFO", (), out)
    yield out
    root.handlers[:], (sys.excepthook, threading.excepthook), sys.unraisablehook = before, hooks, unraisable
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.configure(**options)


def broken(params: dict[str, str]) -> None:
    """Fail with all that a report must not contain."""
    secret = "canary-secret"
    try:
        int(params["prompt"])
    except ValueError as error:
        raise RuntimeError(f"canary-message {secret}") from error


def fail(event: str) -> None:
    """Log an unexpected error."""
    try:
        broken({"prompt": "canary-param"})
    except RuntimeError:
        structlog.get_logger().exception(event, task="canary-fact")


def test_a_report_has_types_and_places_and_no_values(
    sentry: Sentry, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    """Of structlog's records and of other loggers'; the log itself is as before."""
    monkeypatch.setenv("HF_TOKEN", "canary-environment")
    with reporting_errors(sentry.dsn, "a fleet", "1.2"):
        structlog.get_logger().warning("canary-fact")
        structlog.get_logger().error("no_exception", fact="canary-fact")
        fail("action_crashed")
        try:
            broken({"prompt": "canary-param"})
        except RuntimeError:
            logging.getLogger("uvicorn.error").exception("Exception with %s", "canary-fact")
        first, second = sentry.events(2)
    assert not [canary for body in sentry.bodies for canary in CANARIES if canary in body]
    assert (first["transaction"], second["transaction"]) == ("action_crashed", "uvicorn.error")
    assert (first["release"], first["environment"]) == ("1.2", "a_fleet")
    assert [one["type"] for one in first["exception"]["values"]] == ["ValueError", "RuntimeError"]
    assert first["exception"]["values"][-1]["stacktrace"]["frames"][-1]["function"] == "broken"
    assert logged.getvalue().count("canary-message") >= 2


def test_one_error_is_one_report_a_minute(sentry: Sentry) -> None:
    """A loop that fails at every tick does not use up the project's quota."""
    now = [0.0]
    reports = ErrorReports(sentry.dsn, "f", "1", clock=lambda: now[0])
    logging.getLogger().addHandler(reports)
    for at in (0.0, 1.0, 59.0, 60.0):
        now[0] = at
        fail("action_crashed")
    fail("conditions_unknown")
    logging.getLogger().removeHandler(reports)
    reports.close()
    assert [event["transaction"] for event in sentry.events(3)] == [
        "action_crashed", "action_crashed", "conditions_unknown",
    ]  # fmt: skip


def test_the_error_that_ends_the_process_is_reported(sentry: Sentry) -> None:
    """Before the process ends."""
    with pytest.raises(RuntimeError, match="canary"), reporting_errors(sentry.dsn, "f", "1"):
        broken({"prompt": "canary-param"})
    assert [event["transaction"] for event in sentry.events(1)] == ["orchestrator_crashed"]


PLANTED = """
import asyncio, sys
from orchestrator.service import entry_points
from orchestrator.config.environment import load
from orchestrator.observability import error_reports
from orchestrator.ports import Unavailable

error_reports.FLUSH_S = 60  # on a busy machine, the last report needs more than its half second
print([name for name in sys.modules if name.startswith("sentry_sdk")])
for error in (Unavailable, ValueError):
    def built(settings):
        raise error("canary-message")

    entry_points.build_loop = built  # a planted bug
    try:
        asyncio.run(entry_points.run(load()))
    except error:
        print("ended")
"""


def test_the_daemon_reports_a_bug_and_no_outage(sentry: Sentry) -> None:
    """With SENTRY_DSN in its environment; before that is read, nothing of the SDK is imported."""
    environment = {**os.environ, "SENTRY_DSN": sentry.dsn, "FLEET_ID": "fleet-7"}
    program = [sys.executable, "-c", PLANTED]
    done = subprocess.run(program, env=environment, capture_output=True, check=True, timeout=60, text=True)
    assert done.stdout.splitlines() == ["[]", "ended", "ended"]
    [event] = sentry.events(1)
    assert (event["environment"], event["exception"]["values"][0]["type"]) == ("fleet-7", "ValueError")


@pytest.mark.parametrize("dsn", ["nonsense-canary", "https://host/1"])
def test_what_is_no_dsn_is_said_and_not_quoted(dsn: str, logged: io.StringIO) -> None:
    """The daemon runs without reports."""
    before = logging.getLogger().handlers[:]
    with reporting_errors(dsn, "f", "1"):
        assert logging.getLogger().handlers == before
    assert "SENTRY_DSN is no DSN" in logged.getvalue()
    assert "canary" not in logged.getvalue()
