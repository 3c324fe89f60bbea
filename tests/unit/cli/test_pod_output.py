"""Output of a command on a pod: a terminal gets text, a pipe gets bytes, a document gets a bounded part."""

import io

from orchestrator.cli.pod_output import CAPTURED_BYTES, LINE_CHARACTERS, Captured, Shown


class Stream(io.TextIOWrapper):
    """A text stream over bytes that may be a terminal."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def written(self) -> bytes:
        """What it got."""
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue()


def written(*parts: bytes, terminal: bool) -> bytes:
    """What a stream gets of these parts."""
    stream = Stream(terminal=terminal)
    shown = Shown(stream)
    for part in parts:
        shown(part)
    shown.end()
    return stream.written()


def test_a_terminal_gets_no_control_characters() -> None:
    """Characters that are torn between two parts come whole; an incomplete last line comes at the end."""
    assert written("one \x1b[2J\r\ntw\u2603"[:-1].encode() + b"\xe2\x98", b"\x83o", terminal=True).decode() == (
        "one ·[2J\ntw\u2603o\n"
    )
    assert written(b"a\rb\x07\n", terminal=True) == "a·b·\n".encode()


def test_a_line_without_an_end_does_not_wait() -> None:
    """It is written in pieces, so that memory is bounded."""
    stream = Stream(terminal=True)
    Shown(stream)(b"x" * (3 * LINE_CHARACTERS + 1))
    assert stream.written() == b"x" * 3 * LINE_CHARACTERS


def test_a_pipe_gets_the_bytes_as_they_are() -> None:
    """Also those that are no text."""
    assert written(b"\x00\xff\x1b[2J", b"\r\n", terminal=False) == b"\x00\xff\x1b[2J\r\n"


def test_a_document_has_the_first_part() -> None:
    """And says that there was more."""
    kept = Captured()
    kept(b"x" * CAPTURED_BYTES)
    assert not kept.truncated
    kept(b"y")
    assert (kept.truncated, kept.end()) == (True, "x" * CAPTURED_BYTES)
