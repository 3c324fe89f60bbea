"""A condition: one thing that is wrong with a fleet, in the form in which `rules.py` finds it.

condition_kinds.py has the kinds with their texts.
"""

from collections.abc import Collection, Iterable, Mapping
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
    pools: Collection[str] | None = ()  # whose ready tasks wait for its end, as soon as there are any; None: all pools

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
        acts = {name: self.detail.get(name) or getattr(self.kind.row, name) for name in ("who", "then")}
        pools = None if self.pools is None else sorted(self.pools)
        return common | {"detail": self.evidence} | about | times | acts | {"pools": pools}


def of_type(pool: str, task_type: str) -> str:
    """Return the subject of a condition about a pool's tasks of one type."""
    return f"{pool} {task_type}"


def in_order(found: Iterable[Condition]) -> list[Condition]:
    """Return what makes the fleet UNHEALTHY first, then warnings, then remarks; each a cause before its effects."""
    return sorted(found, key=lambda one: ((HIGH, MEDIUM, LOW).index(one.severity), one.kind.rank))


def is_healthy(found: Iterable[Condition]) -> bool:
    """Whether no condition affects work or money."""
    return all(one.severity != HIGH for one in found)
