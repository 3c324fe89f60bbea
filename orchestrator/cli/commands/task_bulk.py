"""`tasks cancel|retry --background` and `tasks changes`: the leader changes all tasks that a filter selects."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.commands.task_lists import wanted
from orchestrator.cli.known_names import require_known
from orchestrator.cli.options import force_option
from orchestrator.cli.output import Output, json_option, one_line
from orchestrator.cli.session import actor, opened_store, runs
from orchestrator.cli.tables import facts, table
from orchestrator.core.api_tokens import TokenHolder
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import clock, relative, span
from orchestrator.diagnostics.task_changes import cost_text, count_text, filter_text, state, took_s
from orchestrator.errors import BAD_ARGUMENT, NO_CHANGE, Failure

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore

LISTED = 50
Row = Mapping[str, Any]
background_option = click.option(
    "--background", is_flag=True, help="The leader does it; `tasks changes` shows how far it is, and stops it."
)


async def in_background(
    store: "SqlStore", output: Output, action: str, tasks: Sequence[str], selected: Mapping[str, Any], *, force: bool
) -> int:
    """Count what the options select, ask, and start the change. Return the exit code. Raises Failure."""
    chosen = wanted(**selected)
    if tasks or not chosen:
        why = "--background is for tasks that --status, --type, --pool, --since, --label or --tenant select"
        raise Failure(BAD_ARGUMENT, why=why)
    await require_known(store, pool=selected["pool"], task_type=selected["task_type"])
    chosen["task_type"] = chosen.pop("type", None)
    chosen["labels"] = [{key: value} for key, value in chosen.pop("labels", {}).items()]
    if not force:
        seen = await store.api.task_changes.preview(_holder(), action, chosen)
        output.confirm(f"{cost_text(action, seen)}\n{action.capitalize()} {count_text(seen)}?", force=False)
    started = await store.api.task_changes.start(_holder(), action, chosen, key=None)
    if output.json:
        output.document(**started)
        return 0
    output.show(str(started["id"]))
    output.say(f"The leader does it. Follow it: python -m orchestrator tasks changes {started['id']}")
    return 0


@click.command("changes", short_help="Show or stop what --background has started.")
@click.argument("change", required=False, type=click.IntRange(1, 2**62))
@click.option("--stop", is_flag=True, help="End it. What is changed stays changed.")
@force_option
@json_option
@click.pass_obj
@runs
async def changes(output: Output, change: int | None, stop: bool, force: bool) -> None:
    """List the actions on all tasks of a filter, show CHANGE, or stop it.

    Pages and the API start them too.
    """
    if stop and change is None:
        raise Failure(BAD_ARGUMENT, why="--stop needs the number of the change")
    async with opened_store() as store:
        rows = store.api.task_changes
        if change is None:
            found = await rows.all(_holder(), LISTED)
            _list(output, found)
            return
        row = await rows.one(_holder(), change)
        if row is None:
            raise Failure(NO_CHANGE, what=f"no change {change}", why="the database has none with this number")
        if stop:
            output.confirm(f"Stop change {change}, which has changed {counted(row['changed'], 'task')}?", force=force)
            outcome = (await rows.stop(_holder(), change))["outcome"]
            row = await rows.one(_holder(), change) or row
            output.say("stopped" if outcome == "stopped" else "it had ended already")
    if output.json:
        output.document(now=row["now"], changes=[{name: value for name, value in row.items() if name != "now"}])
    else:
        output.show(facts(_facts(row)))


def _list(output: Output, found: Row) -> None:
    if output.json:
        output.document(**found)
        return
    now = datetime.fromisoformat(found["now"])
    shown = table("id", "action", "state", "changed", "refused", "when", "filter")
    for one in found["changes"]:
        counts = [f"{one[name]:,}" for name in ("changed", "refused")]
        about = one_line(filter_text(one["filter"]))
        shown.add_row(str(one["id"]), one["action"], state(one), *counts, relative(one["created_at"], now), about)
    output.show(shown if found["changes"] else "No changes found.")


def _facts(row: Row) -> dict[str, str]:
    seconds = took_s(row, row["now"])
    speed = f", {row['looked'] / seconds:,.0f} a second" if seconds else ""
    named = {
        "id": str(row["id"]),
        "action": f"{row['action']}: {filter_text(row['filter'])}",
        "state": state(row) + (f" by {row['stopped_by']}" if row["stopped_by"] else ""),
        "by": row["actor"],
        "asked for": clock(row["created_at"]),
        "changed": f"{row['changed']:,}",
        "refused": f"{row['refused']:,}" + (f"; the first: {row['refusal']}" if row["refusal"] else ""),
        "locked": f"{row['locked']:,}, which are tried again" if row["locked"] else "",
        "looked at": f"{row['looked']:,}{speed}",
        "took": span(seconds) if row["ended_at"] else "",
    }
    return {name: one_line(value, 600) for name, value in named.items() if value}


def _holder() -> TokenHolder:
    """The person at the terminal, who sees every task."""
    return TokenHolder(actor(), frozenset())
