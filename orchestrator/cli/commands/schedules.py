"""`schedules`: recurring tasks."""

import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from orchestrator.cli import options
from orchestrator.cli.output import Output, json_option
from orchestrator.cli.session import actor, runs, settings_for, utcnow
from orchestrator.cli.tables import table
from orchestrator.diagnostics.amounts import relative
from orchestrator.errors import BAD_ARGUMENT, NO_SCHEDULE, Failure

if TYPE_CHECKING:
    from orchestrator.adapters.schedule_store import ScheduleStore

Row = Mapping[str, Any]


@click.group()
def schedules() -> None:
    """Submit a task again and again: at times of a cron expression, or at an interval."""


@asynccontextmanager
async def _opened() -> "AsyncIterator[ScheduleStore]":
    settings = settings_for("database")
    from orchestrator import wiring

    async with wiring.open_schedules(settings) as store:
        yield store


@schedules.command()
@click.argument("name")
@click.option("--cron", help='Minute, hour, day, month, weekday: "0 2 * * *".')
@click.option("--every", metavar="SPAN", help="An interval: 30s, 15m, 2h, 1d.")
@click.option("--timezone", default="UTC", show_default=True, help="The time zone of --cron, such as Europe/Berlin.")
@click.option("--type", "task_type", required=True, help="The task type, which selects the handler.")
@click.option("--params", default="{}", show_default=True, help="A JSON object, @FILE, or @- for stdin.")
@click.option("--pool", help="The pool whose workers may run it.")
@click.option("--priority", type=int, help="A higher number runs first.")
@click.option("--max-attempts", type=click.IntRange(1, 100), help="Attempts before it counts as Failed.")
@click.option("--timeout-s", type=click.FloatRange(min=0, min_open=True), help="Seconds one attempt may take.")
@click.option("--tenant", help="On whose behalf it runs.")
@click.option("--concurrency-key", help="Of the tasks with this key, one runs at a time, or as many as its limit says.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label; may be repeated.")
@click.option(
    "--overlap", type=options.Choice(["skip", "queue"]), default="skip", show_default=True,
    help="What to do when the task of the last due time has not ended.",
)  # fmt: skip
@click.option(
    "--catch-up", type=options.Choice(["none", "once"]), default="none", show_default=True,
    help="After an outage: nothing, or one task for all missed due times.",
)  # fmt: skip
@json_option
@click.pass_obj
@runs
async def add(output: Output, name: str, task_type: str, params: str, labels: tuple[str, ...], **given: Any) -> None:
    """Add a schedule, or replace the one of this name."""
    from orchestrator.leader_jobs.schedules import ScheduleError, due_times

    every, now = given.pop("every"), utcnow()
    terms = {key: given.pop(key) for key in ("cron", "timezone", "overlap", "catch_up")}
    if (terms["cron"] is None) == (every is None):
        raise Failure(BAD_ARGUMENT, why="a schedule needs either --cron or --every")
    terms["every_s"] = int((options.later(every, now, "--every") - now).total_seconds()) if every else None
    task = {"task_type": task_type, "params": options.params(params)}
    task |= {key: value for key, value in given.items() if value is not None}
    if labels:
        task["labels"] = options.labels(labels)
    try:
        next(due_times({**terms, "created_at": now.isoformat()}, now))
    except ScheduleError as error:
        raise Failure(BAD_ARGUMENT, what="the schedule cannot be used", why=str(error)) from None
    async with _opened() as store:
        put = await store.put({"name": name, "task": task, **terms}, actor=actor())
    due, what = _due(put["schedule"], datetime.fromisoformat(put["now"]))
    if output.json:
        output.document(name=name, created=put["created"], next_at=due)
    else:
        done, which = ("added", "first") if put["created"] else ("replaced", "next")
        what = what if due is None else f"{which} due {_local(due, terms['timezone'])}"
        output.show(f"{done} {name}: {what}")


