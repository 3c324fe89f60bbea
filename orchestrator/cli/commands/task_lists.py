"""`tasks list` and `tasks watch`: tasks by status, type, pool, age, tenant and labels."""

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.cli import options
from orchestrator.cli.known_names import require_known
from orchestrator.cli.output import Output, json_option
from orchestrator.cli.session import find_task_id, opened_store, runs, utcnow
from orchestrator.cli.task_follow import follow
from orchestrator.cli.task_rows import counted_by_status, listing, waits_for_worker
from orchestrator.cli.watching import WatchedView, watch
from orchestrator.cli.worker_rows import warning
from orchestrator.diagnostics import first_cause

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore

STATUSES = ("Queued", "In Progress", "Complete", "Failed", "Cancelled")
F = TypeVar("F", bound=Callable[..., Any])


def filtered(command: F) -> F:
    """Add the options that select tasks."""
    for add in (
        click.option("--tenant", help="Only tasks of this tenant."),
        click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Only this label; may be repeated."),
        click.option("--since", help="Only tasks submitted since then: a span (90m, 24h, 7d), or a time (ISO 8601)."),
        click.option("--pool", help="Only this pool."),
        click.option("--type", "task_type", help="Only this task type."),
        click.option(
            "--status",
            "statuses",
            type=options.Choice(STATUSES, case_sensitive=False),
            multiple=True,
            help="Only this status; may be repeated.",
        ),
    ):
        command = add(command)
    return command


def wanted(
    *,
    statuses: Sequence[str],
    task_type: str | None,
    pool: str | None,
    since: str | None,
    labels: Sequence[str],
    tenant: str | None,
) -> dict[str, Any]:
    """Return the filter for task_find(). Raises Failure."""
    given = {"type": task_type, "pool": pool, "tenant": tenant, "labels": options.labels(labels) or None}
    found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if statuses:
        found["status"] = list(statuses)
    if since:
        found["since"] = options.since(since, utcnow()).isoformat()
    return found


@click.command("list")
@filtered
@click.option(
    "--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="How many, the newest first."
)
@json_option
@click.pass_obj
@runs
async def list_tasks(output: Output, limit: int, **selected: Any) -> None:
    """List the newest tasks, one line each, and the counts by status. A queued task shows what it waits for."""
    async with opened_store() as store:
        await require_known(store, pool=selected["pool"], task_type=selected["task_type"])
        seen = await _ask(store, output, wanted(**selected), limit)
    if output.json:
        output.document(**seen.document)
        return
    output.show(seen.body)
    if seen.warning:
        output.say(seen.warning)


@click.command("watch", short_help="Follow one task to its end, or refresh the list.")
@click.argument("task", required=False)
@filtered
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="How many are listed.")
@json_option
@click.pass_obj
@runs
async def watch_tasks(output: Output, task: str | None, limit: int, **selected: Any) -> None:
    """Follow TASK until it ends: its progress, attempts and result. Exit 1 unless it is Complete.

    Without TASK, refresh the list every few seconds, until Ctrl-C.
    """
    async with opened_store() as store:
        if task:
            await follow(store, output, await find_task_id(store, task))
        else:
            await require_known(store, pool=selected["pool"], task_type=selected["task_type"])
            await watch(output, functools.partial(_ask, store, output, wanted(**selected), limit))


async def _ask(store: "SqlStore", output: Output, selected: Mapping[str, Any], limit: int) -> WatchedView:
    found, leads = await asyncio.gather(store.find.tasks(selected, limit, full=output.json), store.leadership())
    rows, counts, beyond = found["tasks"], found["counts"], found.get("counts_beyond", ())
    chosen = sum(n for status, n in counts.items() if status in selected.get("status", STATUSES))
    is_more = "more than " if set(beyond) & set(selected.get("status", STATUSES)) else ""
    none = "No tasks found" + (f" among the newest since {found['next']['created_at']}." if found.get("next") else ".")
    body: RenderableType = listing(rows, output, utcnow()) if rows else Text(none)
    counted = counted_by_status({status: counts[status] for status in STATUSES if status in counts}, beyond)
    summary = f"in all: {counted or 'none'}"
    if chosen > len(rows):
        summary = f"the newest {len(rows)} of {is_more}{chosen:,} are shown; --limit shows more\n{summary}"
    pools = {row["pool"] for row in rows if waits_for_worker(row)}
    cause = first_cause.of_standing(leads, pools) if pools else None
    if cause:
        summary += f"\n{warning(leads, pools)}"
    document = {
        "tasks": rows,
        "counts": counts,
        "counts_beyond": beyond,
        "first_cause": cause and dataclasses.asdict(cause),
    }
    return WatchedView(Group(body), document, summary)
