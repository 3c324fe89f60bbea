"""Why nothing happened: what was blocked in a time, for how long, by the decisions that were in force.

A decision is recorded when it differs from the one before, so it is in force until the next one of its pool.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from orchestrator.core import moments
from orchestrator.core.blocked import from_json
from orchestrator.diagnostics.scaling import Reason, explained_reason

Row = Mapping[str, Any]
NONE = timedelta()


@dataclass(frozen=True, slots=True)
class InForce:
    """A decision, and the part of the time in which it was in force."""

    row: Row
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class BlockedTime:
    """One reason that blocked a pool."""

    pool: str
    reason: Reason  # as the last decision of the time names it; its `until` is the end that this decision expected
    since: datetime  # the first moment in the time
    until: datetime  # … and the last one
    seconds: float
    decisions: int


@dataclass(frozen=True, slots=True)
class PoolTime:
    """What one pool decided in a time."""

    pool: str
    decisions: int  # that were made in it
    idle: int  # … without any action
    actions: Sequence[str]
    last: Row  # the decision in force at its end
    blocked: Sequence[BlockedTime]  # the longest first


def explained(rows: Iterable[Row], since: datetime, until: datetime) -> tuple[PoolTime, ...]:
    """Explain a time by its decisions, newest first, and those that were in force at its begin."""
    pools: defaultdict[str, list[InForce]] = defaultdict(list)
    for row in rows:
        later = pools[row["pool"]]
        at = moments.moment(row["at"])
        later.append(InForce(row, max(at, since), later[-1].since if later else until))
    return tuple(_of_pool(pool, found, since) for pool, found in sorted(pools.items()))


def _of_pool(pool: str, found: Sequence[InForce], since: datetime) -> PoolTime:
    made = [one.row for one in found if moments.moment(one.row["at"]) >= since]
    return PoolTime(
        pool=pool,
        decisions=len(made),
        idle=sum(not row["actions"] for row in made),
        actions=[str(action) for row in reversed(made) for action in row["actions"]],
        last=found[0].row,
        blocked=sorted(_blocked(pool, found), key=lambda one: (-one.seconds, one.reason.text)),
    )


def _blocked(pool: str, found: Sequence[InForce]) -> Iterable[BlockedTime]:
    """Each reason, told by its newest decision. Reasons that differ in numbers and times alone are the same."""
    parts: defaultdict[object, list[tuple[Reason, InForce]]] = defaultdict(list)
    for one in found:
        for stored in one.row["blocked"]:
            blocked = from_json(stored)
            if blocked.count:
                parts[blocked.identity].append((explained_reason(blocked), one))
    for listed in parts.values():
        spans = [one for _, one in listed]
        lasted = sum((one.until - one.since for one in spans), NONE).total_seconds()
        yield BlockedTime(
            pool, listed[0][0], min(one.since for one in spans), max(one.until for one in spans), lasted, len(spans)
        )
