"""`timeline <worker>`: events and attempts in order, with durations, gaps, holes, and the cost of each state."""

import dataclasses
from datetime import datetime

import click
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from orchestrator.cli.output import Output, json_option, one_line
from orchestrator.cli.session import find_worker, opened_store, runs
from orchestrator.cli.tables import STYLES, table
from orchestrator.diagnostics.amounts import ago, clock, span, usd
from orchestrator.diagnostics.timeline import Entry, by_state, entries

INDENT = {"state": "", "asked": "", "hole": ""}  # every other kind lies within a state
MISSING = {"gap": "yellow", "hole": "yellow"}


@click.command()
@click.argument("worker")
@json_option
@click.pass_obj
@runs
async def timeline(output: Output, worker: str) -> None:
    """Show all events of WORKER: its id, the end of its id, or its pod's id. Exit 3 if there is no such worker."""
    async with opened_store() as store:
        found = await find_worker(store, worker)
    now, row = datetime.fromisoformat(found["now"]), found["worker"]
    made, states = entries(found), by_state(found)
    if output.json:
        listed = [dataclasses.asdict(entry) | {"seconds": round(entry.seconds(now), 3)} for entry in made]
        sums = [dataclasses.asdict(state) for state in states]
        output.document(worker_id=row["id"], at=found["now"], entries=listed, states=sums, usd=row["cost_usd"])
        return
    output.show(Text.assemble((row["id"], "bold"), f"  created {clock(row['created_at'])}"))
    output.show(narrow(made, row["created_at"], now) if output.narrow else wide(made, row["created_at"], now))
    sums_table = table("state", "took", "cost")
    for state in states:
        sums_table.add_row(Text(state.state, style=STYLES.get(state.state, "")), span(state.seconds), usd(state.usd, 4))
    sums_table.add_row("in all", span(sum(state.seconds for state in states)), usd(row["cost_usd"], 4), style="bold")
    output.show("", sums_table)


def wide(made: tuple[Entry, ...], created_at: str, now: datetime) -> Table:
    """Return one line per entry."""
    shown = table("time", "after", "took", "what", "note")
    for entry in made:
        after, took, what, note = _cells(entry, created_at, now)
        shown.add_row(f"{entry.at:%H:%M:%S}", after, took, what, note)
    return shown


def narrow(made: tuple[Entry, ...], created_at: str, now: datetime) -> Table:
    """Return each note under its entry, to fit 80 columns."""
    shown = table("after", "took", "what")
    for entry in made:
        after, took, what, note = _cells(entry, created_at, now)
        shown.add_row(after, took, Group(what, Padding(note, (0, 0, 0, 4))) if note else what)
    return shown


def _cells(entry: Entry, created_at: str, now: datetime) -> tuple[str, str, Text, str]:
    after = (ago(created_at, now) or 0) - (ago(entry.at, now) or 0)
    instant = entry.until == entry.at
    took = "" if instant else span(entry.seconds(now)) + ("…" if entry.until is None else "")
    style = STYLES.get(entry.what, "") if entry.kind == "state" else MISSING.get(entry.kind, "")
    return (
        f"+{span(after)}",
        took,
        Text(INDENT.get(entry.kind, "  ") + entry.what, style=style),
        one_line(entry.note, 300),
    )
