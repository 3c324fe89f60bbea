"""Actions on all tasks that fit a filter, in words: what they change, what it costs, and how far they are."""

from collections.abc import Mapping
from typing import Any, Literal

from orchestrator.core import moments
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import usd

Row = Mapping[str, Any]
State = Literal["waits", "runs", "done", "stopped"]
NAMED = 8  # groups of tasks that a sentence names
WORDS = {"task_type": "type", "tenant": "tenant", "pool": "pool"}


def filter_text(wanted: Row) -> str:
    """Return `Queued or In Progress, type t, label a=1`."""
    parts = [" or ".join(map(str, wanted.get("status", ())))]
    parts += [f"{word} {wanted[name]}" for name, word in WORDS.items() if name in wanted]
    parts += [f"label {key}={value}" for pair in wanted.get("labels", ()) for key, value in pair.items()]
    parts += [f"submitted since {wanted['since']}"] if "since" in wanted else []
    return ", ".join(filter(None, parts))


def count_text(seen: Row) -> str:
    """Return `3 tasks`, or `more than 5,000 tasks`, of a preview."""
    count = counted(seen["tasks"], "task")
    return count if seen["is_all"] else f"more than {count}"


def groups_text(seen: Row) -> str:
    """Return `3 Queued of type t, 1 Queued of type u, and 2 other groups` of a preview."""
    parts = [f"{one['tasks']:,} {one['status']} of type {one['task_type']}" for one in seen["by"][:NAMED]]
    left = seen["groups"] - len(parts)
    return ", ".join(parts) + (f", and {counted(left, 'other group')}" if left else "")


def cost_text(action: str, seen: Row) -> str:
    """Return what a previewed action costs: a cancel loses work, a retry takes attempts."""
    at_least = "" if seen["is_all"] else "at least "
    if not seen["by"]:
        return "No task fits now." if seen["is_all"] else "None of those tasks fits."
    if action == "cancel":
        if seen["is_all"] and all(one["status"] == "Queued" for one in seen["by"]):
            return "None of them runs, so no work is lost."
        return f"Their running attempts have cost {at_least}{usd(seen['usd'] or 0)} so far, which is lost."
    known = [one["usd"] for one in seen["by"] if one["usd"] is not None]
    unknown = sorted({str(one["task_type"]) for one in seen["by"] if one["usd"] is None})
    texts = []
    if known:
        which = "each of the others" if unknown else "each"
        texts.append(f"One attempt of {which} costs {at_least}about {usd(sum(known))}, as in the last seven days.")
    if unknown:
        names = ", ".join(unknown[:NAMED]) + (", …" if len(unknown) > NAMED else "")
        texts.append(f"What an attempt of {names} costs is unknown: none ended in the last seven days.")
    return " ".join(reversed(texts))


def state(change: Row) -> State:
    """Return how far a change is; one that waits has not begun."""
    outcome: State = change["outcome"] or ("runs" if change["started_at"] else "waits")
    return outcome


def took_s(change: Row, now: str) -> float | None:
    """Return for how many seconds the leader has looked at tasks; None before it began."""
    if change["started_at"] is None:
        return None
    end = change["walked_at"] or change["ended_at"] or now
    return (moments.moment(end) - moments.moment(change["started_at"])).total_seconds()
