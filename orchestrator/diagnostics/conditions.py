"""A condition: one thing that is wrong with a fleet, in the form in which `rules.py` finds it.

condition_kinds.py has the kinds with their texts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from orchestrator.core.plurals import filled
from orchestrator.diagnostics.condition_kinds import HIGH, LOW, MEDIUM, ConditionKind, Impact


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that is wrong."""

    kind: ConditionKind
    subject: str = ""  # the pool, worker or setting that it is about; empty: the fleet
    detail: Mapping[str, Any] = field(default_factory=dict)  # facts for the kind's text and fix
    evidence: str = ""  # what was seen
    impact: Impact = Impact.NONE
    since: datetime | None = None
    until: datetime | None = None  # when it may end by itself

    @property
    def severity(self) -> str:
        """Return HIGH, MEDIUM or LOW. HIGH makes the fleet UNHEALTHY."""
        return HIGH if self.impact & self.kind.row.unhealthy else self.kind.row.level

    @property
    def text(self) -> str:
        """One sentence."""
        return filled(self.kind.row.text, self.detail)

    @property
    def fix(self) -> str:
        """What to do."""
        return filled(self.kind.row.fix, self.detail)

    def as_json(self) -> dict[str, Any]:
        """Return the condition as reports show it."""
        common = {"priority": self.severity, "category": self.kind.row.category, "issue": self.text, "action": self.fix}
        times = {"since": self.since and self.since.isoformat(), "until": self.until and self.until.isoformat()}
        about = {"kind": str(self.kind), "subject": self.subject, "docs": self.kind.anchor}
        return common | {"detail": self.evidence} | about | times


def in_order(found: Iterable[Condition]) -> list[Condition]:
    """Return what makes the fleet UNHEALTHY first, then warnings, then remarks; each a cause before its effects."""
    return sorted(found, key=lambda one: ((HIGH, MEDIUM, LOW).index(one.severity), one.kind.rank))


def is_healthy(found: Iterable[Condition]) -> bool:
    """Whether no condition affects work or money."""
    return all(one.severity != HIGH for one in found)
