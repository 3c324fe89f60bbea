"""`/tasks`: tasks by status, type, tenant, pool and label, newest first, and those whose id begins with some digits."""

import asyncio
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from orchestrator.core.plurals import counted
from orchestrator.diagnostics.tasks import progress
from orchestrator.web.api.cursors import cursor_of, place_of
from orchestrator.web.api.models import STATUSES
from orchestrator.web.dashboard.actions import CHANGE_TASKS
from orchestrator.web.dashboard.task_filters import FILTERS, given_in, may_change, options_of, query_of
from orchestrator.web.dashboard.views import Facts, Page, Reads, View

Row = Mapping[str, Any]
ON_A_PAGE = 50
LOOK_S = 2.0  # a filter that few tasks fit reads some thousands of them
DIGITS = re.compile(r"[0-9a-fA-F-]{1,36}")
WAITING = {
    "dependencies": "wait for other tasks",
    "concurrency": "wait for a limit",
    "scheduled": "wait for their time",
    "paused": "of paused pools",
}


async def facts(reads: Reads, view: View) -> Facts:
    """A page of tasks, and the numbers of those that have not ended."""
    asked = view.query.get("id", "").strip()
    wanted = given_in(view.query)
    seen, found = await asyncio.gather(
        reads.get("observe"), _matching(reads, asked) if asked else _page(reads, view, wanted)
    )
    demand = [one for one in seen["demand"] if view.holder.sees(one["pool"])]
    open_ = figures(demand)
    return {
        "title": counted(sum(open_.values()), "open task") if any(open_.values()) else "No open tasks",
        "sentence": sentence(demand),
        "oldest": min((one["oldest_claimable_at"] for one in demand if one["oldest_claimable_at"]), default=None),
        "tasks": [{**one, "note": note(one)} for one in found["tasks"]],
        "next": cursor_of(found["next"]),
        "is_first": "cursor" not in view.query,
        "counts": open_,
        "statuses": get_args(STATUSES),
        "wanted": wanted,
        "field": {name: wanted.get(name, "") for name in FILTERS},
        "changes": may_change(wanted.get("status")) if wanted and not asked and view.holder.may(CHANGE_TASKS) else (),
        "asked": asked,
        "is_id": not asked or bool(DIGITS.fullmatch(asked)),
        "on_a_page": ON_A_PAGE,
        "kept": {name: value for name, value in wanted.items() if name != "status"},
    }


async def _page(reads: Reads, view: View, wanted: Mapping[str, str]) -> Row:
    """A page of the list. Raises Problem."""
    sought = query_of(wanted).wanted()
    place = place_of(view.query.get("cursor"), lambda task_id: str(uuid.UUID(task_id)))
    name = json.dumps(["tasks", sought, place, view.holder.restriction()], sort_keys=True)
    found: Row = await reads.once_a_second(name, lambda: reads.api.rows.tasks(view.holder, sought, place, ON_A_PAGE))
    return found


async def _matching(reads: Reads, digits: str) -> Row:
    tasks = await reads.seen("match_tasks", digits) if DIGITS.fullmatch(digits) else []
    return {
        "tasks": [{"worker_id": None, "max_attempts": None, **one, "attempts": one["attempt"]} for one in tasks],
        "next": None,
    }


def figures(demand: Sequence[Row]) -> dict[str, int]:
    """How many tasks have not ended: the queue knows them exactly. Of the others there may be millions."""
    return {
        "Queued": sum(one["claimable"] + sum(one["blocked"].values()) for one in demand),
        "In Progress": sum(one["running"] for one in demand),
    }


def sentence(demand: Sequence[Row]) -> str:
    """What the open tasks wait for."""
    parts = [f"{sum(one['claimable'] for one in demand):,} ready to run"]
    for kind, words in WAITING.items():
        if number := sum(one["blocked"].get(kind, 0) for one in demand):
            parts.append(f"{number:,} {words}")
    return f"{', '.join(parts)}, {sum(one['running'] for one in demand):,} running."


def note(task: Row) -> str:
    """What is worth knowing of a task, in a line: its failure, its progress, or its output."""
    if task.get("failure_code") or task.get("error_message"):
        return " ".join(filter(None, (task.get("failure_code"), task.get("error_message"))))
    if task["status"] == "In Progress" and task.get("progress"):
        return progress(task["progress"])
    return str(task.get("output_location") or "").rpartition("/")[2]


def _command(view: View) -> str:
    return f"orchestrator tasks list {options_of(given_in(view.query))}".strip()


PAGE = Page("/tasks", "Tasks", "tasks.html", facts, _command, look_s=LOOK_S)
