"""`efficiency`: completed tasks, utilisation and cost in windows that end now."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import click
from rich.table import Table

from orchestrator.cli.options import SPAN, UNITS
from orchestrator.cli.output import Output, json_option
from orchestrator.cli.session import opened_store, runs, utcnow
from orchestrator.cli.tables import table
from orchestrator.core.plurals import queued
from orchestrator.diagnostics.amounts import span, usd
from orchestrator.errors import BAD_ARGUMENT, Failure

WINDOWS = ("1h", "6h", "24h", "7d")
NAMES = ("done", "failed", "failed attempts", "tasks/h", "queue now", "queue mean", "wait p50", "wait p95", "run p50",
         "utilisation", "cost", "$/task")  # fmt: skip


@click.command()
@click.option(
    "--window",
    "windows",
    multiple=True,
    default=WINDOWS,
    show_default=True,
    help="The length of a window; may be repeated.",
)
@json_option
@click.pass_obj
@runs
async def efficiency(output: Output, windows: tuple[str, ...]) -> None:
    """Show tasks per hour, utilisation, queue depth and dollars per task, for each window.

    done and failed count tasks. Failed attempts count each failed try of a task; most of these tasks are tried again.
    """
    lengths, now = {window: _length(window) for window in windows}, utcnow()
    async with opened_store() as store:
        rows = await asyncio.gather(*(store.efficiency(now - length) for length in lengths.values()))
    if output.json:
        output.document(at=now, windows=[{"window": name, **row} for name, row in zip(lengths, rows, strict=True)])
        return
    output.show(_facts(lengths, rows) if output.narrow else _wide(lengths, rows))


def _wide(names: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each window."""
    shown = table("window", *NAMES)
    for name, row in zip(names, rows, strict=True):
        shown.add_row(name, *_cells(row))
    return shown


def _facts(names: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """A column for each window: all of them fit 80 columns."""
    shown = table("", *names)
    for name, *cells in zip(NAMES, *map(_cells, rows), strict=True):
        shown.add_row(name, *cells)
    return shown


def _cells(row: Mapping[str, Any]) -> list[str]:
    counts = [str(row[key]) for key in ("completed", "failed", "failed_attempts")]
    depth = [f"{row['tasks_per_hour']:g}", f"{queued(row['queue_now'])}", f"{row['queue_mean']:g}"]
    times = [span(row[key]) for key in ("wait_p50_s", "wait_p95_s", "run_p50_s")]
    used = "–" if row["utilisation"] is None else f"{row['utilisation']:.0%}"
    return [*counts, *depth, *times, used, usd(float(row["usd"])), usd(row["usd_per_task"], 4)]


def _length(text: str) -> timedelta:
    match = SPAN.fullmatch(text)
    if not match or not int(match[1]):
        raise Failure(BAD_ARGUMENT, why=f"--window {text!r} is not a span (90m, 24h, 7d, 2w)")
    return int(match[1]) * UNITS[match[2]]
