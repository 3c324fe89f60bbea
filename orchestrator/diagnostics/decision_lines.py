"""The list of decisions: equal ones of a pool, one after the other, are one line."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.blocked import from_json
from orchestrator.core.decision_text import row_sentence
from orchestrator.diagnostics.scaling import Reason, explained_reason

Row = Mapping[str, Any]


@dataclass(slots=True)
class DecisionLine:
    """One or more decisions that say the same, with other numbers. The newest one speaks for all."""

    row: Row
    sentence: str
    blocked: Sequence[Reason]
    first_at: str  # of the oldest one
    inputs: Sequence[tuple[str, str]]  # their names and values
    count: int = 1
    same: object = field(default=None, repr=False)


def folded(rows: Iterable[Row]) -> list[DecisionLine]:
    """The lines, in the order of their newest decisions. A decision with actions has a line of its own."""
    lines: list[DecisionLine] = []
    newest: dict[str, DecisionLine] = {}
    for row in rows:
        same, before = _same(row), newest.get(row["pool"])
        if before is not None and same is not None and before.same == same:
            before.count, before.first_at = before.count + 1, row["at"]
            continue
        reasons = [explained_reason(from_json(one)) for one in row["blocked"] or ()]
        line = DecisionLine(row, row_sentence(row), reasons, row["at"], list(_inputs(row)), same=same)
        newest[row["pool"]] = line
        lines.append(line)
    return lines


def _inputs(row: Row) -> Iterator[tuple[str, str]]:
    """The facts of a decision; those in groups one by one."""
    for name, value in (row["inputs"] or {}).items():
        if isinstance(value, Mapping):
            yield from ((f"{name} {one}", str(number)) for one, number in value.items())
        elif value is not None:
            yield str(name), str(value)


def _same(row: Row) -> object:
    """What two decisions that say the same have in common; None if nothing else says the same."""
    if row["actions"]:
        return None
    return row["target"], tuple(from_json(one).identity for one in row["blocked"] or ())
