"""`tasks submit|list|show|cancel|retry`: the queue, from a terminal."""

import json
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import RenderableType

from orchestrator.cli.output import Output, ago, clock, json_option, numbers, one_line, relative, span
from orchestrator.cli.session import opened_store, runs, settings_for, utcnow
from orchestrator.cli.tables import Stacked, facts, state, table
from orchestrator.diagnostics.tasks import progress
from orchestrator.errors import BAD_ARGUMENT, NO_TASK, WRONG_STATE, Failure
from orchestrator.observability.redaction import plain

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings

STATUSES = ("Queued", "In Progress", "Complete", "Failed", "Cancelled")
MAX_PARAMS_BYTES = 1 << 20
OURS = ("uncounted", "blocked")  # of interest only when they say something


@click.group()
def tasks() -> None:
    """Submit, list, show, cancel and retry tasks."""


@tasks.command()
@click.option("--type", "task_type", required=True, help="What kind of task: names the handler.")
@click.option("--params", default="{}", show_default=True, help="A JSON object, @FILE, or @- for stdin.")
@click.option("--depends", multiple=True, metavar="ID", help="A task that must be Complete first; repeatable.")
@click.option("--dedupe-key", help="Submit nothing if a live task has this key.")
@click.option("--pool", help="Which workers may do it.")
@click.option("--priority", type=int, help="Higher goes first.")
@click.option("--max-attempts", type=click.IntRange(1, 100), help="Attempts before it counts as Failed.")
@click.option("--timeout-s", type=click.FloatRange(min=0, min_open=True), help="Seconds one attempt may take.")
@json_option
@click.pass_obj
@runs
async def submit(output: Output, task_type: str, params: str, depends: tuple[str, ...], **options: Any) -> None:
    """Put one task in the queue and print its id."""
    task = {"task_type": task_type, "params": _params(params), **{k: v for k, v in options.items() if v is not None}}
    if depends:
        task["depends_on"] = [_task_id(name) for name in depends]
    for doubt in _doubts(settings_for("database"), task_type, options["pool"]):
        output.say(doubt, "yellow")
    async with opened_store() as store:
        (made,) = await store.submit([task])
    if output.json:
        output.document(tasks=[made])
        return
    output.show(str(made["id"]))
    output.say("queued" if made["created"] else f"already there, by its dedupe key {options['dedupe_key']!r}")


