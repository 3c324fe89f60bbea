"""`explain scaling`.

Per pool the decision now, the last decision, each blocked reason with its times, and each offer.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from orchestrator.core import decision_text, moments
from orchestrator.core.actions import PoolDecision
from orchestrator.core.blocked import SPAWNS, Blocked, BlockedReason, fix, from_json, text
from orchestrator.core.policy import Policy, Pool
from orchestrator.diagnostics import causes
from orchestrator.diagnostics.advice import without

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reason:
    """A blocked reason, explained."""

    text: str
    who: str
    then: str
    fix: str
    since: str | None = None  # since when all decisions name it; None: the next decision will be the first
    until: str | None = None  # None: it has no end time
    kind: str = BlockedReason.OTHER
    count: int = 0
    unit: str = SPAWNS
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OfferNow:
    """One offer as the pool would request it, in its order."""

    key: str
    state: str  # free, probing (refused earlier, cool-down over) or cooling
    until: str | None
    refusals: int
    last_code: str | None
    last_refusal: str | None
    last_success: str | None
    means: str | None  # of the last code, while its cool-down lasts


@dataclass(frozen=True, slots=True)
class PoolExplanation:
    """Why a pool has its number of workers."""

    pool: str
    target: int
    sentence: str
    rule: str  # the formula with the present inputs
    inputs: Mapping[str, object]
    blocked: Sequence[Reason]
    offers: Sequence[OfferNow]
    last: Row | None  # the decision row, with its blocked reasons also as text
    waiting: Sequence[Row]  # workers that wait for capacity, budget or an operator


def explained(
    found: Row, decisions: Iterable[PoolDecision], policy: Policy | None = None
) -> tuple[PoolExplanation, ...]:
    """Explain each pool that has a decision. Without `policy`, no offer is explained."""
    now = moments.moment(found["now"])
    configured = {pool.name: pool for pool in (policy.pools if policy else ())}
    rows = {offer["key"]: offer for offer in found["offers"]}
    return tuple(
        PoolExplanation(
            pool=made.pool,
            target=made.target,
            sentence=decision_text.sentence(made.inputs, made.target),
            rule=made.rule,
            inputs=made.inputs,
            blocked=[_since(reason, found["blocks"].get(made.pool, ())) for reason in made.blocked],
            offers=_offers(configured[made.pool], rows, now) if made.pool in configured else [],
            last=_last(found["decisions"].get(made.pool)),
            waiting=[worker for worker in found["waiting"] if worker["pool"] == made.pool],
        )
        for made in decisions
    )


def explained_reason(reason: Blocked) -> Reason:
    """Return who must act on a blocked reason, what happens then, and the fix."""
    row = reason.kind.row
    until = reason.until.isoformat() if reason.until else None
    kind, count, unit, detail = reason.kind, reason.count, reason.unit, reason.detail
    told = without(fix(reason), "explain scaling", "plan", instead="python -m orchestrator health")
    return Reason(text(reason), row.who, row.then, told, None, until, kind, count, unit, detail)


def _since(reason: Blocked, before: Sequence[Row]) -> Reason:
    """Add the time since when the previous decisions, newest first, name a reason of this kind without a gap."""

    def names_it(row: Row) -> bool:
        return any(from_json(stored).kind is reason.kind for stored in row["blocked"])

    standing = list(itertools.takewhile(names_it, before))
    return replace(explained_reason(reason), since=standing[-1]["at"] if standing else None)


def _last(decision: Row | None) -> Row | None:
    """Return the last decision row, with its blocked reasons also as text."""
    if decision is None:
        return None
    blocked = [reason.as_json() | {"text": text(reason)} for reason in map(from_json, decision["blocked"])]
    return {**decision, "blocked": blocked}


def _offers(pool: Pool, rows: Mapping[str, Row], now: datetime) -> list[OfferNow]:
    shown = []
    for offer in pool.offers:
        row = rows.get(offer.key, {})
        until, refusals = row.get("cooldown_until"), int(row.get("refusals") or 0)
        cooling = until is not None and moments.moment(until) > now
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
