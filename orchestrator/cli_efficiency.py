"""`efficiency`: what the fleet got done in windows up to now, and what that cost."""

import asyncio
from datetime import timedelta

import click

from orchestrator.cli_cost import SPAN, UNITS
from orchestrator.cli_render import Output, json_option, span, usd
from orchestrator.cli_session import opened_store, runs, utcnow
from orchestrator.cli_tables import table
from orchestrator.diagnostics.errors import BAD_ARGUMENT, Failure

WINDOWS = ("1h", "6h", "24h", "7d")


@click.command()
@click.option(
    "--window", "windows", multiple=True, default=WINDOWS, show_default=True, help="How far back; may be repeated."
)
@json_option
@click.pass_obj
@runs
async def efficiency(output: Output, windows: tuple[str, ...]) -> None:
    """Tasks per hour, how much of what was paid for worked, queue depth and dollars per task, by window."""
    lengths, now = {window: _length(window) for window in windows}, utcnow()
    async with opened_store() as store:
        told = await asyncio.gather(*(store.efficiency(now - length) for length in lengths.values()))
    if output.json:
        output.document(at=now, windows=[{"window": name, **row} for name, row in zip(lengths, told, strict=True)])
        return
    shown = table("window", "done", "failed", "tasks/h", "queue now", "queue mean", "wait p50", "wait p95", "run p50",
                  "utilisation", "cost", "$/task")  # fmt: skip
    for name, row in zip(lengths, told, strict=True):
        used = "–" if row["utilisation"] is None else f"{row['utilisation']:.0%}"
        times = [span(row[key]) for key in ("wait_p50_s", "wait_p95_s", "run_p50_s")]
        counts = [str(row[key]) for key in ("completed", "failed")]
        depth = [f"{row['tasks_per_hour']:g}", str(row["queue_now"]), f"{row['queue_mean']:g}"]
        shown.add_row(name, *counts, *depth, *times, used, usd(float(row["usd"])), usd(row["usd_per_task"], 4))
    output.show(shown)


def _length(text: str) -> timedelta:
    match = SPAN.fullmatch(text)
    if not match or not int(match[1]):
        raise Failure(BAD_ARGUMENT, why=f"--window {text!r} is not a span (90m, 24h, 7d, 2w)")
    return int(match[1]) * UNITS[match[2]]