@tasks.command("list")
@click.option("--status", type=click.Choice(STATUSES, case_sensitive=False), help="Only this status.")
@click.option("--type", "task_type", help="Only this kind.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="The newest so many.")
@json_option
@click.pass_obj
@runs
async def list_tasks(output: Output, status: str | None, task_type: str | None, limit: int) -> None:
    """The newest tasks, one line each, and how many there are by status."""
    async with opened_store() as store:
        found = await store.tasks(status=status, task_type=task_type, limit=limit)
    rows, counts = found["tasks"], found["counts"]
    if output.json:
        output.document(tasks=rows, counts=counts)
        return
    if rows:
        output.show(_listing(rows, output, utcnow()))
    else:
        output.show("No tasks found.")
    if len(rows) == limit:
        output.say(f"only the newest {limit} are shown; --limit shows more")
    output.say(f"in all: {numbers(counts) or 'none'}")


@tasks.command(short_help="Everything about one task.")
@click.argument("task_id")
@json_option
@click.pass_obj
@runs
async def show(output: Output, task_id: str) -> None:
    """Everything about one task: its attempts, what it left, how it failed."""
    async with opened_store() as store:
        found = await store.task(_task_id(task_id))
    if not found.get("task"):
        raise Failure(NO_TASK, why=f"the database has no task {task_id}")
    if output.json:
        output.document(**found)
    else:
        _show(output, found["task"], found["attempts"], utcnow())


@tasks.command(short_help="End a task, also one that runs.")
@click.argument("task_id")
@click.option("--force", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
@runs
async def cancel(output: Output, task_id: str, force: bool) -> None:
    """End a task: at once when it waits, through its worker when it runs."""
    output.confirm(f"Cancel task {task_id}?", force=force)
    async with opened_store() as store:
        answer = await store.cancel(_task_id(task_id))
    _known(answer, task_id)
    if output.json:
        output.document(**answer)
        return
    says = {"cancelled": "cancelled", "cancelling": "its worker is told to stop", "already": "it had ended already"}
    output.show(f"{task_id}: {says.get(answer['outcome'], answer['outcome'])} ({answer['status']})")


@tasks.command(short_help="Queue a task again that has ended badly.")
@click.argument("task_id")
@json_option
@click.pass_obj
@runs
async def retry(output: Output, task_id: str) -> None:
    """Queue a task again that has Failed or was Cancelled, with its attempts counted anew."""
    async with opened_store() as store:
        answer = await store.retry(_task_id(task_id))
    _known(answer, task_id)
    if answer["outcome"] == "not_ended":
        fix = f"python -m orchestrator tasks show {task_id}"
        raise Failure(WRONG_STATE, what=f"task {task_id} cannot be retried", why="it has not ended badly", fix=fix)
    if output.json:
        output.document(**answer)
    else:
        output.show(f"{task_id}: queued again")


def _doubts(settings: "Settings", task_type: str, pool: str | None) -> Iterator[str]:
    """Why nobody may ever do it, by the settings here."""
    handled, pools = [name for name, _ in settings.worker_handlers], [one.name for one in settings.policy().pools]
    if handled and task_type not in handled:
        yield f"WORKER_HANDLERS has none for {task_type!r}: it names {', '.join(handled)}"
    if pool and pool not in pools:
        yield f"there is no pool {pool!r}: it waits until POOLS_FILE has it; now there are {', '.join(pools)}"


def _known(answer: Mapping[str, Any], task_id: str) -> None:
    if answer["outcome"] == "not_found":
        raise Failure(NO_TASK, why=f"the database has no task {task_id}")


def _task_id(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise Failure(BAD_ARGUMENT, why=f"{text!r} is not a task id: those are UUIDs") from None


def _params(text: str) -> dict[str, Any]:
    """A JSON object, given or in a file. Raises Failure."""
    source = "--params"
    if text.startswith("@"):
        source = "stdin" if text == "@-" else text[1:]
        try:
            text = sys.stdin.read(MAX_PARAMS_BYTES + 1) if text == "@-" else Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Failure(BAD_ARGUMENT, what="the params cannot be read", why=f"{source}: {error}") from None
    try:
        params = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Failure(BAD_ARGUMENT, what="the params are not JSON", why=f"{source}: {error}") from None
    if not isinstance(params, dict) or len(text) > MAX_PARAMS_BYTES:
        kind = type(params).__name__ if len(text) <= MAX_PARAMS_BYTES else f"longer than {MAX_PARAMS_BYTES} bytes"
        raise Failure(BAD_ARGUMENT, what="the params must be one JSON object", why=f"{source} is {kind}")
    return params


def _listing(rows: Sequence[Mapping[str, Any]], output: Output, now: datetime) -> RenderableType:
    """One line per task; on a narrow terminal a second one with its type, its worker and the note."""
    ours = ("task", "status", "try", "age")
    shown = table(*ours) if output.narrow else table(*ours[:2], "type", *ours[2:], "worker", "note")
    seconds = ["type, worker, note"]
    for row in rows:
        name, worker, note = str(row["id"]), row.get("worker_id") or "–", _note(row)
        tries = f"{row.get('attempts') or 0}/{row.get('max_attempts') or '–'}"
        kind, age = one_line(row["task_type"], 30), span(ago(row["created_at"], now))
        if output.narrow:
            shown.add_row(name, state(row["status"]), tries, age)
            seconds.append(f"{kind}  {worker}  {note}")
        else:
            shown.add_row(name, state(row["status"]), kind, tries, age, worker, note)
    return Stacked(shown, seconds) if output.narrow else shown


def _note(row: Mapping[str, Any]) -> str:
    if row.get("cancel_requested_at") and row["status"] == "In Progress":
        return "being cancelled"
    if row["status"] in {"Failed", "Cancelled"}:
        return one_line(": ".join(filter(None, (row.get("failure_code"), row.get("error_message")))), 120)
    if row["status"] == "Complete":
        return one_line(row.get("output_location") or "")
    return one_line(progress(row["progress"]), 60) if row.get("progress") else ""


def _show(output: Output, task: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]], now: datetime) -> None:
    first = ("id", "status", "task_type", "pool", "priority", "attempts", "max_attempts", "worker_id", "params")
    rest = [name for name in task if name not in first]
    named = {name: task.get(name) for name in (*first, *rest) if task.get(name) not in (None, [], {})}
    named = {name: value for name, value in named.items() if value or name not in OURS}
    output.show(facts({name: _value(name, value, now) for name, value in named.items()}))
    if not attempts:
        return
    tried = table("attempt", "worker", "started", "took", "outcome", "failure")
    for row in attempts:
        ended = row.get("ended_at")
        took = None if not ended else (ago(row["started_at"], now) or 0) - (ago(ended, now) or 0)
        failure = ": ".join(str(row[name]) for name in ("failure_code", "exit_class", "message") if row.get(name))
        start = clock(row.get("started_at"))
        tried.add_row(
            str(row["attempt"]), row["worker_id"], start, span(took), row.get("outcome") or "–", one_line(failure)
        )
    output.show("", tried)


def _value(name: str, value: Any, now: datetime) -> str:
    if name.endswith(("_at", "_after")):
        return f"{clock(value)}  ({relative(value, now)})"
    if name == "progress":
        return one_line(progress(value), 2_000)
    return plain(value) if isinstance(value, str) else one_line(value, 2_000)
