"""`/tasks/changes`, `/tasks/changes/<id>`: actions on all tasks that fit a filter, and how far they are."""

from collections.abc import Mapping
from typing import Any

from orchestrator.diagnostics.task_changes import filter_text, state, took_s
from orchestrator.web.api.task_changes import absent, change_id_of
from orchestrator.web.dashboard.actions import CHANGE_TASKS
from orchestrator.web.dashboard.views import Facts, Page, Reads, View

Row = Mapping[str, Any]
ON_A_PAGE = 100
VERBS = {"cancel": "Cancel", "retry": "Retry"}


async def listed(reads: Reads, view: View) -> Facts:
    """The newest changes."""
    name = f"task changes {view.holder.restriction()}"
    found = await reads.once_a_second(name, lambda: reads.api.rows.task_changes.all(view.holder, ON_A_PAGE))
    changes = [_shown(one, found["now"]) for one in found["changes"]]
    return {
        "title": "Changes of tasks",
        "changes": changes,
        "open": sum(one["ended_at"] is None for one in changes),
        "most": ON_A_PAGE,
    }


async def one(reads: Reads, view: View) -> Facts:
    """One change."""
    number = change_id_of(view.path["change_id"])
    name = f"task change {number} {view.holder.restriction()}"
    found = await reads.once_a_second(name, lambda: reads.api.rows.task_changes.one(view.holder, number))
    if found is None:
        raise absent()
    change = _shown(found, found["now"])
    may_stop = change["ended_at"] is None and view.holder.may(CHANGE_TASKS)
    return {"title": f"{change['verb']} {change['about']}"[:120], "change": change, "may_stop": may_stop}


def _shown(row: Row, now: str) -> Row:
    """A change with its words: {verb, about, state, seconds, per_s}."""
    seconds = took_s(row, now)
    words = {"verb": VERBS[row["action"]], "about": filter_text(row["filter"]), "state": state(row)}
    return {**row, **words, "seconds": seconds, "per_s": row["looked"] / seconds if seconds else None}


LIST = Page(
    "/tasks/changes", "", "task_changes.html", listed, lambda _: "orchestrator tasks changes", parent="/tasks",
)  # fmt: skip
ONE = Page(
    "/tasks/changes/{change_id}", "", "task_change.html", one,
    lambda view: f"orchestrator tasks changes {view.path['change_id']}", parent="/tasks",
)  # fmt: skip
