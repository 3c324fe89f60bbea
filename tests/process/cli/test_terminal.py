"""Nothing that a pod, a user or a provider wrote steers the operator's terminal."""

import io
import json
from collections.abc import Callable

import pytest
from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from orchestrator.cli.output import Output
from orchestrator.observability import redaction

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\rgone\x08"


def _table() -> Table:
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE, style="bold red"))
    return table


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "made", [lambda: HOSTILE, lambda: Text(HOSTILE), _table, lambda: Panel(HOSTILE, title=HOSTILE)]
)
@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_what_is_shown_holds_no_control_sequence_of_its_own(
    made: Callable[[], RenderableType], stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal and in a pipe, whichever renderable a command made of it; styles of ours stay."""
    written = stream()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", written)
    Output().show(made())
    shown = written.getvalue()
    assert "evil" in shown
    for steering in ("\x1b]", "\x1b[2J", "\x9b", "\u202e", "\r", "\x08", "\x07"):
        assert steering not in shown, repr(shown)


def test_json_is_safe_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control characters are JSON's escapes, and a program reads what was there."""
    written = io.StringIO()
    monkeypatch.setattr("sys.stdout", written)
    Output().document(code=HOSTILE)
    assert written.getvalue().rstrip("\n").isprintable()
    assert json.loads(written.getvalue())["code"] == HOSTILE


def test_a_traceback_is_safe_to_show() -> None:
    """An exception of a library may quote a pod's words."""
    said = redaction.uncaught_error_text(ValueError, ValueError(HOSTILE), None)
    assert "evil" in said
    assert "\x1b" not in said
