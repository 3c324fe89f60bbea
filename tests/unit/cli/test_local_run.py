"""`handlers test` shows a handler's log in bounded pieces, and says what it leaves out."""

import socket
import struct
import threading
from pathlib import Path

import pytest

from orchestrator.cli.local_gateway import LocalGateway
from orchestrator.cli.local_run import LINE_CHARS, READ_BYTES, Tail


def test_a_long_line_is_cut_with_the_number_of_characters_left_out(tmp_path: Path) -> None:
    """However many reads it takes; the lines after it are whole, also a second long one."""
    log = tmp_path / "handler.log"
    long = "é" * (3 * READ_BYTES)
    log.write_text(f"first\n{long}\nbetween\n{long}\nlast", encoding="utf-8")
    tail, shown = Tail(log), list[str]()
    for _ in range(3):
        shown += tail.lines(is_last=False)
    assert shown == ["first"]
    shown += tail.lines(is_last=True)
    cut = f"{long[:LINE_CHARS]}[… {len(long) - LINE_CHARS} characters left out …]"
    assert shown == ["first", cut, "between", cut, "last"]
    assert tail.lines(is_last=True) == []


def test_lines_are_shown_while_they_are_written(tmp_path: Path) -> None:
    """An open line is shown once it has ended."""
    log = tmp_path / "handler.log"
    log.write_text("one\ntw")
    tail = Tail(log)
    assert tail.lines(is_last=False) == ["one"]
    with log.open("a") as file:
        file.write("o\n\nthree")
    assert tail.lines(is_last=False) == ["two", ""]
    assert tail.lines(is_last=True) == ["three"]


def test_an_agent_that_ends_in_a_call_leaves_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its handler may kill it at any time."""
    with LocalGateway({"id": "t", "output_prefix": "o/"}, tmp_path) as gateway:
        before = set(threading.enumerate())
        with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2])), timeout=10) as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets
            line.sendall(b"HEAD / HTTP/1.1\r\n\r\n")
            assert line.recv(1000)
            (answers,) = set(threading.enumerate()) - before
        answers.join(10)
    assert capsys.readouterr().err == ""
