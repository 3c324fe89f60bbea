"""What the log of `run` looks like: sentences on a terminal, JSON elsewhere."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from orchestrator.observability import logging as our_logging


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The logging of the test session comes back."""
    monkeypatch.setenv("NO_COLOR", "1")
    root = logging.getLogger()
    handlers, level, config = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:], root.level = handlers, level
    structlog.configure(**config)


def lines(stream: io.StringIO) -> list[str]:
    """What three records look like."""
    our_logging.configure("INFO", (), stream)
    log = structlog.get_logger()
    log.info("worker_promoted", worker="gpu-1", pools=["a", "b"], left={"spawns": 2}, until=None)
    log.warning("tracing_off", message="no traces are sent", cause="\x1b[2Jevil\nline")
    logging.getLogger("library").error("it %s", "broke")
    return stream.getvalue().splitlines()


def test_a_terminal_gets_sentences() -> None:
    """No JSON, and no key=value."""
    promoted, off, broke = (line.partition("  ") for line in lines(Terminal()))
    assert promoted[2] == "worker promoted: worker gpu-1, pools a, b, left spawns 2, until none"
    assert off[2].startswith("warning: no traces are sent (cause ")
    assert broke[2] == "error: it broke"
    assert all(len(time) == len("16:02:11Z") for time, _, _ in (promoted, off, broke))
    assert "\x1b" not in off[2]


def test_a_pipe_gets_json() -> None:
    """With the event's name and each fact under its own."""
    promoted, *_ = map(json.loads, lines(io.StringIO()))
    assert (promoted["event"], promoted["worker"]) == ("worker_promoted", "gpu-1")
