"""The first cause: of all conditions, the one that a screen with a single line shows.

`health`, `list`, `tasks list`, `tasks submit --wait`, `explain <task>` and the API choose by these functions, from the
same rows: conditions in the order and the form in which reports show them (`Condition.as_json`). The leader records
them (`leader_jobs/conditions.py`); `health` and `diagnose` find them themselves.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from orchestrator.core import moments
from orchestrator.diagnostics import database_errors
from orchestrator.diagnostics.condition_kinds import HIGH, LOW, ConditionKind, Impact
from orchestrator.diagnostics.conditions import Condition, of_type

Row = Mapping[str, Any]
USUAL_WAIT = timedelta(minutes=15)  # of the oldest task of a backlog


@dataclass(frozen=True, slots=True)
class FirstCause:
    """A condition as one line shows it."""

    kind: str
    text: str  # one sentence
    evidence: str
    who: str  # must act
    then: str  # what happens by itself to the tasks that wait because of it
    fix: str
    since: str | None
    until: str | None  # when it may end by itself

    @property
    def line(self) -> str:
        """Return the sentence and the fix on one line."""
        return f"{self.text} fix: {self.fix}" if self.text.endswith(".") else f"{self.text}. fix: {self.fix}"


def of_fleet(rows: Iterable[Row]) -> FirstCause | None:
    """Return the first condition that makes the fleet UNHEALTHY."""
    return next((_made(one) for one in rows if one["priority"] == HIGH), None)


def of_pools(rows: Iterable[Row], pools: Collection[str]) -> FirstCause | None:
    """Return the first condition because of which ready tasks of one of these pools wait."""
    return next((_made(one) for one in rows if any(_holds(one, pool) for pool in pools)), None)


def of_standing(standing: Row, pools: Collection[str] | None = None) -> FirstCause | None:
    """Return the first cause by the record of the leader: of the fleet, or of tasks of these pools."""
    rows = known(standing)
    nobody = standing["leader"] is None or standing.get("read_only")  # worth a line, whether or not tasks wait
    return _made(rows[0]) if nobody else of_fleet(rows) if pools is None else of_pools(rows, pools)


def of_task(rows: Iterable[Row], pool: str, task_type: str) -> FirstCause | None:
    """Return the first condition because of which a ready task of this pool and type waits."""
    return next((_made(one) for one in rows if _holds(one, pool) and _is_about(one, pool, task_type)), None)


def known(standing: Row) -> Sequence[Row]:
    """Return the conditions that the database knows: those that the leader recorded, or that nobody leads.

    `standing`: an answer with `leader`, `read_only` and `conditions`, for example of fleet_leadership().
    """
    causes = (ConditionKind.NO_LEADER, ConditionKind.DATABASE_DOWN)
    found = [one for one in standing.get("conditions") or () if one["kind"] not in causes]
    if standing.get("read_only"):  # nobody can lead then, though the orchestrator runs
        what, fix = database_errors.meaning(database_errors.READ_ONLY, "")
        impact, detail = Impact.WAIT | Impact.LOSS, {"what": what, "fix": fix}
        return [Condition(ConditionKind.DATABASE_DOWN, detail=detail, impact=impact, pools=None).as_json(), *found]
    if standing["leader"] is not None:
        return found
    waits = Impact.WAIT if any(one["priority"] == HIGH for one in found) else Impact.NONE
    return [Condition(ConditionKind.NO_LEADER, impact=waits, pools=None).as_json(), *found]


def pressing(rows: Iterable[Row], now: str) -> Sequence[Row]:
    """Return what needs somebody: neither remarks, nor tasks that wait for a short time while nothing is wrong."""
    return [one for one in rows if one["priority"] == HIGH or not (one["priority"] == LOW or _is_usual(one, now))]


def _is_usual(row: Row, now: str) -> bool:
    since = row["since"] and moments.moment(row["since"])
    return row["kind"] == ConditionKind.BACKLOG and bool(since) and since > moments.moment(now) - USUAL_WAIT


def _holds(row: Row, pool: str) -> bool:
    return row["pools"] is None or pool in row["pools"]


def _is_about(row: Row, pool: str, task_type: str) -> bool:
    """Whether it may be about a task of this pool and type. Other tasks of a pool do not wait for a missing handler."""
    return bool(row["kind"] != ConditionKind.NO_HANDLER or row["subject"] == of_type(pool, task_type))


def _made(row: Row) -> FirstCause:
    return FirstCause(
        row["kind"], row["issue"], row["detail"], row["who"], row["then"], row["action"], row["since"], row["until"]
    )
