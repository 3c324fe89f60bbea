"""The spans of a task's attempt: submit, queued, attempt, upload. Pure.

Ids follow from the task's id and the number of the attempt, so two leaders that make a span make the same one.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

TRACEPARENT_PARTS = 4
SAMPLED = 1  # of the flags
FIRST_YEAR, LAST_YEAR = 1970, 2500  # nanoseconds since 1970 have 64 bits
COMPLETE = "complete"
MAX_ATTRIBUTE_CHARS = 200
ATTRIBUTES = ("task_type", "pool", "worker_id", "gpu_type", "outcome", "failure_code", "exit_class")


@dataclass(frozen=True, slots=True)
class TaskSpan:
    """One span. Ids are numbers of 128 and 64 bits; a parent of another process is remote."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int | None
    start: datetime
    end: datetime
    attributes: Mapping[str, str | int] = field(default_factory=dict)
    failed: str | None = None  # the failure code
    has_remote_parent: bool = False


def spans_of(row: Mapping[str, Any]) -> tuple[TaskSpan, ...]:
    """The spans that an attempt's end completes.

    None if the submitter's trace is not sampled, or the row makes no sense: users write rows too.
    """
    try:
        return _spans_of(row)
    except ValueError:
        return ()


def _spans_of(row: Mapping[str, Any]) -> tuple[TaskSpan, ...]:
    task_id, number, parent_id = row["task_id"], int(row["attempt"]), None
    trace_id = int(task_id.replace("-", ""), 16)
    parts = (row["traceparent"] or "").split("-")
    if len(parts) >= TRACEPARENT_PARTS:
        if not int(parts[3], 16) & SAMPLED:
            return ()
        trace_id, parent_id = int(parts[1], 16), int(parts[2], 16)
    if not trace_id or parent_id == 0:
        return ()
    created, started, ended = (_moment(row[name]) for name in ("created_at", "started_at", "ended_at"))
    facts = {name: str(row[name])[:MAX_ATTRIBUTE_CHARS] for name in ATTRIBUTES if row.get(name)}
    about: dict[str, str | int] = {f"gpu_orchestrator.{name}": value for name, value in facts.items()}
    about |= {"gpu_orchestrator.task_id": task_id, "gpu_orchestrator.attempt": number}
    task = {name: about[name] for name in about if name.endswith(("task_id", "task_type", "pool"))}
    root = _id(task_id, "submit", 0)
    waits_from = _moment(row["previous_end"]) if row["previous_end"] else created
    found = []
    if not row["previous_end"]:
        remote = parent_id is not None
        found.append(TaskSpan("submit", trace_id, root, parent_id, created, created, task, has_remote_parent=remote))
    queued = _id(task_id, "queued", number)
    found.append(TaskSpan("queued", trace_id, queued, root, min(waits_from, started), started, task))
    failed = None if row["outcome"] == COMPLETE else facts.get("failure_code", str(row["outcome"]))
    attempt, until = _id(task_id, "attempt", number), max(started, ended)
    found.append(TaskSpan("attempt", trace_id, attempt, root, started, until, about, failed))
    if row.get("upload_started_at") and row.get("upload_ended_at"):
        begins = min(max(started, _moment(row["upload_started_at"])), until)
        ends = min(max(begins, _moment(row["upload_ended_at"])), until)
        found.append(TaskSpan("upload", trace_id, _id(task_id, "upload", number), attempt, begins, ends, task))
    return tuple(found)


def _moment(text: str) -> datetime:
    """A time that a collector can store. Raises ValueError."""
    found = datetime.fromisoformat(text)
    if not FIRST_YEAR < found.year < LAST_YEAR:
        raise ValueError(text)
    return found


def _id(task_id: str, name: str, number: int) -> int:
    """A span id: 64 bits, never zero."""
    return int.from_bytes(hashlib.sha256(f"{task_id}/{name}/{number}".encode()).digest()[:8], "big") or 1
