"""The steps of the demo: set up, submit, watch, kill a pod, wait until nothing is left, count."""

import asyncio
import contextlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from psycopg import AsyncConnection

from demo.kill_pod import PodKill, kill_a_busy_pod
from demo.narrator import Narrator
from demo.sample_images import found, paint
from demo.summary import show
from demo.video import NotAVideo, fetch
from demo.workload import Job, plan_job, upload
from orchestrator.adapters.store import SqlStore
from orchestrator.core.plurals import counted
from orchestrator.ports import NotFound
from testbed.audit import count, faults
from testbed.services.processes import Child, ChildFailed
from testbed.stack import FLEET, Stack, Transport

SCHEMA_VERSION = 1
SAMPLE_IMAGES = 6
LIMIT_S = 300.0  # for the whole job; unfinished tasks count as lost
POLL_S = 0.25
REST = """
    select not exists (select 1 from tasks where status in ('Queued', 'In Progress'))
       and not exists (select 1 from workers where status <> 'terminated') as rest
"""
KILLED = """
    select t.status::text as status, a.worker_id
      from tasks t left join task_attempts a on a.task_id = t.id and a.outcome = 'complete' where t.id = %s
"""
Sql = AsyncConnection[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command."""

    images: Path | None
    tasks: int | None
    seed: int
    keep: bool
    directory: Path
    transport: Transport = "direct"
    verbose: bool = False


async def run_scenario(options: Options) -> dict[str, Any]:
    """Run the demo. Return its summary, with `ok` and what was `wrong`."""
    narrator = Narrator(verbose=options.verbose)
    status = asyncio.create_task(narrator.accompany())
    try:
        return await _run(options, narrator, status)
    finally:
        status.cancel()


async def _run(options: Options, narrator: Narrator, status: "asyncio.Task[None]") -> dict[str, Any]:
    began_s = time.monotonic()
    parts = "PostgreSQL, PostgREST" if options.transport == "supabase" else "PostgreSQL"
    narrator.expect(f"{parts}, S3 and the RunPod emulator start")
    async with Stack(options.directory, seed=options.seed, transport=options.transport) as stack:
        narrator.tell("event", f"{parts}, S3 and the RunPod emulator run on this machine")
        narrator.expect("the tables are created, and the images are uploaded")
        job = await _prepare(stack, options)
        async with await stack.connect() as sql, await stack.connect() as other:
            narrator.begin(sql, len(job.tasks))
            narrator.expect("the orchestrator starts")
            orchestrator = await stack.start_orchestrator()
            narrator.tell("event", f"the orchestrator runs as process {orchestrator.pid}")
            narrator.tell("event", "the dashboard opens once, within a minute, at")
            click.echo(f"   {await link(stack)}", err=True)
            ids = await submit(stack, job.tasks)
            narrator.tell("event", what_was_submitted(job.segments))
            kill = asyncio.create_task(kill_a_busy_pod(stack, other, job.segments // 2, narrator))
            killed = await _watch(narrator, sql, stack, kill, None if options.keep else orchestrator)
            narrator.expect("counting tasks, pods, dollars and log bytes")
            summary = await count(sql, await stack.control("GET", "ledger"), stack.blobs(), len(ids))
            summary |= await _video(sql, stack, ids[-1], job.seconds)
            summary |= await _consequences(sql, killed)
            summary = _result(summary, options.seed, time.monotonic() - began_s)
            narrator.expect("the orchestrator and the services stop")
            if options.keep:
                status.cancel()
                show(summary, sys.stderr, keeps=True)
                explain(stack, orchestrator)
                with contextlib.suppress(asyncio.CancelledError):
                    await narrator.follow()
    return summary


def what_was_submitted(segments: int) -> str:
    """Return a sentence about the job: its segments, and the task that joins them."""
    videos = f"{counted(segments, 'video')}"
    return f"submitted {segments + 1} tasks: {videos}, and one that joins them"


async def submit(stack: Stack, tasks: list[dict[str, Any]]) -> list[str]:
    """Submit the tasks with one `task_submit` call. Return the ids in order."""
    db = await stack.open_db()
    try:
        answer = await SqlStore(db, FLEET).submit(tasks)
    finally:
        await db.close()
    return [str(row["id"]) for row in answer]


async def link(stack: Stack) -> str:
    """Return a one-time link to the dashboard."""
    status, out, err = await stack.run("tokens", "link", "--url", stack.url)
    if status != 0:
        raise ChildFailed(f"orchestrator tokens link ended with {status}: {err or out}")
    return out.strip()


async def _prepare(stack: Stack, options: Options) -> Job:
    if options.images is not None:
        images = found(options.images)
    else:
        images = paint(stack.directory / "images", SAMPLE_IMAGES, options.seed)
    await stack.migrate()
    return plan_job(await upload(stack.blobs(), images), options.tasks)


def explain(stack: Stack, orchestrator: Child, *more: str) -> None:
    """Print what to do next, and `more` of it. These are the last lines, so they stay visible."""
    env = stack.write_env()
    for text in (
        "\nThe system stays up until Ctrl-C. In another terminal:",
        f"  source {env}",
        "  ./run list --watch              ./run tasks list",
        "  ./run explain scaling           ./run top",
        "  ./run tokens link               opens the dashboard",
        *more,
        f"  kill {orchestrator.pid}; ./run run           # it goes on where it was",
        "docs/handlers.md shows work of your own.",
    ):
        click.echo(text, err=True)


async def _watch(
    narrator: Narrator, sql: Sql, stack: Stack, kill: "asyncio.Task[list[PodKill]]", orchestrator: Child | None
) -> list[PodKill]:
    """Print events until every task has ended and every pod is gone, or the time is over. Return the killed pods."""
    deadline = time.monotonic() + LIMIT_S
    try:
        while time.monotonic() < deadline:
            await narrator.look()
            if orchestrator is not None and not orchestrator.alive:
                raise ChildFailed(f"the orchestrator ended{orchestrator.output_tail()}")
            row = await (await sql.execute(REST)).fetchone()
            if row is not None and row["rest"] and (await stack.control("GET", "ledger"))["alive"] == 0:
                await narrator.look()
                return kill.result() if kill.done() else []
            await asyncio.sleep(POLL_S)
        narrator.tell("demo", f"not finished after {LIMIT_S:.0f} s")
        return kill.result() if kill.done() else []
    finally:
        kill.cancel()
        await asyncio.gather(kill, return_exceptions=True)


async def _video(sql: Sql, stack: Stack, stitch: str, expected_s: float) -> dict[str, Any]:
    """Download and decode the video of the joining task."""
    row = await (await sql.execute("select output_location from tasks where id = %s", [stitch])).fetchone()
    nothing = {"video": None, "video_seconds": None, "video_expected_seconds": round(expected_s, 2)}
    if row is None or row["output_location"] is None:
        return {**nothing, "video_problem": "the joining task left no output_location"}
    try:
        video = await fetch(stack.blobs(), row["output_location"], stack.directory / "travel.mp4")
    except (NotAVideo, NotFound) as error:
        return {**nothing, "video_problem": str(error)}
    facts = {
        "video_seconds": video.seconds,
        "video_frames": video.frames,
        "video_size": f"{video.width}x{video.height}",
    }
    if abs(video.seconds - expected_s) > 0.5 + 0.02 * expected_s:  # half a second, and rounding per segment
        return {**nothing, **facts, "video_problem": f"{video.seconds} s long, not {expected_s:.1f} s"}
    return {**nothing, **facts, "video": str(video.path)}


async def _consequences(sql: Sql, killed: list[PodKill]) -> dict[str, Any]:
    """Whether the task that lost its pod was done by another worker."""
    elsewhere = False
    if killed:
        row = await (await sql.execute(KILLED, [killed[-1].task])).fetchone()
        elsewhere = row is not None and row["status"] == "Complete" and row["worker_id"] != killed[-1].worker
    return {"pods_killed": len(killed), "killed_task_done_elsewhere": elsewhere}


def _result(summary: dict[str, Any], seed: int, seconds: float) -> dict[str, Any]:
    wrong = faults(summary)
    if not summary["video"]:
        wrong.append("video")
    if not summary["killed_task_done_elsewhere"]:
        wrong.append("killed_task_done_elsewhere")
    whole = {"schema_version": SCHEMA_VERSION, "ok": not wrong, "wrong": wrong, "seed": seed}
    return {**whole, "seconds": round(seconds, 1), **summary}
