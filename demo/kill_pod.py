"""Deletes a busy pod in the middle of a task, like a failure of its host."""

import asyncio
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection

from demo.narrator import Narrator
from testbed.stack import Stack

POLL_S = 0.1
TRIES = 3  # the task may end between the query and the kill
FRAMES_LEFT = 100  # with so much work left, the task does not end first
VICTIM = """
    select t.id::text as task, t.task_type, w.id as worker, w.pod_id
      from tasks t join workers w on w.id = t.worker_id
     where t.status = 'In Progress' and w.status = 'active' and w.pod_id is not null
       and (t.params ->> 'frames')::int * (1 - coalesce((t.progress ->> 'fraction')::float, 0)) >= %s
     order by t.generation_started_at desc
     limit 1
"""

HOLDS = "select 1 from tasks where status = 'In Progress' and worker_id = %s"


@dataclass(frozen=True, slots=True)
class PodKill:
    """The killed pod and its task."""

    worker: str
    pod: str
    task: str


async def kill_a_busy_pod(
    stack: Stack, sql: AsyncConnection[dict[str, Any]], after_done: int, narrator: Narrator
) -> list[PodKill]:
    """Once `after_done` tasks are done, delete busy pods until one of them had an unfinished task."""
    killed: list[PodKill] = []
    while len(killed) < TRIES:
        await _until_done(sql, after_done)
        victim = await (await sql.execute(VICTIM, [FRAMES_LEFT])).fetchone()
        if victim is None:
            if await _all_ended(sql):
                return killed
            await asyncio.sleep(POLL_S)
            continue
        await stack.control("POST", f"pods/{victim['pod_id']}/kill", {"how": "vanish"})
        name = narrator.worker(victim["worker"])
        narrator.tell("kill", f"the demo deletes the pod of {name} during a task, like a failed host")
        narrator.tell("status", "  the orchestrator acts after two pod lists without it")
        killed.append(PodKill(victim["worker"], victim["pod_id"], victim["task"]))
        if await (await sql.execute(HOLDS, [victim["worker"]])).fetchone():
            return killed
    return killed


async def _until_done(sql: AsyncConnection[dict[str, Any]], wanted: int) -> None:
    while True:
        row = await (await sql.execute("select count(*) as done from tasks where status = 'Complete'")).fetchone()
        if row is not None and row["done"] >= wanted:
            return
        await asyncio.sleep(POLL_S)


async def _all_ended(sql: AsyncConnection[dict[str, Any]]) -> bool:
    row = await (await sql.execute("select 1 from tasks where status in ('Queued', 'In Progress') limit 1")).fetchone()
    return row is None
