"""`explain scaling`: per pool the arithmetic now, the last decision, what blocks since and until when, each offer."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from orchestrator.core.actions import PoolDecision
from orchestrator.core.blocked import SPAWNS, Blocked, Kind, from_json, text
from orchestrator.core.model import Policy, Pool
from orchestrator.diagnostics import causes

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reason:
    """Something that is wanted and not done, explained."""

    text: str
    who: str
    then: str
    fix: str
    since: str | None = None  # since when decisions name it without a gap; None: the next one will be the first
    until: str | None = None  # None: no time ends it
    kind: str = Kind.OTHER
    count: int = 0
    unit: str = SPAWNS
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OfferNow:
    """One offer as the pool would ask for it, in its order."""

    key: str
    state: str  # free, probing (refused before, cool-down over) or cooling
    until: str | None
    refusals: int
    last_code: str | None
    last_refusal: str | None
    last_success: str | None
    means: str | None  # of the last code, while it counts


@dataclass(frozen=True, slots=True)
class PoolExplanation:
    """Why a pool has the size it has."""

    pool: str
    target: int
    rule: str  # the arithmetic with the present inputs
    inputs: Mapping[str, object]
    blocked: Sequence[Reason]
    offers: Sequence[OfferNow]
    last: Row | None  # the decision row
    waiting: Sequence[Row]  # workers that wait for capacity, budget or an operator


def explained(found: Row, decisions: Iterable[PoolDecision], policy: Policy) -> tuple[PoolExplanation, ...]:
    """Each pool of the policy; `decisions` are the planner's, on what is now."""
    now = datetime.fromisoformat(found["now"])
    by_pool = {decision.pool: decision for decision in decisions}
    rows = {offer["key"]: offer for offer in found["offers"]}
    return tuple(
        PoolExplanation(
            pool=pool.name,
            target=by_pool[pool.name].target,
            rule=by_pool[pool.name].rule,
            inputs=by_pool[pool.name].inputs,
            blocked=[_since(reason, found["blocks"].get(pool.name, ())) for reason in by_pool[pool.name].blocked],
            offers=_offers(pool, rows, now),
            last=_last(found["decisions"].get(pool.name)),
            waiting=[worker for worker in found["waiting"] if worker["pool"] == pool.name],
        )
        for pool in policy.pools
    )


def explained_reason(reason: Blocked) -> Reason:
    """Who must act on a blocked reason, what happens then, and the fix."""
    row = reason.kind.row
    until = reason.until.isoformat() if reason.until else None
    kind, count, unit, detail = reason.kind, reason.count, reason.unit, reason.detail
    return Reason(text(reason), row.who, row.then, row.fix, None, until, kind, count, unit, detail)


def _since(reason: Blocked, before: Sequence[Row]) -> Reason:
    """The same with since when the decisions before, the newest first, name a reason of this kind without a gap."""

    def names_it(row: Row) -> bool:
        return any(from_json(stored).kind is reason.kind for stored in row["blocked"])

    standing = list(itertools.takewhile(names_it, before))
    return replace(explained_reason(reason), since=standing[-1]["at"] if standing else None)


def _last(decision: Row | None) -> Row | None:
    """The last decision row; what was blocked then also in words."""
    if decision is None:
        return None
    blocked = [reason.as_json() | {"text": text(reason)} for reason in map(from_json, decision["blocked"])]
    return {**decision, "blocked": blocked}


def _offers(pool: Pool, rows: Mapping[str, Row], now: datetime) -> list[OfferNow]:
    shown = []
    for offer in pool.offers:
        row = rows.get(offer.key, {})
        until, refusals = row.get("cooldown_until"), int(row.get("refusals") or 0)
        cooling = until is not None and datetime.fromisoformat(until) > now
        code = row.get("last_code") if refusals else None
        cause = causes.of(code) if code else None
        shown.append(
            OfferNow(
                key=offer.key,
                state="cooling" if cooling else "probing" if refusals else "free",
                until=until if cooling else None,
                refusals=refusals,
                last_code=code,
                last_refusal=row.get("last_refusal"),
                last_success=row.get("last_success"),
                means=cause.means if cause else None,
            )
        )
    return shown
