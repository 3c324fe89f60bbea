"""An answer that the agent cannot decode is no answer: its threads go on, and ask again."""

import contextlib
import json
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker import http1
from worker.agent_state import AgentState
from worker.config import RunDir
from worker.http1 import HttpConnection, Unreachable
from worker.rpc import Refused, Rpc, _object, is_refusal, list_of, within


@pytest.mark.parametrize("value", [b"[" * 100_000 + b"]" * 100_000, b"9" * 10_000])
def test_a_value_that_python_cannot_decode_does_not_crash_the_caller(value: bytes) -> None:
    with pytest.raises(Unreachable):
        _object(200, b'{"outcome": "ok", "node_tasks": ' + value + b"}")


def test_the_chunks_of_an_answer_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile gateway could fill the pod's memory until the deadline, at 400 MB/s."""
    monkeypatch.setattr(http1, "MAX_BODY_BYTES", 1000)

    def serve() -> None:
        peer, _ = server.accept()
        with peer, contextlib.suppress(OSError):  # it hangs up
            peer.recv(4096)
            peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            peer.sendall(b"64\r\n" + b"x" * 100 + b"\r\n" + b"384\r\n" + b"x" * 900 + b"\r\n" + b"1\r\nx\r\n0\r\n\r\n")
            peer.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        connection = HttpConnection(f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(Unreachable, match="more than 1000 bytes"):
            connection.post("/x", "", b"", time.monotonic() + 10)
        thread.join(10)


REFUSAL = {"code": "OR007", "message": "no", "details": None, "hint": None}


@pytest.mark.parametrize(
    ("answer", "is_one"),
    [
        (REFUSAL, True),
        (REFUSAL | {"code": "22P02"}, True),
        (REFUSAL | {"code": "PGRST102"}, True),
        ({"status": "error", "code": 403, "message": "Forbidden"}, False),
        ({"code": "OR007", "message": "no"}, False),
        (REFUSAL | {"code": "ERROR"}, False),
        (REFUSAL | {"code": 40301}, False),
        (REFUSAL | {"code": "403"}, False),
        (REFUSAL | {"code": "\u0661\u0661111"}, False),
        (REFUSAL | {"code": None}, False),
    ],
)
def test_only_the_databases_format_is_a_refusal(answer: dict[str, Any], is_one: bool) -> None:
    """A proxy's JSON would otherwise destroy a result, and count as a sign of the orchestrator."""
    assert is_refusal(answer) is is_one


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (20, 20.0),
        ("7.5", 7.5),
        (-1, 5.0),
        (0, 5.0),
        ("soon", 5.0),
        (float("nan"), 5.0),
        (1e300, 5.0),
        ([], 5.0),
        (None, 5.0),
    ],
)
def test_an_interval_is_within_bounds_or_stays(value: Any, seconds: float) -> None:
    """Minus one second was 4,000 heartbeats per second."""
    assert within(value, 0.1, 3600.0, 5.0) == seconds


def test_a_list_of_an_answer_has_only_what_can_be_used(tmp_path: Path) -> None:
    """An unexpected value ended the agent, and with it a healthy worker."""
    assert list_of(str, ["a", {}, 1, "b"]) == ["a", "b"]
    assert list_of(str, {"a": 1}) == list_of(str, 7) == list_of(str, None) == []
    state = AgentState(900, RunDir(str(tmp_path)))
    state.follow_answer({"outcome": ["fenced"], "wanted": {}})
    assert state.ending is None


def test_a_refusal_of_any_length_fits_into_the_report_about_it(tmp_path: Path) -> None:
    """A proxy may answer with a page of megabytes."""
    refusal = json.dumps({"code": "P0001", "message": "no " * 1_000_000, "details": None, "hint": None}).encode()

    def serve() -> None:
        peer, _ = server.accept()
        with peer:
            peer.recv(65_536)
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%s" % (len(refusal), refusal))
            peer.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        where = {"api_url": f"http://127.0.0.1:{server.getsockname()[1]}", "worker_id": "w", "nonce": "n", "token": "t"}
        config: Any = SimpleNamespace(**where, api_key=None)
        rpc = Rpc(config, AgentState(60, RunDir(str(tmp_path))))
        with pytest.raises(Refused, match="characters left out") as refused:
            rpc.call("worker_complete", {})
        rpc.close()
        thread.join(10)
    assert len(str(refused.value)) < 1_100
