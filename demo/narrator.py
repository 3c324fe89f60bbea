"""What happens, told line by line: read from the rows that the fleet writes, not from anybody's log."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import AsyncConnection

from orchestrator.core.blocked import from_json, line

POLL_S = 0.3
LATE = 200  # ids looked at again: a row with a lower id may be committed after one with a higher
CHATTY = 24  # with more tasks than this, they are counted rather than named
COUNT_EVERY_S = 3.0
WORTH_TELLING_S = 0.1

DECISIONS = "select id, pool, rule, target, actions, blocked from decisions where id > %s order by id"
EVENTS = """
    select id, worker_id, from_state, to_state, to_stage, reason from worker_events
     where id > %s and from_state is distinct from to_state order by id
"""
LADDER = """
    select stage, round(extract(epoch from sum(ended_at - started_at)), 1)::float as seconds,
           count(*) filter (where outcome <> 'ok') as failures
      from worker_attempts where worker_id = %s and ended_at is not null group by stage order by min(id)
"""
ENDED = """
    select a.task_id::text as id, a.attempt, a.worker_id, a.outcome, a.failure_code, t.task_type,
           t.params ->> 'index' as n, t.status::text as status,
           extract(epoch from a.ended_at - a.started_at)::float as seconds
      from task_attempts a join tasks t on t.id = a.task_id
     where a.ended_at is not null order by a.ended_at
"""
COUNTS = "select status::text as status, count(*) as n from tasks group by status"


class Narrator:
    """Tells on stderr what has happened since the last look; `follow` looks until cancelled."""

    def __init__(self, sql: AsyncConnection[dict[str, Any]], tasks: int) -> None:
        self._sql = sql
        self._tasks = tasks
        self._start_s = time.monotonic()
        self._seen: set[tuple[str, int]] = set()
        self._highest = {"decisions": 0, "events": 0}
        self._ended: set[tuple[str, int]] = set()
        self._counts: dict[str, int] = {}
        self._counted_s = 0.0

    def tell(self, subject: str, text: str) -> None:
        """One line, with the seconds since the beginning."""
        print(f"{time.monotonic() - self._start_s:6.1f} s  {subject:<8} {text}", file=sys.stderr, flush=True)

    async def follow(self) -> None:
        """Look, tell, wait."""
        while True:
            await self.look()
            await asyncio.sleep(POLL_S)

    async def look(self) -> None:
        """Tell what is new."""
        await self._queue()
        for row in await self._new("decisions", DECISIONS):
            self.tell("decide", _decision(row))
        for row in await self._new("events", EVENTS):
            await self._event(row)
        await self._attempts()

    async def _rows(self, query: str, *values: object) -> Sequence[Mapping[str, Any]]:
        return await (await self._sql.execute(query, values)).fetchall()

    async def _new(self, kind: str, query: str) -> list[Mapping[str, Any]]:
        rows = await self._rows(query, max(0, self._highest[kind] - LATE))
        fresh = [row for row in rows if (kind, row["id"]) not in self._seen]
        self._seen |= {(kind, row["id"]) for row in fresh}
        self._highest[kind] = max([self._highest[kind], *(row["id"] for row in fresh)])
        return fresh

    async def _queue(self) -> None:
        counts = {row["status"]: int(row["n"]) for row in await self._rows(COUNTS)}
        now_s = time.monotonic()
        patience_s = COUNT_EVERY_S if self._tasks > CHATTY and counts.get("Complete", 0) < self._tasks else 0
        if counts != self._counts and now_s - self._counted_s >= patience_s:
            self._counts, self._counted_s = counts, now_s
            order = ("Queued", "In Progress", "Complete", "Failed", "Cancelled")
            self.tell("queue", " · ".join(f"{counts[state]} {state}" for state in order if counts.get(state)))

    async def _event(self, row: Mapping[str, Any]) -> None:
        worker, to_state = row["worker_id"], row["to_state"]
        if row["from_state"] is None:
            self.tell("spawn", f"{worker}: {row['reason']}")
        elif row["from_state"] == "spawning" and to_state == "active":
            self.tell("bring-up", f"{worker} is proven: {_stages(await self._rows(LADDER, worker))}")
        elif to_state in {"terminating", "terminated"}:
            self.tell("worker", f"{worker} {row['from_state']} -> {to_state}: {row['reason']}")

    async def _attempts(self) -> None:
        for row in await self._rows(ENDED):
            key = (row["id"], row["attempt"])
            if key in self._ended:
                continue
            self._ended.add(key)
            name = row["task_type"] + (f" {row['n']}" if row["n"] is not None else "")
            if row["outcome"] == "complete":
                if self._tasks <= CHATTY or row["attempt"] > 1 or row["n"] is None:
                    again = f" (attempt {row['attempt']})" if row["attempt"] > 1 else ""
                    self.tell("task", f"{name} done in {row['seconds']:.1f} s on {row['worker_id']}{again}")
            else:
                code = f" ({row['failure_code']})" if row["failure_code"] else ""
                self.tell("task", f"{name} {row['outcome']}{code} on {row['worker_id']}; now {row['status']}")


def _stages(stages: Sequence[Mapping[str, Any]]) -> str:
    """Every stage in order, with its seconds where there were any to speak of, and the tries that failed."""
    steps = []
    for rung in stages:
        seconds = f" {rung['seconds']:.1f} s" if rung["seconds"] >= WORTH_TELLING_S else ""
        steps.append(f"{rung['stage']}{seconds}" + (f" ({rung['failures']} failed tries)" if rung["failures"] else ""))
    return " · ".join(steps)


def _decision(row: Mapping[str, Any]) -> str:
    """The formula with its numbers, then what follows from it; the reasons come with the events."""
    acts = Counter(str(action).partition(" ")[0] for action in row["actions"])
    text = f"{row['pool']}: {row['rule']}"
    if acts:
        text += "; so " + ", ".join(f"{verb} {number}" for verb, number in acts.items())
    if row["blocked"]:
        text += "; not done: " + ", ".join(line(from_json(reason)) for reason in row["blocked"])
    return text
