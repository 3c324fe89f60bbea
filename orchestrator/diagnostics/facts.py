"""What rules on the report share: its facts, read; and the form of what they say."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Report = Mapping[str, Any]
HIGH, MEDIUM, LOW = "HIGH", "MEDIUM", "LOW"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One thing to do."""

    priority: str
    category: str
    issue: str
    action: str
    detail: str = ""


def known(report: Report, name: str, default: Any = None) -> Any:
    """A part of the report; the default where it could not be had."""
    part = report.get(name) or {}
    return default if not part or "error" in part else part


def workers(report: Report) -> Iterator[tuple[str, Any]]:
    """The workers of which something is known, by name."""
    for name, worker in sorted(report["workers"].items()):
        if "error" not in worker:
            yield name, worker


def heard_s(worker: Mapping[str, Any], report: Report) -> float:
    """How long ago a ready worker was last heard."""
    row = worker["database_record"]
    return ago_s(row["last_heartbeat"] or row["state_since"], report)


def ago_s(moment: str, report: Report) -> float:
    """Seconds from a moment to the report."""
    return (datetime.fromisoformat(report["timestamp"]) - datetime.fromisoformat(moment)).total_seconds()
