"""Follows one task to its end, for `submit --wait` and `tasks watch TASK`."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.cli.fixes import whole
from orchestrator.cli.output import Output, one_line
from orchestrator.cli.session import utcnow
from orchestrator.cli.task_rows import attempts_made, note, waits_for_worker
from orchestrator.diagnostics import first_cause
from orchestrator.diagnostics.amounts import ago, span
from orchestrator.diagnostics.first_cause import FirstCause
from orchestrator.errors import ENDED_BADLY, NO_TASK, NOT_IN_TIME, Failure
from orchestrator.ports import Unavailable

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore

EVERY_S = 1.0
FOR_S = 7 * 86_400.0  # Ctrl-C ends it earlier; the task continues
AWAY_S = 120.0  # of a database that does not answer, such as one that restarts
CAUSE_EVERY_S = 2.0
RESULT_CHARACTERS = 2_000
TEXT_CHARACTERS = 1_000
SPINNER = 2  # columns
CODE = re.compile(r"\(([A-Z_]+)\)")  # of a failure, in the text of a cause
VARYING = re.compile(r"gpu-[\w-]+|\d+")  # a worker's id, or a number
COMPLETE = "Complete"
ENDED = (COMPLETE, "Failed", "Cancelled")


async def follow(store: "SqlStore", output: Output, task_id: str, *, for_s: float = FOR_S) -> Mapping[str, Any]:
    """Print each change of a task to stderr until it is Complete, and its result to stdout. Return its row.

    Raises Failure if the task fails, is cancelled or deleted, or has not ended after `for_s` seconds.
    """
    try:
        with output.waiting("asking the database") as show_line:
            row = await _to_its_end(store, output, task_id, for_s, show_line)
        return show_result(output, row)
    except asyncio.CancelledError:  # Ctrl-C
        if output.err.is_terminal:
            output.say("")  # below ^C
        output.say(f"The task continues. To follow it again: python -m orchestrator tasks watch {task_id}")
        raise


async def _to_its_end(
    store: "SqlStore", output: Output, task_id: str, for_s: float, show_line: Callable[[str], None]
) -> Mapping[str, Any]:
    """`show_line` changes the last line of a terminal, which is not kept."""
    began, seen, why, away_since = utcnow(), None, WaitCause(store), None
    while True:
        try:
            row = await store.find.task(task_id)
            cause = await why.of(row) if row else None
        except Unavailable:
            away_since = away_since or utcnow()
            if (ago(away_since, utcnow()) or 0) > AWAY_S:
                raise
            show_line("the database does not answer; asking again")
            await asyncio.sleep(EVERY_S)
            continue
        away_since = None
        if row is None:
            raise Failure(NO_TASK, why=f"the database has no task {task_id}")
        said, lasts = _line(row), span(ago(began, utcnow()))
        if (facts := (*_facts(row), cause and _told(cause))) != seen:
            output.say(f"{lasts:>6}  {said}")
            for line in _because(cause) if cause else ():
                output.say(f"{'':>6}  {line}")
            seen = facts
        if row["status"] in ENDED:
            return row
        show_line(one_line(f"{lasts}  {said}" + (f": {cause.text}" if cause else ""), output.err.width - SPINNER))
        if (ago(began, utcnow()) or 0) > for_s:
            fix = f"python -m orchestrator tasks watch {task_id}"
            raise Failure(NOT_IN_TIME, why=f"after {span(for_s)} task {task_id} is {row['status']}", fix=fix)
        await asyncio.sleep(EVERY_S)


class WaitCause:
    """Why a task that is ready to run gets no worker, asked at most once in CAUSE_EVERY_S."""

    def __init__(self, store: "SqlStore") -> None:
        self._store, self._asked_s = store, -CAUSE_EVERY_S
        self._found: FirstCause | None = None

    async def of(self, row: Mapping[str, Any]) -> FirstCause | None:
        """Return the first cause; None if the task waits for something of its own, or nothing is wrong."""
        if not waits_for_worker(row):
            return None
        if time.monotonic() - self._asked_s >= CAUSE_EVERY_S:
            known = first_cause.known(await self._store.leadership())
            self._found = first_cause.of_task(known, row["pool"], row["task_type"])
            self._asked_s = time.monotonic()
        return self._found


def _because(cause: FirstCause) -> Iterator[str]:
    yield one_line(cause.text, TEXT_CHARACTERS)
    if cause.evidence:
        yield one_line(cause.evidence, TEXT_CHARACTERS)
    yield f"fix: {one_line(cause.fix, TEXT_CHARACTERS)}"


def _told(cause: FirstCause) -> tuple[Any, ...]:
    """Return what is worth telling the cause again if it changes; one more failure of the same kind is not."""
    return cause.kind, CODE.findall(cause.text), VARYING.sub("", cause.fix)


def _facts(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what is worth a new line if it changes; a pause that is counted down is not."""
    return *(row[name] for name in ("status", "attempts", "worker_id", "progress", "cancel_requested_at")), row["waits"]


def _line(row: Mapping[str, Any]) -> str:
    said, where = note(row, utcnow()), ""
    if row["status"] == "In Progress":
        where = f" on {row['worker_id']} (attempt {attempts_made(row)} of {row['max_attempts']})"
    return f"{row['status']}{where}" + (f": {said}" if said else "")


def show_result(output: Output, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Print the result, as one line. Raises Failure if the task is not Complete."""
    if row["status"] == COMPLETE:
        if output.json:
            output.document(task=row)
        elif row.get("result_data"):
            output.show(whole(one_line(row["result_data"], RESULT_CHARACTERS)))  # JSON stays one line
        return row
    why = ": ".join(str(row[name]) for name in ("failure_code", "error_message") if row.get(name))
    fix = f"python -m orchestrator explain {row['id']}"
    raise Failure(ENDED_BADLY, what=f"task {row['id']} is {row['status']}", why=why or "no cause is recorded", fix=fix)
