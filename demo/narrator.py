"""Prints what happens, line by line, from the rows in the database, not from logs."""

import asyncio
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
from psycopg import AsyncConnection

from orchestrator.core import decision_text
from orchestrator.core.blocked import from_json, line

POLL_S = 0.3
LATE = 200  # ids that are read again: a row with a lower id may be committed later
CHATTY = 24  # with more tasks than this, the status lines count them, and single tasks are not named
SILENT_S = 2.0  # without an event: then a status line says what it waits for
STARTUP = "the services start"
COLUMNS = 80  # of a line, if the terminal is not wider
WORTH_TELLING_S = 0.1
COLOURS = {"done": "green", "lost": "red", "kill": "red", "scale": "cyan", "status": "bright_black"}

DECISIONS = "select id, pool, rule, target, inputs, actions, blocked from decisions where id > %s order by id"
EVENTS = """
    select id, worker_id, from_state, to_state, to_stage, reason from worker_events
     where id > %s and from_state is distinct from to_state order by id
"""
STAGES = """
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
TASKS = """
    select count(*) filter (where status = 'Complete') as done, count(*) filter (where status = 'Queued') as queued,
           count(*) filter (where status = 'In Progress') as running, count(*) as tasks,
           coalesce(round(100 * avg(case when progress -> 'fraction' between '0' and '1'
                                          then (progress ->> 'fraction')::float else 0 end)
                          filter (where status = 'In Progress')), 0)::int as percent
      from tasks
"""
WORKERS = """
    select id, status::text as status, stage from workers
     where status in ('spawning', 'terminating') order by created_at
