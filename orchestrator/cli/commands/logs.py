"""`logs`: workers' logs from S3 (log_reader.py), or from their pods or the database (log_fallbacks.py)."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.commands.workers import NOBODY
from orchestrator.cli.log_fallbacks import DATABASE, each, in_the_database, on_the_pod
from orchestrator.cli.log_lines import LogLine, LogPrinter, merged
from orchestrator.cli.log_reader import Reader
from orchestrator.cli.options import Choice
from orchestrator.cli.output import Output, json_option
from orchestrator.cli.session import find_task_id, find_worker, opened_store, runs, settings_for
from orchestrator.cli.worker_rows import is_live
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import moment
from orchestrator.errors import NO_BUCKET, NO_TASK, Failure
from worker.protocol import STREAMS

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore
    from orchestrator.config.settings import Settings

FOLLOW_EVERY_S = 2.0
DEFAULT_LINES = 200
DEFAULT_STREAMS = ("handler", "system")
TASK_STREAM = "handler"  # whose offsets attempts keep
AT_ONCE = 8  # workers that are asked at the same time


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a command line asks for."""

    streams: Sequence[str]
    lines: int
    follow: bool


@click.command()
@click.argument("workers", nargs=-1, metavar="[WORKER]...")
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the workers' end or Ctrl-C.")
@click.option(
    "--stream",
    "streams",
    type=Choice(STREAMS),
    multiple=True,
    default=DEFAULT_STREAMS,
    show_default=True,
    help="Only this stream; may be repeated.",
)
@click.option(
    "--lines", type=click.IntRange(min=0), default=DEFAULT_LINES, show_default=True, help="Of each stream; 0: all."
)
@click.option("--task", "task_id", help="The log of this task, for each of its attempts.")
@click.option("--raw", is_flag=True, help="Only the text of each line, as it was written.")
@partial(json_option, text="One JSON object per line on stdout.")
@click.pass_obj
@runs
async def logs(
    output: Output, *, workers: Sequence[str], streams: Sequence[str], task_id: str | None, raw: bool, **given: Any
) -> None:
    """Show the logs of live or ended workers, or of all live workers, merged in the order of time.

    Each line has its time (UTC), its worker if there are several, and its stream. A ~ marks a line without a time of
    its own: the time is that of the line before it, or of its upload. The agent's own log is the stream `agent`.

    The log comes from S3, where bytes arrive a few seconds after they are written. If S3 has none, it comes from the
    pod over SSH; if the pod is gone, from the database. stderr names the source, and bytes that were lost.
    """
    settings = settings_for("database")
    async with opened_store() as store:
        if task_id:
            await _task(store, settings, output, task_id, workers[0] if workers else None, raw=raw)
            return
        names = workers or [row["id"] for row in await store.workers()]
        found = [await find_worker(store, name) for name in names]
        if not found:
            output.say(NOBODY)
        printer = LogPrinter(output, [one["worker"]["id"] for one in found], raw=raw)
        await _show(store, settings, output, found, printer, _Asked(streams, **given))


