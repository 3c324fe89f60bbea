"""Lines to copy from a terminal: a line that is longer than the terminal stays one line."""

from collections.abc import Iterator

from rich.text import Text

from orchestrator.cli.program import as_typed

GAP = "   "


def whole(line: str) -> Text:
    """Return a line that only the terminal itself wraps, so that a command in it is copied in one piece."""
    return Text(line, no_wrap=True, overflow="ignore")


def with_fix(said: str, fix: str, columns: int) -> Iterator[Text]:
    """Return `said   fix: …` if both fit on one line of `columns`, else each on a line of its own."""
    both = Text(as_typed(f"{said}{GAP}fix: {fix}"))
    if both.cell_len <= columns:
        yield both
    else:
        yield Text(said)
        yield whole(f"fix: {fix}")
