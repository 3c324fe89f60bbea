"""`tasks …`: the queue, from a terminal. Each command of the group is in a file of its own, except `show`."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from orchestrator.cli.commands.task_bulk import changes
from orchestrator.cli.commands.task_changes import cancel, retry
from orchestrator.cli.commands.task_import import import_tasks
from orchestrator.cli.commands.task_lists import list_tasks, watch_tasks
from orchestrator.cli.commands.task_outputs import show_outputs
from orchestrator.cli.commands.task_submit import submit
from orchestrator.cli.output import Output, json_option, one_line
from orchestrator.cli.session import find_task_id, opened_store, runs, utcnow
from orchestrator.cli.tables import facts, fit, stack, table
from orchestrator.diagnostics.amounts import ago, clock, relative, span
from orchestrator.diagnostics.tasks import progress
from orchestrator.errors import NO_TASK, Failure
from orchestrator.observability.redaction import plain

OURS = ("uncounted", "blocked")  # shown only if they are set


@click.group()
def tasks() -> None:
    """Submit, list, follow, cancel and retry tasks, and fetch their outputs. A TASK is an id or its first digits."""


@tasks.command(short_help="Show everything about one task.")
@click.argument("task")
@json_option
@click.pass_obj
@runs
async def show(output: Output, task: str) -> None:
    """Show everything about one task: its attempts, outputs and failures."""
    async with opened_store() as store:
        found = await store.task(await find_task_id(store, task))
    if not found.get("task"):
        raise Failure(NO_TASK, why=f"the database has no task {task}")
    if output.json:
        output.document(**found)
    else:
        _show(output, found["task"], found["attempts"], utcnow())


for command in (submit, list_tasks, watch_tasks, show_outputs, import_tasks, cancel, retry, changes):
    tasks.add_command(command)


def _show(output: Output, task: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]], now: datetime) -> None:
    first = ("id", "status", "task_type", "pool", "priority", "attempts", "max_attempts", "worker_id", "params")
    rest = [name for name in task if name not in first]
    named = {name: task.get(name) for name in (*first, *rest) if task.get(name) not in (None, [], {})}
    named = {name: value for name, value in named.items() if value or name not in OURS}
    output.show(facts({name: _value(name, value, now) for name, value in named.items()}))
    if attempts:
        output.show("", _tried(attempts, output, now))


def _tried(attempts: Sequence[Mapping[str, Any]], output: Output, now: datetime) -> RenderableType:
    """Return the table of attempts. On a narrow terminal, a failure is under its attempt."""
    cells: dict[str, list[str | Text]] = {n: [] for n in ("attempt", "worker", "started", "took", "outcome")}
    failures = []
    for row in attempts:
        ended = row.get("ended_at")
        took = None if not ended else (ago(row["started_at"], now) or 0) - (ago(ended, now) or 0)
        failure = ": ".join(str(row[name]) for name in ("failure_code", "exit_class", "message") if row.get(name))
        failures.append(Text(one_line(failure)))
        shown = (str(row["attempt"]), row["worker_id"], clock(row.get("started_at")), span(took), row.get("outcome"))
        for name, cell in zip(cells, shown, strict=True):
            cells[name].append(plain(cell or "–"))
    if any(failures):
        tried = fit(cells, failures, output, layouts=[tuple(cells)], title="failure")
        return tried or stack(cells, failures, output, below=(), title="failure")
    only = table(*cells)
    for one in zip(*cells.values(), strict=True):
        only.add_row(*one)
    return only


def _value(name: str, value: Any, now: datetime) -> str:
    if name.endswith(("_at", "_after")):
        return f"{clock(value)}  ({relative(value, now)})"
    if name == "progress":
        return one_line(progress(value), 2_000)
    return plain(value) if isinstance(value, str) else one_line(value, 2_000)
