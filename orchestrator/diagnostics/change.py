"""The differences between two saved reports."""

import re
from collections.abc import Mapping
from typing import Any

Report = Mapping[str, Any]
NUMBER = re.compile(r"\b\d+(?:\.\d+)?\b")


def changes(before: Report, after: Report) -> dict[str, Any]:
    """Return new and solved problems, new, ended and changed workers, and the differences of tasks and dollars."""
    old, new = _issues(before), _issues(after)
    was, is_ = set(map(_kind, old)), set(map(_kind, new))
    then, now = _states(before), _states(after)
    return {
        "since": before["timestamp"],
        "new_issues": [issue for issue in new if _kind(issue) not in was],
        "solved_issues": [issue for issue in old if _kind(issue) not in is_],
        "workers_come": sorted(now.keys() - then.keys()),
        "workers_gone": sorted(then.keys() - now.keys()),
        "workers_moved": {n: [then[n], now[n]] for n in sorted(now.keys() & then.keys()) if then[n] != now[n]},
        "tasks": _difference(_counts(before), _counts(after)),
        "usd_per_hour": round(_hourly(after) - _hourly(before), 4),
    }


def _kind(issue: str) -> str:
    """Return the issue without its numbers: a longer queue is not a new problem."""
    return NUMBER.sub("#", issue)


def _issues(report: Report) -> list[str]:
    return [advice["issue"] for advice in report["recommendations"]]


def _states(report: Report) -> dict[str, str]:
    known = {name: one for name, one in report["workers"].items() if "database_record" in one}
    return {name: one["database_record"]["status"] for name, one in known.items()}


def _counts(report: Report) -> Mapping[str, int]:
    """Return the tasks by status, without those of which there are more than were counted."""
    database = report["database_state"]
    beyond = database.get("counts_beyond", ())
    return {name: n for name, n in database.get("task_counts", {}).items() if name not in beyond}


def _hourly(report: Report) -> float:
    return float(report["runpod_state"].get("total_hourly_cost") or 0)


def _difference(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    both = {name: after.get(name, 0) - before.get(name, 0) for name in sorted({*before, *after})}
    return {name: change for name, change in both.items() if change}
