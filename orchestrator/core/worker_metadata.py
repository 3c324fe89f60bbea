"""The column `metadata` of a worker's row: facts that only some workers have. A key is the name of a field here.

A value of another type counts as absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

# Only SQL functions read these: the last time at which a list showed the pod, TASK_STUCK_TIMEOUT_SEC at its end, and
# WORKER_MAX_CONSECUTIVE_FAILURES when its pod was created.
READ_BY_SQL = frozenset({"listed_at", "stuck_s", "max_failures"})


@dataclass(frozen=True, slots=True)
class WorkerMetadata:
    """What a row's metadata says."""

    offer: str | None = None  # key of the offer for its pod
    asked_for: str | None = None  # who requested the worker, if not the planner
    database_id: str | None = None  # the database whose orchestrator created its pod
    bootstrap: bool = False  # its create call sent the nonce that proves the host key; earlier releases sent none
    ssh_user: str | None = None  # the SSH user, if it is not root
    image_pull_extended: bool = False  # the deadline of its image pull was extended once
    user_code: str | None = None  # hash of the handlers of its present launch
    launches: tuple[str, ...] = ()  # earlier launches of its agent; their logs are shipped too
    lacks: str | None = None  # a task type without a handler in its release, but with one in the leader's
    logs_late: str | None = None  # why its logs do not arrive
    last_snapshot: Mapping[str, Any] | None = None  # the final snapshot of its pod
    deletes: int = 0  # requested deletes of its pod, from the second one on, or if lists had lacked it before
    unreached: int = 0  # how many connections to the pod failed in a row during its end

    @classmethod
    def of(cls, stored: object) -> Self:
        """Decode the column."""
        row = stored if isinstance(stored, Mapping) else {}
        launches, snapshot = row.get("launches"), row.get("last_snapshot")
        return cls(
            offer=_text(row, "offer"),
            asked_for=_text(row, "asked_for"),
            database_id=_text(row, "database_id"),
            bootstrap=row.get("bootstrap") is True,
            ssh_user=_text(row, "ssh_user"),
            image_pull_extended=row.get("image_pull_extended") is True,
            user_code=_text(row, "user_code"),
            launches=tuple(one for one in launches if isinstance(one, str)) if isinstance(launches, list) else (),
            lacks=_text(row, "lacks"),
            logs_late=_text(row, "logs_late"),
            last_snapshot=snapshot if isinstance(snapshot, Mapping) else None,
            deletes=_count(row, "deletes"),
            unreached=_count(row, "unreached"),
        )


def metadata(**changes: Any) -> dict[str, Any]:
    """Return what to merge into the column. Raises TypeError for a key that no code reads."""
    unknown = changes.keys() - {one.name for one in fields(WorkerMetadata)} - READ_BY_SQL
    if unknown:
        raise TypeError(f"no code reads {', '.join(sorted(unknown))}")
    return changes


def _text(row: Mapping[str, Any], key: str) -> str | None:
    value = row.get(key)
    return value if isinstance(value, str) else None


def _count(row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    return value if isinstance(value, int) else 0
