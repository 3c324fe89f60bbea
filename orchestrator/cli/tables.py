"""Tables: of workers, and of facts about one thing."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from orchestrator.cli.output import Output, ago, gpu_name, span, usd
from orchestrator.cli.worker_rows import ended_after_s, flags, is_live, note, totals
from orchestrator.observability.redaction import plain

STYLES = {
    "spawning": "yellow",
    "active": "green",
    "idle": "cyan",
    "terminating": "magenta",
    "terminated": "dim",
    "Queued": "yellow",
    "In Progress": "green",
    "Complete": "cyan",
    "Failed": "red",
    "Cancelled": "dim",
}
AGES = ("age", "heartbeat", "took", "after")
MONEY = ("$/h", "spent", "cost", "booting", "busy", "idle", "draining", "booked", "RunPod", "difference")
RIGHT = (*AGES, *MONEY, "try", "attempt", "tasks")


def table(*columns: str) -> Table:
    """An empty table without lines; only the last column wraps."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        last = name == columns[-1]
        made.add_column(name, no_wrap=not last, overflow="fold", justify="right" if name in RIGHT else "left")
    return made


def facts(named: Mapping[str, str | Text]) -> Table:
    """Names on the left, values on the right."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(no_wrap=True, style="bold")
    made.add_column(overflow="fold")
    for name, value in named.items():
        made.add_row(name, value)
    return made


def state(name: str) -> Text:
    """A state in its colour."""
    return Text(name, style=STYLES.get(name, ""))


def workers(rows: Iterable[Mapping[str, Any]], output: Output, now: datetime) -> RenderableType:
    """One line per worker; on a narrow terminal a second one with its pod, its GPU and what it waits for."""
    listed = list(rows)
    sums = totals(listed)
    names = ("worker", "state", "age", "heartbeat", "$/h", "spent")
    shown = table(*names) if output.narrow else table(*names[:2], "GPU", "pod", *names[2:], "waiting on / note")
    seconds = []
    for row in listed:
        gpu, pod = (
            gpu_name(row.get("gpu_type") or row.get("instance_type"), row.get("gpu_count")),
            plain(row.get("pod_id") or "–"),
        )
        age = span(ago(row["created_at"], now) if is_live(row) else ended_after_s(row))
        beat = span(ago(row.get("last_heartbeat"), now)) if is_live(row) else "–"
        price, spent = usd(row.get("price_usd_per_hour")), usd(row.get("cost_usd"))
        said = Text(plain(note(row, now)), style="bold red" if flags(row, now) else "")
        if output.narrow:
            shown.add_row(row["id"], state(row["status"]), age, beat, price, spent)
            seconds.append(Text.assemble(f"{pod}  {plain(gpu)}  ", said))
        else:
            shown.add_row(row["id"], state(row["status"]), plain(gpu), pod, age, beat, price, spent, said)
    count = f"{sums['workers']} worker{'s' if sums['workers'] != 1 else ''}"
    price, spent = usd(sums["usd_per_hour"]), usd(sums["spent_usd"])
    total = [count, *[""] * 3, price, spent] if output.narrow else [count, *[""] * 5, price, spent, ""]
    shown.add_row(*total, style="bold")
    return Stacked(shown, ["pod, GPU, waiting on / note", *seconds]) if output.narrow else shown


class Stacked:
    """A table with a text of the whole width under each of its lines."""

    def __init__(self, lines: Table, unders: Sequence[str | Text]) -> None:
        self._lines, self._unders = lines, unders

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._lines, options, pad=False)
        for line, under in zip_longest(lines, self._unders):
            yield from line
            yield Segment.line()
            if under is not None:
                yield Padding(under, (0, 0, 0, 2))
