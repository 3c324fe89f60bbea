"""The pod that dies half-way: its machine is gone without a word, as a host failure would have it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection

from testbed.stack import Stack

POLL_S = 0.1
TRIES = 3  # the task may end in the moment between our look and the kill
FRAMES_LEFT = 100  # so much work left that it will not
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
    """Who was killed, and what it was doing."""

    worker: str
    pod: str
    task: str


async def kill_a_busy_pod(
    stack: Stack, sql: AsyncConnection[dict[str, Any]], after_done: int, tell: Callable[[str, str], None]
) -> list[PodKill]:
    """Once `after_done` tasks are done, make busy pods vanish until one took an unfinished task with it."""
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
        tell("kill", f"pod {victim['pod_id']} of {victim['worker']} vanishes in the middle of a {victim['task_type']}")
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
