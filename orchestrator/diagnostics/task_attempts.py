"""One attempt at a task, explained: how it ended, what its code means, its log and its cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.diagnostics import causes

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """One claim of the task."""

    number: int
    worker_id: str
    worker: str  # the worker's state, or how it ended
    started_at: str
    ended_at: str | None
    outcome: str  # "running" for the open attempt
    code: str | None
    exit_class: str | None
    point: str | None  # Claiming, Processing or Completion
    message: str | None
    means: str | None
    log: str | None  # the part of the handler's log: `bytes 120–4096 of handler`
    usd: float | None  # its share of the cost of its claim, as `cost` has it; None: the price is not known
    fix: str | None


def attempt_of(row: Row) -> TaskAttempt:
    """Explain one row of `task_attempts`, as fleet_task_explain() returns it."""
    cause = causes.of(row["failure_code"]) if row["failure_code"] else None
    ending = " ".join(row[name] for name in ("worker_exit_cause", "worker_failure_code") if row[name])
    return TaskAttempt(
        number=row["attempt"],
        worker_id=row["worker_id"],
        worker=ending or row["worker_status"] or "unknown",
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=row["outcome"] or "running",
        code=row["failure_code"],
        exit_class=row["exit_class"],
        point=row["failed_at_point"],
        message=row["message"],
        means=cause.means if cause else None,
        log=_log_range(row),
        usd=None if row["usd"] is None else float(row["usd"]),
        fix=cause.about(worker=row["worker_id"], task=row["task_id"]).fix if cause else None,
    )


def _log_range(row: Row) -> str | None:
    first, last = row["log_first"], row["log_last"]
    if (first is None and last is None) or first == last:
        return None
    return f"bytes {first or 0}–{'…' if last is None else last} of handler"