"""


class Narrator:
    """Prints one line on stderr for each event. `look` queries once; `follow` repeats it until cancelled.

    It is never silent for long: `accompany` prints a status line whenever nothing has happened for SILENT_S.
    """

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._sql: AsyncConnection[dict[str, Any]] | None = None
        self._tasks = 0
        self._start_s = self._told_s = time.monotonic()
        self._status = STARTUP
        self._seen: set[tuple[str, int]] = set()
        self._highest = {"decisions": 0, "events": 0}
        self._ended: set[tuple[str, int]] = set()
        self._done = 0
        self._numbers: dict[str, int] = {}  # worker -> its number in this demo
        self._created: dict[str, float] = {}  # worker -> when its event was seen

    def begin(self, sql: AsyncConnection[dict[str, Any]], tasks: int) -> None:
        """Watch this database from now on. `tasks`: how many there will be; 0 if nobody knows."""
        self._sql, self._tasks = sql, tasks

    def tell(self, kind: str, text: str) -> None:
        """Print one line that no terminal wraps, with the seconds since the begin. `kind` selects the colour."""
        self._told_s = time.monotonic()
        written = f"{self._told_s - self._start_s:5.0f} s  {text}"
        if not self._verbose:
            most = max(COLUMNS, shutil.get_terminal_size((COLUMNS, 24)).columns) if sys.stderr.isatty() else COLUMNS
            written = written if len(written) <= most else written[: most - 1] + "…"
        click.secho(written, err=True, fg=COLOURS.get(kind))

    def expect(self, status: str) -> None:
        """Say what the status lines show from now on, until the tasks are known."""
        self._status = status

    async def accompany(self) -> None:
        """Print a status line whenever nothing was told for SILENT_S, until cancelled."""
        while True:
            left_s = self._told_s + SILENT_S - time.monotonic()
            if left_s <= 0:
                self.tell("status", f"… {self._status}")
                left_s = SILENT_S
            await asyncio.sleep(min(left_s, SILENT_S))

    async def follow(self) -> None:
        """Query, print and wait, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(POLL_S)

    async def look(self) -> None:
        """Print what is new. A cancellation that a query has lost (psycopg on Python 3.11) is raised at the end."""
        for row in await self._new("decisions", DECISIONS):
            self._decision(row)
        for row in await self._new("events", EVENTS):
            await self._event(row)
        await self._attempts()
        await self._look_at_status()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError

    def worker(self, worker_id: str) -> str:
        """Return the short name of a worker; with -v also its id."""
        number = self._numbers.setdefault(worker_id, len(self._numbers) + 1)
        return f"worker {number}" + (f" ({worker_id})" if self._verbose else "")

    async def _rows(self, query: str, *values: object) -> Sequence[Mapping[str, Any]]:
        assert self._sql is not None  # noqa: S101  begin() is called first
        return await (await self._sql.execute(query.encode(), values)).fetchall()

    async def _new(self, kind: str, query: str) -> list[Mapping[str, Any]]:
        rows = await self._rows(query, max(0, self._highest[kind] - LATE))
        fresh = [row for row in rows if (kind, row["id"]) not in self._seen]
        self._seen |= {(kind, row["id"]) for row in fresh}
        self._highest[kind] = max([self._highest[kind], *(row["id"] for row in fresh)])
        return fresh

    async def _look_at_status(self) -> None:
        [tasks] = await self._rows(TASKS)
        said = [f"{tasks['done']} of {tasks['tasks']} tasks done"]
        if tasks["running"]:
            said.append(f"{tasks['running']} running ({tasks['percent']} %)")
        for state, verb in (("spawning", "boots"), ("terminating", "ends")):
            rows = [row for row in await self._rows(WORKERS) if row["status"] == state]
            stage = f" ({str(rows[0]['stage']).replace('_', ' ')})" if rows and state == "spawning" else ""
            if len(rows) == 1:
                said.append(f"{self.worker(rows[0]['id'])} {verb}{stage}")
            elif rows:
                said.append(f"{len(rows)} workers {verb.removesuffix('s')}")
        self._status = ", ".join(said)

    def _decision(self, row: Mapping[str, Any]) -> None:
        """Print a decision that starts workers, in two lines; with -v every decision, with its formula."""
        spawns = sum(str(action).startswith("spawn") for action in row["actions"])
        if spawns:
            needed, _, changes = decision_text.row_sentence(row).partition("; ")
            self.tell("scale", needed)
            self.tell("scale", f"  {changes}")
        if self._verbose:
            blocked = ", ".join(line(from_json(reason)) for reason in row["blocked"])
            self.tell("scale", f"  {row['pool']}: {row['rule']}" + (f"; not done: {blocked}" if blocked else ""))

    async def _event(self, row: Mapping[str, Any]) -> None:
        name, to_state = self.worker(row["worker_id"]), row["to_state"]
        if row["from_state"] is None:
            self._created[row["worker_id"]] = time.monotonic()
        elif row["from_state"] == "spawning" and to_state == "active":
            seconds = time.monotonic() - self._created.get(row["worker_id"], time.monotonic())
            self.tell("done", f"{name} is ready after {seconds:.0f} s: its pod has passed all checks")
            if self._verbose:
                self.tell("status", f"  {_stages(await self._rows(STAGES, row['worker_id']))}")
        elif to_state == "terminating":
            self.tell("event", f"{name} ends: {_brief(row['reason'])}")
        elif to_state == "terminated":
            self.tell("event", f"{name} has ended: RunPod confirms that its pod is gone")

    async def _attempts(self) -> None:
        for row in await self._rows(ENDED):
            key = (row["id"], row["attempt"])
            if key in self._ended:
                continue
            self._ended.add(key)
            name = row["task_type"] + (f" {row['n']}" if row["n"] is not None else "")
            if row["outcome"] == "complete":
                self._done += 1
                if self._tasks <= CHATTY or row["attempt"] > 1 or row["n"] is None:
                    again = f", attempt {row['attempt']}" if row["attempt"] > 1 else ""
                    where = f"{self.worker(row['worker_id'])} in {row['seconds']:.0f} s{again}"
                    count = f"task {self._done}" + (f" of {self._tasks}" if self._done <= self._tasks else "")
                    self.tell("done", f"{count} done: {name} by {where}")
            else:
                code = f" ({row['failure_code']})" if row["failure_code"] else ""
                again = "back in the queue" if row["status"] == "Queued" else f"now {row['status']}"
                self.tell("lost", f"{name} {row['outcome']} with {self.worker(row['worker_id'])}{code}: {again}")


def _brief(reason: str) -> str:
    """Return the first clause of a reason."""
    return reason.partition(", ")[0].partition("; ")[0]


def _stages(stages: Sequence[Mapping[str, Any]]) -> str:
    """Return the stages in order, with their seconds and failed tries."""
    steps = []
    for stage in stages:
        seconds = f" {stage['seconds']:.1f} s" if stage["seconds"] >= WORTH_TELLING_S else ""
        steps.append(
            f"{stage['stage']}{seconds}" + (f" ({stage['failures']} failed tries)" if stage["failures"] else "")
        )
    return " · ".join(steps)