@schedules.command("list")
@json_option
@click.pass_obj
@runs
async def listed(output: Output) -> None:
    """List the schedules: when each is due, and what came of the last due time."""
    async with _opened() as store:
        found = await store.all()
    if output.json:
        output.document(**found)
        return
    now, shown = datetime.fromisoformat(found["now"]), table("schedule", "task type", "when", "next", "last")
    for one in found["schedules"]:
        shown.add_row(one["name"], one["task_type"], _rule(one), _next(one, now), _last(one, now))
    output.show(shown if found["schedules"] else "No schedules found.")


@schedules.command("next")
@click.argument("name")
@click.option("-n", "count", type=click.IntRange(1, 100), default=5, show_default=True, help="How many due times.")
@json_option
@click.pass_obj
@runs
async def upcoming(output: Output, name: str, count: int) -> None:
    """Show the next due times of a schedule, and what came of the last one."""
    from orchestrator.leader_jobs.schedules import ScheduleError, due_times

    async with _opened() as store:
        found = await store.all()
    one, now = next((row for row in found["schedules"] if row["name"] == name), None), found["now"]
    if one is None:
        raise Failure(NO_SCHEDULE, what=f"no schedule {name!r}", why="the database has none of this name")
    try:
        times = list(itertools.islice(due_times(one, datetime.fromisoformat(now)), count))
    except ScheduleError as error:
        raise Failure(BAD_ARGUMENT, what=f"{name} is never due", why=str(error)) from None
    if output.json:
        output.document(schedule=one, next=times)
        return
    output.show(f"{name}: {_rule(one)}; {_next(one, datetime.fromisoformat(now))}")
    output.show(f"last run {_last(one, datetime.fromisoformat(now))}")
    for time in times:
        output.show(f"  {_local(time, one['timezone'])}")


@schedules.command()
@click.argument("name")
@click.pass_obj
@runs
async def pause(output: Output, name: str) -> None:
    """Pause a schedule. Tasks that it has submitted are not affected."""
    await _set_paused(output, name, paused=True)


@schedules.command()
@click.argument("name")
@click.pass_obj
@runs
async def resume(output: Output, name: str) -> None:
    """Resume a schedule, from its next due time on."""
    await _set_paused(output, name, paused=False)


@schedules.command()
@click.argument("name")
@options.force_option
@click.pass_obj
@runs
async def remove(output: Output, name: str, force: bool) -> None:
    """Remove a schedule with the record of its due times. Tasks that it has submitted stay."""
    output.confirm(f"Remove the schedule {name}?", force=force)
    async with _opened() as store:
        if not await store.remove(name, actor=actor()):
            raise Failure(NO_SCHEDULE, what=f"no schedule {name!r}", why="the database has none of this name")
    output.show(f"removed {name}")


async def _set_paused(output: Output, name: str, *, paused: bool) -> None:
    async with _opened() as store:
        if not await store.pause(name, paused=paused, actor=actor()):
            raise Failure(NO_SCHEDULE, what=f"no schedule {name!r}", why="the database has none of this name")
    output.show(f"{'paused' if paused else 'resumed'} {name}")


def _due(one: Row, now: datetime) -> tuple[datetime | None, str]:
    """Return the due time that comes next, or None and why."""
    from orchestrator.leader_jobs.schedules import ScheduleError, next_due

    if one["problem"] or one["paused_at"]:
        return None, _next(one, now)
    try:
        return next_due(one, now), ""
    except ScheduleError as error:
        return None, f"never: {error}"


def _rule(one: Row) -> str:
    return f"every {one['every_s']} s" if one["cron"] is None else f"{one['cron']} {one['timezone']}"


def _next(one: Row, now: datetime) -> str:
    if one["problem"]:
        return f"never: {one['problem']}"
    if one["paused_at"]:
        return "paused"
    return "soon" if one["next_at"] is None else f"next {relative(one['next_at'], now)}"


def _last(one: Row, now: datetime) -> str:
    last = one["last_run"]
    if last is None:
        return "–"
    what = last["reason"] or f"task {last['task_id']}"
    return f"{last['outcome']} {relative(last['due_at'], now)}: {what}"


def _local(time: datetime, timezone: str) -> str:
    return f"{time.astimezone(ZoneInfo(timezone)):%Y-%m-%d %H:%M:%S} {timezone}"
