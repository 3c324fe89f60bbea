"""The table of the results of each case: for a terminal, and for docs/faults.md."""

import re
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table

from tests.proofs.fault_matrix.runner import Result

COLUMNS = ("fault", "what is done", "what came of it", "recovered", "named", "the sentence", "health")
NAMES = re.compile(r"\b(gpu|c)-(?:\d{8}[_-]\d{6}-)?[0-9a-f]{8}\b")  # of workers, nodes and clusters
SENTENCE = 140  # characters of it in the document
HEAD = """# Faults under load

`./run faults` injects one fault at a time into a working fleet and checks the result. `./run faults --write` writes
this page. For each row it starts PostgreSQL, S3, the RunPod emulator and one or two orchestrators, submits two dozen
tasks, and injects the fault while they run. The rows whose names begin with `cluster` do this with
[a cluster](clusters.md) of two nodes, on which one task runs a job, and delete the cluster in the end. When all tasks
have ended, it checks:

* no task is lost or completed twice, and no pod is left;
* no pod is without a live row for more than 120 s, and no pod is created twice for one worker;
* no log byte is missing; bytes are declared lost only if their host was lost;
* every event has a reason, and no wait exceeds its deadline;
* no write has an old term, and the cost stays within the budgets;
* no secret of the test is in the output, the rows, the objects or the files on the pods;
* every failed worker has a failure code that the fault may cause, and `explain` describes it.

*Recovered* is the time from the fault to the end of the last task. *Named* is the time from the first visible sign
until a row, and `explain` or `timeline`, name the cause: at most 10 s. Of a cluster, `cluster explain` names it with
its fix: at most 15 s. *The sentence* is the first text that names it.
*Health* is what `health` says of the cause during the fault, and its exit code: 1 if work or money is affected.

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
        for wrong in (*result.wrong, *result.late):
            console.print(f"[red]{result.name}[/red]: {wrong}", markup=True)
    console.print(summary(results))


def summary(results: Sequence[Result]) -> str:
    """One line about all of them."""
    good = sum(result.ok for result in results)
    return f"{good} of {len(results)} cases as they should be, in {sum(r.seconds for r in results):.0f} s of cases"


def document(results: Iterable[Result]) -> str:
    """docs/faults.md."""
    rows = [f"| {' | '.join(COLUMNS)} |", "|---|---|---|---:|---:|---|---|"]
    for result in results:
        cells = [cell.replace("|", "\\|") for cell in (result.name, *_cells(result))]
        wrong = "; ".join((*result.wrong, *result.late)).replace("|", "\\|")
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
        NAMES.sub(r"\1-…", result.sentence)[:SENTENCE],
        NAMES.sub(r"\1-…", result.health)[:SENTENCE],
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"
