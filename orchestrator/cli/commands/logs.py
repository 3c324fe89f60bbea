"""`logs`: a worker's log from wherever it is: S3 (cli_log_reader.py), its pod, the database (cli_log_places.py)."""

import asyncio
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.commands.workers import NOBODY
from orchestrator.cli.log_fallbacks import in_the_database, on_the_pod
from orchestrator.cli.log_reader import Reader
from orchestrator.cli.output import Output, json_option
from orchestrator.cli.session import find_worker, opened_store, runs, settings_for
from orchestrator.cli.worker_rows import is_live
from orchestrator.errors import BAD_ARGUMENT, NO_BUCKET, NO_TASK, Failure
from orchestrator.observability.redaction import plain
from worker.protocol import STREAMS

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore
    from orchestrator.config.settings import Settings

FOLLOW_EVERY_S = 2.0
DEFAULT_LINES = 200
TASK_STREAM = "handler"  # whose offsets attempts keep


@click.command()
@click.argument("worker", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is shipped, until the worker's end or Ctrl-C.")
@click.option("--stream", type=click.Choice(STREAMS), help="Only this stream; all of them otherwise.")
@click.option(
    "--lines", type=click.IntRange(min=0), default=DEFAULT_LINES, show_default=True, help="Of each stream; 0: all."
)
@click.option("--task", "task_id", help="What was written while this task ran, in each of its attempts.")
@json_option
@click.pass_obj
@runs
async def logs(
    output: Output, worker: str | None, *, follow: bool, stream: str | None, lines: int, task_id: str | None
) -> None:
    """A worker's log, live or ended; of every live worker when none is named. Lines bear their stream's name.

    Read from S3, where log bytes arrive a few seconds after they are written; where it has none, over SSH from the
    pod; where that is gone, what the database kept. Which of them is said on stderr, and so are bytes that were lost.
    """
    streams = (stream,) if stream else STREAMS
    settings = settings_for("database")
    async with opened_store() as store:
        if task_id:
            await _task(store, settings, output, task_id, worker)
            return
        names = [worker] if worker else [row["id"] for row in await store.workers()]
        if not names:
            output.say(NOBODY)
        readers = []
        for name in names:
            found = await find_worker(store, name)
            if len(names) > 1:
                output.say(f"==> {found['worker']['id']} <==", "bold")
            readers.append(await _one(store, settings, output, found, streams, lines, whole=not follow))
        following = [reader for reader in readers if reader is not None] if follow else []
        if following and output.interactive:
            output.say("following: what is shipped next comes here; Ctrl-C ends it", "dim")
        while following:
            await asyncio.sleep(FOLLOW_EVERY_S)
            following = [reader for reader in following if await reader.more()]


async def _one(
    store: "SqlStore",
    settings: "Settings",
    output: Output,
    found: Mapping[str, Any],
    streams: Sequence[str],
    lines: int,
    *,
    whole: bool,
) -> "Reader | None":
    """One worker's log from the first place that has any; its reader, where there is a bucket to follow."""
    from orchestrator.config.validation import lacks

    row, name = found["worker"], found["worker"]["id"]
    reader = None
    why = lacks(settings, "blobs")
    if why is None:
        from orchestrator import wiring

        reader = Reader(store, wiring.open_blobs(settings), name, streams, output)
        try:
            if await reader.tail(lines, whole=whole):
                output.say(f"{name}: from S3")
                if whole:
                    reader.closing_words(row)
                return reader
            why = "nothing was shipped yet" if is_live(row) else "nothing was ever shipped"
        except Failure as failure:
            if failure.kind is not NO_BUCKET:
                raise
            why = failure.why
    output.say(f"{name}: not from S3: {why}", "yellow")
    said = await on_the_pod(settings, row, streams, lines) if is_live(row) else "it has ended"
    if not isinstance(said, str) and any(said.values()):
        output.say(f"{name}: live over SSH from its pod")
        for stream, texts in said.items():
            _write(output, stream, texts, named=len(streams) > 1)
        return reader
    output.say(f"{name}: not over SSH: {said if isinstance(said, str) else 'its log files are empty'}", "yellow")
    kept = in_the_database(found, lines)
    output.say(f"{name}: from the database ({len(kept)} lines); the log's own bytes are missing")
    _write(output, "database", kept, named=True)
    return reader


async def _task(store: "SqlStore", settings: "Settings", output: Output, task_id: str, worker: str | None) -> None:
    """The handler's log between the begin and the end of each attempt at a task. Raises Failure."""
    from orchestrator.config.validation import lacks

    try:
        found = await store.task(uuid.UUID(task_id))
    except ValueError:
        raise Failure(BAD_ARGUMENT, why=f"{task_id!r} is not a task id: those are UUIDs") from None
    if not found["task"]:
        raise Failure(NO_TASK, why=f"the database has no task {task_id}")
    attempts = [one for one in found["attempts"] if not worker or one["worker_id"].endswith(worker)]
    if not attempts:
        output.say(f"Task {task_id} was never claimed" + (f" by {worker}." if worker else "."))
    blobs = None
    if (why := lacks(settings, "blobs")) is None:
        from orchestrator import wiring

        blobs = wiring.open_blobs(settings)
    for one in attempts:
        head = f"attempt {one['attempt']} on {one['worker_id']}: {one['outcome'] or 'running'}"
        if blobs is not None:
            reader = Reader(store, blobs, one["worker_id"], (TASK_STREAM,), output)
            missing = await reader.cut(one, found["task"]["id"])
            output.say(f"{head}: from S3" + (f"; {missing}" if missing else ""))
        else:
            output.say(f"{head}: from the database; not from S3: {why}", "yellow")
            _write(output, "database", [one["message"]] if one.get("message") else [], named=True)


def _write(output: Output, stream: str, texts: Iterable[str], *, named: bool) -> None:
    for text in texts:
        if output.json:
            output.document(stream=stream, line=text)
        else:
            sys.stdout.write(f"{stream:<7} | {plain(text)}\n" if named else f"{plain(text)}\n")
    sys.stdout.flush()
