"""Tables: of workers, and of facts about one thing."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from orchestrator.cli_render import Output, ago, gpu_name, plain, span, usd
from orchestrator.cli_workers import ended_after_s, flags, is_live, note, totals

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


def workers(rows: Iterable[Mapping[str, Any]], output: Output, now: datetime) -> Table:
    """One line per worker; two on a narrow terminal."""
    listed = list(rows)
    sums = totals(listed)
    if output.narrow:
        shown = table("worker\npod", "state\nGPU", "age\nheartbeat", "$/h\nspent", "waiting on / note")
        for position in (2, 3):
            shown.columns[position].justify = "right"
    else:
        shown = table("worker", "state", "GPU", "pod", "age", "heartbeat", "$/h", "spent", "waiting on / note")
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
            both = Text.assemble(state(row["status"]), "\n", plain(gpu))
            shown.add_row(f"{row['id']}\n{pod}", both, f"{age}\n{beat}", f"{price}\n{spent}", said)
        else:
            shown.add_row(row["id"], state(row["status"]), plain(gpu), pod, age, beat, price, spent, said)
    count = f"{sums['workers']} worker{'s' if sums['workers'] != 1 else ''}"
    price, spent = usd(sums["usd_per_hour"]), usd(sums["spent_usd"])
    total = [count, "", "", f"{price}\n{spent}", ""] if output.narrow else [count, *[""] * 5, price, spent, ""]
    shown.add_section()
    shown.add_row(*total, style="bold")
    return shown
