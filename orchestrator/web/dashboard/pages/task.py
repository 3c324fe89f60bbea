"""`/tasks/<id>`: where it is and why, its output, its attempts with their logs, and what it needs."""

import asyncio
import json
import mimetypes
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.core import moments
from orchestrator.diagnostics import tasks
from orchestrator.errors import NO_TASK
from orchestrator.outputs import owner_of, recorded_object
from orchestrator.web.api.explanations import without_others
from orchestrator.web.api.problems import Problem
from orchestrator.web.dashboard.actions import CHANGE_TASKS
from orchestrator.web.dashboard.log_parts import streams
from orchestrator.web.dashboard.pages.audit import done_with
from orchestrator.web.dashboard.views import Facts, Page, Reads, View

Row = Mapping[str, Any]
MAX_JSON_CHARS = 20_000
MAX_IMAGE_BYTES = 64 << 20  # a larger one is a link
PLAYED = ("image", "video", "audio")
ENDED = frozenset({"Complete", "Failed", "Cancelled"})


async def facts(reads: Reads, view: View) -> Facts:
    """All that is known of one task."""
    name = task_id_of(view.path["task_id"])
    seen, found = await asyncio.gather(reads.seen("task", name), reads.get("task_explained", name))
    if seen["task"] is None or found["task"] is None:
        raise absent()
    if view.holder.pools is not None:
        found = without_others(view.holder, found)
    task, explanation = seen["task"], tasks.explained(found, reads.api.policy)
    attempt = chosen(seen["attempts"], view.query.get("attempt"))
    (logs, log_trouble), done = await asyncio.gather(
        _log(reads, attempt, view.query.get("find", "")), done_with(reads, view, name)
    )
    return {
        "title": f"{task['task_type'][:80]} {name[:8]}: {task['status']}",
        "task": task,
        "is_over": task["status"] in ENDED,
        "why": explanation,
        "attempts": [(one, took_s(one.started_at, one.ended_at)) for one in reversed(explanation.attempts)],
        "progress": tasks.progress(task["progress"]) if task["progress"] else None,
        "fraction": tasks.fraction_of(task["progress"]),
        "output": output(reads, task),
        "params": shown_json(seen["params"]),
        "result": shown_json(seen["result_data"]),
        "needs": [one for one in found["dependencies"] if one["id"]],
        "need_counts": found["dependency_counts"],
        "waiting": found["waiting"],
        "attempt": attempt,
        "logs": logs,
        "log_trouble": log_trouble,
        "done": done,
        "find": view.query.get("find", ""),
        "may_change": view.holder.may(CHANGE_TASKS),
    }


def took_s(begin: str, end: str | None) -> float | None:
    """The seconds between two moments; None without the second one."""
    return (moments.moment(end) - moments.moment(begin)).total_seconds() if end else None


def task_id_of(text: str) -> str:
    """The id in an address. Raises Problem."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise absent() from None


def absent() -> Problem:
    """No such task."""
    return Problem(
        404, NO_TASK, "there is no task with this id, or not for this token", fix="look at the list of tasks"
    )


def chosen(attempts: Sequence[Row], number: str | None) -> Row | None:
    """The attempt whose log is shown: the one that the address names, or the last one."""
    named = [one for one in attempts if str(one["attempt"]) == number]
    return next(reversed(named or attempts), None)


def output(reads: Reads, task: Row) -> Row | None:
    """{location, name, kind, bytes, is_ours} of the output; the kind follows from its name. None if there is none."""
    location = task["output_location"]
    if not location or task["status"] != "Complete":
        return None
    key, size = reads.api.blobs.key_of(location), recorded_object(task).get("bytes")
    name = location.rpartition("/")[2]
    kind = (mimetypes.guess_type(name)[0] or "").partition("/")[0]
    is_large = kind == "image" and (size or 0) > MAX_IMAGE_BYTES
    return {
        "location": location,
        "name": name,
        "kind": kind if kind in PLAYED and not is_large else "file",
        "bytes": size,
        "is_ours": key is not None and owner_of(key, task) is not None,
    }


def shown_json(text: str | None) -> Row | None:
    """{text, is_short, chars}: a JSON text with indents, or its begin."""
    if text is None:
        return None
    if len(text) <= MAX_JSON_CHARS:
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return {"text": text[:MAX_JSON_CHARS], "is_short": len(text) > MAX_JSON_CHARS, "chars": len(text)}


async def _log(reads: Reads, attempt: Row | None, find: str) -> tuple[list[Row], str | None]:
    if attempt is None:
        return [], None
    name = f"log of {attempt['task_id']} {attempt['attempt']}"
    found, trouble = await streams(reads, name, lambda: reads.api.log_tails.of_attempt(attempt), find)
    return list(found), trouble


PAGE = Page(
    "/tasks/{task_id}", "", "task.html", facts,
    lambda view: f"orchestrator explain {view.path['task_id']}", parent="/tasks",
)  # fmt: skip
