"""Tables: of workers, and of facts about one thing."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from orchestrator.cli.output import Output, one_line, shown_as_typed
from orchestrator.cli.worker_rows import ended_after_s, flags, is_live, note, totals
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import FINE, ago, gpu_name, rounded, span
from orchestrator.observability.redaction import plain

STYLES = {
    "spawning": "yellow",
    "active": "green",
    "idle": "cyan",
    "terminating": "magenta",
    "terminated": "dim",
    "Queued": "yellow",
    "In Progress": "cyan",
    "Complete": "green",
    "Failed": "red",
    "Cancelled": "dim",
}
MARKS = {  # of the results of doctor's checks
    "ok": ("ok  ", "green"),
    "note": ("note", "cyan"),
    "warn": ("warn", "yellow"),
    "fail": ("FAIL", "bold red"),
    "skip": ("skip", "dim"),
}
AGES = ("age", "heartbeat", "took", "after")
MONEY = ("$/h", "spent", "cost", "booting", "busy", "idle", "draining", "booked", "RunPod", "difference")
HEADS = {"short id": "task"}  # columns that are shown under another name
NOTE = "waiting on / note"
NOTE_CHARACTERS = 1_000
NOTE_COLUMNS = 24  # of a line that a note gets at least, unless it is shorter
CENTS = 0.1  # dollars below which two digits say too little …
COARSE = 100.0  # … unless the column has amounts as large as this
GAP = 2  # columns between two cells
RIGHT = (*AGES, *MONEY, "try", "attempt", "tasks")


Cells = Mapping[str, Sequence[str | Text]]  # the cells of each column, by its name


def table(*columns: str) -> Table:
    """Return an empty table without rules. Only the last column wraps."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        last, side = name == columns[-1], "right" if name in RIGHT else "left"
        kept = {"no_wrap": not last, "overflow": "fold" if last else "ellipsis"}
        made.add_column(HEADS.get(name, name), justify=side, **kept)  # type: ignore[arg-type]
    return made


