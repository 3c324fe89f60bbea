"""Output without a terminal: one line for each row, and numbers that stay numbers."""

import io
import json
import sys
from decimal import Decimal

import pytest
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from orchestrator.cli.fixes import with_fix
from orchestrator.cli.output import Output, shown_as_typed
from orchestrator.cli.program import CALLED_AS, PROGRAM
from orchestrator.cli.tables import facts, table
from orchestrator.cli.task_follow import show_result
from orchestrator.diagnostics.amounts import usd

LONG = "words of a long reason, " * 100


def _table() -> Table:
    made = table("worker", "note")
    made.add_row("gpu-1", LONG)
    return made


@pytest.mark.parametrize("shown", [LONG, Text(LONG), _table(), facts({"why": LONG}), Padding(Text(LONG), (0, 0, 0, 7))])
def test_piped_output_never_wraps(monkeypatch: pytest.MonkeyPatch, shown: str | Text | Table | Padding) -> None:
    """Text, a cell of a table, and an indented text: each stays on its line, without blanks at the end."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    Output().show(shown)
    lines = stream.getvalue().splitlines()
    assert sum(LONG.strip() in line for line in lines) == 1
    assert all(line == line.rstrip() for line in lines)


def test_texts_name_the_program_as_it_was_typed_and_keep_their_styles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the fix of `explain` and of `status`: what is shown can be pasted."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv(CALLED_AS, "./run")
    fix = Text.assemble(("fix", "bold"), f": {PROGRAM} list; {PROGRAM} plan")
    Output().show(fix, f"fix: {PROGRAM} run", facts({"fix": f"{PROGRAM} logs"}))
    assert stream.getvalue() == "fix: ./run list; ./run plan\nfix: ./run run\nfix  ./run logs\n"
    shown = shown_as_typed(fix)
    assert isinstance(shown, Text)
    assert [(span.start, span.end, span.style) for span in shown.spans] == [(0, 3, "bold")]


def test_a_number_of_the_database_is_a_number_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a decimal one."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    Output().document(usd=Decimal("0.44"), count=3)
    assert json.loads(stream.getvalue()) == {"schema_version": 1, "usd": 0.44, "count": 3}


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_text_that_must_not_wrap_is_cut_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text has its own way; rich alone would wrap both."""
    stream = _Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    Output().show(Text(LONG, no_wrap=True, overflow="ellipsis"), Text("word " * 20))
    cut, *wrapped = stream.getvalue().splitlines()
    assert (len(cut), cut[-1], len(wrapped)) == (80, "…", 2)


def test_the_result_of_a_task_is_one_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Line breaks within it would be no JSON."""
    stream, result = _Terminal(), {"words": "a long text " * 20}
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    show_result(Output(), {"id": "1", "status": "Complete", "result_data": result})
    assert json.loads(stream.getvalue()) == result
    assert len(stream.getvalue().splitlines()) == 1


def test_a_fix_is_copied_from_a_terminal_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a line of its own where both do not fit on one; the program's name in it is the one that was typed."""
    stream = _Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/orchestrator"])
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "dumb")
    short, long = "python -m orchestrator list", f"python -m orchestrator explain {LONG.strip()}"
    Output().show(*with_fix("not ready", short, 40), *with_fix("not ready", long, 40))
    assert stream.getvalue().splitlines() == [
        "not ready   fix: orchestrator list",
        "not ready",
        f"fix: orchestrator explain {LONG.strip()}",
    ]


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (None, "–"),
        (0, "$0.00"),
        (1234.5, "$1,234.50"),
        (0.004, "$0.0040"),
        (0.00004, "<$0.0001"),
        (-0.5, "-$0.50"),
        (-0.03, "-$0.03"),
        (-1234.5, "-$1,234.50"),
        (-0.001, "$0.00"),
    ],
)
def test_an_amount_above_zero_is_never_shown_as_zero(amount: float | None, shown: str) -> None:
    """`list` and `explain` show the same worker's cost."""
    assert usd(amount) == shown
