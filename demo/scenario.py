"""The order of it all: set up, submit, watch, do harm, wait until nothing is left, count."""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg import AsyncConnection

from demo.kill_pod import PodKill, kill_a_busy_pod
from demo.narrator import Narrator
from demo.sample_images import found, paint
from demo.video import NotAVideo, fetch
from demo.workload import Job, plan_job, upload
from orchestrator.adapters.store import SqlStore
from orchestrator.ports import NotFound
from testbed.audit import count, faults
from testbed.services.processes import Child, ChildFailed
from testbed.stack import FLEET, Stack, Transport

SCHEMA_VERSION = 1
SAMPLE_IMAGES = 6
LIMIT_S = 300.0  # for the whole job; what is not done by then is lost
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
    """What was asked for."""

    images: Path | None
    tasks: int | None
    seed: int
    keep: bool
    directory: Path
    transport: Transport = "direct"


async def run_scenario(options: Options) -> dict[str, Any]:
    """The whole run; its summary, with `ok` and what was `wrong`."""
    began_s = time.monotonic()
    async with Stack(options.directory, seed=options.seed, transport=options.transport) as stack:
        job = await _prepare(stack, options)
        async with await stack.connect() as sql, await stack.connect() as other:
            narrator = Narrator(sql, len(job.tasks))
            parts = "PostgreSQL, PostgREST" if options.transport == "supabase" else "PostgreSQL"
            narrator.tell("demo", f"{parts}, S3 and the RunPod emulator are up, in {stack.directory}")
            orchestrator = await stack.start_orchestrator()
            narrator.tell("demo", f"python -m orchestrator run is process {orchestrator.pid}, at {stack.url}")
            if options.keep:
                _explain(narrator, stack, orchestrator)
            ids = await submit(stack, job.tasks)
            narrator.tell("submit", f"{job.segments} travel_segment, and a travel_stitch that depends on them all")
            harm = asyncio.create_task(kill_a_busy_pod(stack, other, job.segments // 2, narrator.tell))
            killed = await _watch(narrator, sql, stack, harm, None if options.keep else orchestrator)
            summary = await count(sql, await stack.control("GET", "ledger"), stack.blobs(), len(ids))
            summary |= await _video(sql, stack, ids[-1], job.seconds)
            summary |= await _consequences(sql, killed)
            summary = _result(summary, options.seed, time.monotonic() - began_s)
            if options.keep:
                narrator.tell(
                    "demo", f"{'all is well' if summary['ok'] else summary['wrong']}; staying up until Ctrl-C"
                )
                with contextlib.suppress(asyncio.CancelledError):
                    await narrator.follow()
    return summary


async def submit(stack: Stack, tasks: list[dict[str, Any]]) -> list[str]:
    """One `task_submit` call; the ids, in order."""
    db = await stack.open_db()
    try:
        answer = await SqlStore(db, FLEET).submit(tasks)
    finally:
        await db.close()
    return [str(row["id"]) for row in answer]


async def _prepare(stack: Stack, options: Options) -> Job:
    if options.images is not None:
        images = found(options.images)
    else:
        images = paint(stack.directory / "images", SAMPLE_IMAGES, options.seed)
    await stack.migrate()
    return plan_job(await upload(stack.blobs(), images), options.tasks)


def _explain(narrator: Narrator, stack: Stack, orchestrator: Child) -> None:
    env = stack.write_env()
    narrator.tell("keep", "in another terminal:")
    for line in (
        f"source {env}",
        "./run list --watch · ./run status <worker> · ./run logs -f <worker> · ./run plan · ./run tasks list",
        f"kill -9 {orchestrator.pid}; ./run run     # it goes on where it was",
        "./run spawn · ./run terminate <worker> · ./run explain <worker|task|scaling> · ./run top",
        "docs/handlers.md     # work of your own",
    ):
        narrator.tell("keep", f"    {line}")


async def _watch(
    narrator: Narrator, sql: Sql, stack: Stack, harm: "asyncio.Task[list[PodKill]]", orchestrator: Child | None
) -> list[PodKill]:
    """Tell the story until every task has ended and every pod is gone, or the time is up; who was killed."""
    deadline = time.monotonic() + LIMIT_S
    try:
        while time.monotonic() < deadline:
            await narrator.look()
            if orchestrator is not None and not orchestrator.alive:
                raise ChildFailed(f"the orchestrator ended{orchestrator.last_words()}")
            row = await (await sql.execute(REST)).fetchone()
            if row is not None and row["rest"] and (await stack.control("GET", "ledger"))["alive"] == 0:
                await narrator.look()
                return harm.result() if harm.done() else []
            await asyncio.sleep(POLL_S)
        narrator.tell("demo", f"not finished after {LIMIT_S:.0f} s")
        return harm.result() if harm.done() else []
    finally:
        harm.cancel()
        await asyncio.gather(harm, return_exceptions=True)


async def _video(sql: Sql, stack: Stack, stitch: str, expected_s: float) -> dict[str, Any]:
    """The video of the joining task, on this disk, decoded to its end."""
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