def facts(named: Mapping[str, str | Text]) -> Table:
    """Return a table of names and values."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(no_wrap=True, style="bold")
    made.add_column(overflow="fold")
    for name, value in named.items():
        made.add_row(name, shown_as_typed(value))
    return made


def state(name: str) -> Text:
    """Return a state in its colour."""
    return Text(name, style=STYLES.get(name, ""))


def workers(rows: Iterable[Mapping[str, Any]], output: Output, now: datetime) -> RenderableType:
    """Return one line per worker with as many columns as fit. If too few fit, a second line has the others."""
    listed = list(rows)
    sums = totals(listed)
    texts = [one_line(note(row, now), NOTE_CHARACTERS) for row in listed]
    notes = [Text(text, "bold red" if flags(row, now) else "") for text, row in zip(texts, listed, strict=True)]
    cells: dict[str, list[str | Text]] = {"worker": [], "state": [], "pool": [], "GPU": [], "pod": []}
    cells |= {"age": [], "heartbeat": []}
    for row in listed:
        live = is_live(row)
        cells["worker"].append(row["id"])
        cells["state"].append(state(row["status"]))
        cells["pool"].append(one_line(row.get("pool") or "–"))
        cells["GPU"].append(plain(gpu_name(row.get("gpu_type") or row.get("instance_type"), row.get("gpu_count"))))
        cells["pod"].append(plain(row.get("pod_id") or "–"))
        cells["age"].append(span(ago(row["created_at"], now) if live else ended_after_s(row)))
        cells["heartbeat"].append(span(ago(row.get("last_heartbeat"), now)) if live else "–")
    *prices, price = usd_column([*(row.get("price_usd_per_hour") for row in listed), sums["usd_per_hour"]])
    *costs, cost = usd_column([*(row.get("cost_usd") for row in listed), sums["spent_usd"]])
    cells["$/h"], cells["spent"] = [*prices], [*costs]
    total = {"worker": counted(sums["workers"], "worker"), "$/h": price, "spent": cost}
    if len({row.get("pool") for row in listed}) <= 1:
        del cells["pool"]
    layouts = [tuple(name for name in cells if name not in left_out) for left_out in ((), ("pod",))]
    made = fit(cells, notes, output, layouts=layouts, title=NOTE, total=total)
    below = [name for name in ("pool", "pod", "GPU") if name in cells]
    return made or stack(cells, notes, output, below=below, title=NOTE, total=total)


def fit(
    cells: Cells,
    notes: Sequence[Text],
    output: Output,
    *,
    layouts: Sequence[Sequence[str]],
    title: str,
    total: Mapping[str, str] | None = None,
    note_lines: int | None = None,
) -> Table | None:
    """Return a table in the first layout that fits the terminal, with the notes as its last column; None if none fits.

    A layout is the names of columns in `cells`. Without a terminal, the first layout is taken, and no note is cut.
    """
    widest = min(max((note.cell_len for note in notes), default=0), NOTE_COLUMNS)
    for names in layouts:
        natural = _natural(cells, names)
        if output.out.is_terminal and natural + max(widest, len(title)) > output.out.width:
            continue
        shown = table(*names, title)
        for number, full in enumerate(notes):
            text = cut(full, output, output.out.width - natural, note_lines) if note_lines else full
            shown.add_row(*(cells[name][number] for name in names), text)
        if total:
            shown.add_row(*(total.get(name, "") for name in names), "", style="bold")
        return shown
    return None


def cut(text: Text, output: Output, columns: int, lines: int) -> Text:
    """Return a text that takes at most so many lines of a terminal; `…` replaces the rest. Uncut in a pipe."""
    if not output.out.is_terminal:
        return text
    wrapped = text.wrap(output.out, columns, overflow="fold")
    if len(wrapped) <= lines:
        return text
    kept = wrapped[:lines]
    kept[-1].truncate(columns - 1)
    kept[-1].append("…")
    return Text("\n").join(kept)


def stack(
    cells: Cells,
    notes: Sequence[Text],
    output: Output,
    *,
    below: Sequence[str],
    title: str,
    total: Mapping[str, str] | None = None,
) -> RenderableType:
    """Return a table in which each row has a second line with the columns of `below` and its note.

    Columns for which the terminal is too narrow are below, too.
    """
    names = [name for name in cells if name not in below]
    while len(names) > 1 and _natural(cells, names) - GAP > output.out.width:
        below = [names.pop(), *below]
    shown, seconds = table(*names), [Text(", ".join((*below, title)))]
    for number, full in enumerate(notes):
        shown.add_row(*(cells[name][number] for name in names))
        seconds.append(Text.assemble(*(part for name in below for part in (cells[name][number], "  ")), full))
    if total:
        shown.add_row(*(total.get(name, "") for name in names), style="bold")
        if rest := [total[name] for name in below if total.get(name)]:
            seconds.append(Text("  ".join(rest), style="bold"))
    return Stacked(shown, seconds)


def _natural(cells: Cells, names: Sequence[str]) -> int:
    """The columns of a terminal that these columns of a table take, with the gap behind each."""
    return sum(max(map(_width, (HEADS.get(name, name), *cells[name]))) + GAP for name in names)


def _width(cell: str | Text) -> int:
    return cell.cell_len if isinstance(cell, Text) else cell_len(cell)


def usd_column(amounts: Sequence[float | None]) -> list[str]:
    """Return amounts of one column with one precision: four digits if an amount needs them, otherwise two."""
    known = [abs(amount) for amount in amounts if amount]
    digits = FINE if known and min(known) < CENTS and max(known) < COARSE else 2
    return ["–" if amount is None else rounded(amount, digits) or f"<{10**-digits:.{digits}f}" for amount in amounts]


class Stacked:
    """A table with a text of the full width under each line."""

    def __init__(self, lines: Table, unders: Sequence[str | Text]) -> None:
        self._lines, self._unders = lines, unders

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._lines, options, pad=False)
        for line, under in zip_longest(lines, self._unders):
            yield from line
            yield Segment.line()
            if under is not None:
                yield Padding(under, (0, 0, 0, 2))