async def _show(
    store: "SqlStore",
    settings: "Settings",
    output: Output,
    found: Sequence[Mapping[str, Any]],
    printer: LogPrinter,
    asked: _Asked,
) -> None:
    """Print the last lines of each worker, and follow those whose log is in S3."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(rows: Mapping[str, Any]) -> tuple[Reader | None, list[AsyncIterator[LogLine]]]:
        async with slots:
            return await _sources(store, settings, output, rows, asked)

    answers = await asyncio.gather(*map(one, found))
    some = await _print(printer, [source for _, sources in answers for source in sources])
    if found and not some and "agent" not in asked.streams:
        output.say("there is no such line; --stream agent shows the log of the agent", "dim")
    following = [reader for reader, _ in answers if reader is not None] if asked.follow else []
    if not asked.follow:
        for (reader, _), rows in zip(answers, found, strict=True):
            if reader is not None and (missing := reader.not_shipped(rows["worker"])):
                output.say(f"{reader.worker_id}: {missing}" if len(found) > 1 else missing)
    if following and output.interactive:
        output.say("following the log; Ctrl-C ends it", "dim")
    while following:
        await asyncio.sleep(FOLLOW_EVERY_S)
        fresh = [await reader.fresh() for reader in following]
        await _print(printer, [source for sources, _ in fresh for source in sources])
        for reader, (_, more) in zip(following, fresh, strict=True):
            if not more:
                output.say(f"{reader.worker_id} has ended; the log is complete.")
        following = [reader for reader, (_, more) in zip(following, fresh, strict=True) if more]


async def _print(printer: LogPrinter, sources: Sequence[AsyncIterator[LogLine]]) -> bool:
    """Print the lines in the order of time. Return whether there was one."""
    some = False
    async for line in merged(sources):
        printer.show(line)
        some = True
    printer.end()
    return some


async def _sources(
    store: "SqlStore", settings: "Settings", output: Output, found: Mapping[str, Any], asked: _Asked
) -> tuple[Reader | None, list[AsyncIterator[LogLine]]]:
    """Return one worker's lines from the first place that has them, and its reader if there is a bucket to follow."""
    from orchestrator.config.validation import lacks

    row, name = found["worker"], found["worker"]["id"]
    reader = None
    why = lacks(settings, "blobs")
    if why is None:
        from orchestrator import wiring

        reader = Reader(store, wiring.open_blobs(settings), name, asked.streams)
        try:
            if await reader.load():
                output.say(f"{name}: from S3")
                return reader, reader.tails(asked.lines, whole=not asked.follow)
            why = "nothing was shipped yet" if is_live(row) else "nothing was ever shipped"
        except Failure as failure:
            if failure.kind is not NO_BUCKET:
                raise
            why = failure.why
    output.say(f"{name}: not from S3: {why}", "yellow")
    on_pod = await on_the_pod(settings, row, asked.streams, asked.lines) if is_live(row) else "it has ended"
    if not isinstance(on_pod, str) and any(on_pod.values()):
        output.say(f"{name}: live over SSH from its pod")
        return reader, [each(name, stream, texts) for stream, texts in on_pod.items()]
    output.say(f"{name}: not over SSH: {on_pod if isinstance(on_pod, str) else 'its log files are empty'}", "yellow")
    kept = in_the_database(found, asked.lines)
    there = counted(len(kept), "line")
    output.say(f"{name}: from the database, {there}. Its log is missing: no part of it was stored.")
    return reader, [_listed(kept)]


async def _listed(lines: Sequence[LogLine]) -> AsyncIterator[LogLine]:
    for line in lines:
        yield line


async def _task(
    store: "SqlStore", settings: "Settings", output: Output, task_id: str, worker: str | None, *, raw: bool
) -> None:
    """Print the handler's log of each attempt at a task. Raises Failure."""
    from orchestrator.config.validation import lacks

    found = await store.task(await find_task_id(store, task_id))
    if not found["task"]:
        raise Failure(NO_TASK, why=f"the database has no task {task_id}")
    if worker:
        worker = str((await find_worker(store, worker))["worker"]["id"])
    attempts = [one for one in found["attempts"] if worker in (None, one["worker_id"])]
    if not attempts:
        output.say(f"Task {found['task']['id']} was never claimed" + (f" by {worker}." if worker else "."))
    printer, blobs = LogPrinter(output, [one["worker_id"] for one in attempts], raw=raw), None
    if (why := lacks(settings, "blobs")) is None:
        from orchestrator import wiring

        blobs = wiring.open_blobs(settings)
    for one in attempts:
        head = f"attempt {one['attempt']} on {one['worker_id']}: {one['outcome'] or 'running'}"
        if blobs is not None:
            reader = Reader(store, blobs, one["worker_id"], (TASK_STREAM,))
            missing = await reader.cut(one, found["task"]["id"], printer.show)
            printer.end()
            output.say(f"{head}: from S3" + (f"; {missing}" if missing else ""))
            continue
        output.say(f"{head}: from the database; not from S3: {why}", "yellow")
        at = moment(one["ended_at"] or one["started_at"])
        if one.get("message"):
            printer.show(LogLine(at, True, one["worker_id"], DATABASE, one["message"]))
        printer.end()
