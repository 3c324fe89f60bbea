"""The closing summary, for people."""

from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table


def show(summary: Mapping[str, Any], stream: TextIO) -> None:
    """One table; what must be zero and is not is red."""
    console = Console(file=stream, highlight=False)
    table = Table(title="what came out", title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    for name, text in _lines(summary):
        table.add_row(name, text)
    console.print()
    console.print(table)
    if summary["ok"]:
        console.print("[green]nothing lost, doubled, leaked or missing[/green]")
        console.print("next: ./run demo --keep, and docs/handlers.md for work of your own")
    else:
        console.print(f"[red]wrong: {', '.join(summary['wrong'])}[/red]")


def _lines(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    seconds = ", ".join(f"{value:.0f} {kind}" for kind, value in s["pod_seconds"].items())
    tasks = f"{s['tasks_done']} of {s['tasks_submitted']} done, {_zero(s, 'tasks_failed')} failed, "
    tasks += f"{_zero(s, 'tasks_lost')} lost, {_zero(s, 'tasks_doubled')} done twice; {s['tasks_requeued']} requeued"
    logs = f"{s['log_bytes_produced']:,} produced, {s['log_bytes_shipped']:,} in S3 byte for byte, "
    logs += f"{s['log_bytes_declared_lost']:,} declared lost with their host, {_zero(s, 'log_bytes_missing')} missing"
    video = s["video"] or f"[red]{s.get('video_problem')}[/red]"
    length = f" ({s['video_seconds']:.1f} s, {s['video_frames']} frames)" if s["video"] else ""
    first = "never" if s["first_claim_s"] is None else f"{s['first_claim_s']:.1f} s after the insert"
    return [
        ("tasks", tasks),
        ("first claim", first),
        ("pods", f"{s['pods_created']} created, {s['pods_killed']} killed, {_zero(s, 'pods_leaked')} leaked"),
        ("pod-seconds", seconds),
        ("dollars", f"{s['dollars']:.4f} billed, {s['dollars_booked']:.4f} booked"),
        ("log bytes", logs),
        ("video", f"{video}{length}"),
        ("time", f"{s['seconds']:.0f} s in all"),
    ]


def _zero(summary: Mapping[str, Any], name: str) -> str:
    value = summary[name]
    return f"[red]{value}[/red]" if value else "0"
