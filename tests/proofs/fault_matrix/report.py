"""The table of what came of each trial: for a terminal, and for docs/faults.md."""

import re
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table

from tests.proofs.fault_matrix.runner import Result

COLUMNS = ("fault", "what is done", "what came of it", "recovered", "named", "the sentence")
WORKER_ID = re.compile(r"gpu-\d{8}_\d{6}-[0-9a-f]{8}")
SENTENCE = 140  # characters of it in the document
HEAD = """# Faults under load

`./run faults` starts Postgres, S3, the RunPod emulator and one or two orchestrators for each line, gives them two dozen
tasks, does the harm in the middle, and judges when all is over: no task lost or completed twice, no pod left or without
a live row for more than 120 s, no worker asked for twice, no log byte missing (or declared lost where no host was), a
reason for every event, nobody waiting past a deadline, no write of a term that was over, no more reserved and spent
than the budgets allow, none of the stack's secrets in its output, rows, objects or files on pods; whoever failed ended
under a code that the harm must have, or may have at its moment (an orchestrator killed between the record of a create
and the call leaves a CREATE_UNKNOWN), nobody under another, and `explain` says what it means. This file is what
`./run faults --write` saw last; *recovered* is the time from the harm to the end of the last task, *named* the time
from what could first be seen of it until a row, and `explain` or `timeline` of it, said what is wrong: at most 10 s, in
every line, long before a deadline passes; the sentence is the first that fits.

"""


def show(results: Sequence[Result], stream: TextIO) -> None:
    """The table for people; what is wrong stands below it."""
    console = Console(file=stream, highlight=False)
    table = Table(title="faults under load", title_justify="left")
    for column in COLUMNS:
        table.add_column(column, overflow="fold", justify="right" if column in {"recovered", "named"} else "left")
    for result in results:
        mark = "[green]✓[/green]" if result.ok else "[red]✗[/red]"
        table.add_row(f"{mark} {result.name}", *_cells(result))
    console.print(table)
    for result in results:
        for wrong in result.wrong:
            console.print(f"[red]{result.name}[/red]: {wrong}", markup=True)
    console.print(summary(results))


def summary(results: Sequence[Result]) -> str:
    """One line about all of them."""
    good = sum(result.ok for result in results)
    return f"{good} of {len(results)} trials as they should be, in {sum(r.seconds for r in results):.0f} s of trials"


def document(results: Iterable[Result]) -> str:
    """docs/faults.md."""
    rows = [f"| {' | '.join(COLUMNS)} |", "|---|---|---|---:|---:|---|"]
    for result in results:
        cells = [cell.replace("|", "\\|") for cell in (result.name, *_cells(result))]
        wrong = "; ".join(result.wrong).replace("|", "\\|")
        if wrong:
            cells[2] = f"**not yet**: {wrong}"
        rows.append(f"| {' | '.join(cells)} |")
    return HEAD + "\n".join(rows) + "\n"


def _cells(result: Result) -> tuple[str, ...]:
    figures = "".join(f"; {name} {seconds:g} s" for name, seconds in result.figures.items())
    lost = f"; {result.log_bytes_declared_lost} log bytes declared lost" if result.log_bytes_declared_lost else ""
    return (
        result.description,
        f"{result.outcome}{figures}{lost}",
        _seconds(result.recovered_s),
        _seconds(result.named_s),
        WORKER_ID.sub("gpu-…", result.sentence)[:SENTENCE],
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"
