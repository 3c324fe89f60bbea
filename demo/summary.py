"""The closing summary."""

from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table


def show(summary: Mapping[str, Any], stream: TextIO, *, keeps: bool = False) -> None:
    """Print one table. A value that should be zero and is not is red. `keeps`: the system stays up afterwards."""
    console = Console(file=stream, highlight=False, soft_wrap=True)
    table = Table(title="what came out", title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="bold", no_wrap=True, min_width=max(len(name) for name, _ in _lines(summary)))
    table.add_column(no_wrap=True)
    for name, text in _lines(summary):
        table.add_row(name, text)
    console.print()
    console.print(table)
    for name in ("video", "output"):
        if summary.get(name):
            console.print(f"The {name} is in {summary[name]}", markup=False)
    if not summary["ok"]:
        console.print(f"[red]wrong: {', '.join(summary['wrong'])}[/red]")
        return
    console.print("[green]Nothing was lost, done twice, left running or left out.[/green]")
    if not keeps:
        console.print("next: ./run demo --keep, and docs/handlers.md for work of your own")


def _lines(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and texts; a line of both has at most 80 columns."""
    seconds = ", ".join(f"{value:.0f} s {kind}" for kind, value in s["pod_seconds"].items())
    tasks = f"{s['tasks_done']} of {s['tasks_submitted']} done, {_zero(s, 'tasks_failed')} failed, "
    tasks += f"{_zero(s, 'tasks_lost')} lost, {_zero(s, 'tasks_doubled')} done twice; {s['tasks_requeued']} requeued"
    lost = f"{s['log_bytes_declared_lost']:,} declared lost with their host, {_zero(s, 'log_bytes_missing')} missing"
    video = f"{s['video_seconds']:.1f} s, {s['video_frames']} frames" if s["video"] else None
    made = ("video", video or f"[red]{s.get('video_problem')}[/red]")
    if "output" in s:
        made = ("output", f"of {s['output_nodes']} nodes of one job")
    first = "never" if s["first_claim_s"] is None else f"{s['first_claim_s']:.1f} s after the insert"
    return [
        ("tasks", tasks),
        ("first claim", first),
        ("pods", f"{s['pods_created']} created, {s['pods_killed']} killed, {_zero(s, 'pods_leaked')} leaked"),
        ("time of pods", seconds),
        ("dollars", f"{s['dollars']:.4f} on the emulator's bill, {s['dollars_booked']:.4f} in the database"),
        ("log bytes", f"{s['log_bytes_produced']:,} produced, {s['log_bytes_shipped']:,} in S3 byte for byte"),
        ("", lost),
        made,
        ("time", f"{s['seconds']:.0f} s in all"),
    ]


def _zero(summary: Mapping[str, Any], name: str) -> str:
    value = summary[name]
    return f"[red]{value}[/red]" if value else "0"
