"""Tasks and their events as the service describes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

ENDED = frozenset({"Complete", "Failed", "Cancelled"})


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A task at one moment. `raw` has every field of the answer."""

    id: str
    status: str  # Queued, In Progress, Complete, Failed or Cancelled
    progress: Any
    result: Any  # what the handler returned
    failure_code: str | None
    error: str | None
    output_location: str | None
    version: str  # for `cancel` and `retry` of the task as it was seen
    raw: Mapping[str, Any]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """From the answer of the service."""
        return cls(
            row["id"],
            row["status"],
            row.get("progress"),
            row.get("result_data"),
            row.get("failure_code"),
            row.get("error_message"),
            row.get("output_location"),
            row["version"],
            row,
        )

    @classmethod
    def of_action(cls, answer: Mapping[str, Any]) -> Self:
        """From the answer to `cancel` and `retry`: a token that may not read gets id, status and version alone."""
        return cls.of(answer.get("task") or answer)

    @property
    def ended(self) -> bool:
        """Whether it will not change by itself any more."""
        return self.status in ENDED

    @property
    def succeeded(self) -> bool:
        """Whether it is Complete."""
        return self.status == "Complete"


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """A change of a task. `name` is state, ended or deleted."""

    name: str
    id: str  # from which a stream goes on
    status: str | None
    progress: Any
    attempt: int | None
