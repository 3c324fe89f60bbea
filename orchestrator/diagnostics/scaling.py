"""`explain scaling`: per pool the arithmetic now, the last decision, what blocks until when, and each offer's state."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.core.actions import Verdict
from orchestrator.core.model import Policy, Pool
from orchestrator.diagnostics import causes
from orchestrator.diagnostics.sentences import BUDGET, CAPACITY, OPERATOR, ORCHESTRATOR, PROVIDER

Row = Mapping[str, Any]

# What is in a decision's `blocked` text -> (who must act, what ends it). The first that fits holds.
BLOCKS: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(words, re.IGNORECASE), who, fix)
    for words, who, fix in (
        (r"no list of pods", PROVIDER, "see RUNPOD_API_KEY and RunPod's status; it is asked again at each tick"),
        (r"\bpaused\b", OPERATOR, "python -m orchestrator resume"),
        (
            r"halted by|after [A-Z_]+ one at a time|network volume|is configured",
            OPERATOR,
            "mend what it names: the account, the key, the image, RUNPOD_STORAGE_NAME or POOLS_FILE",
        ),
        (
            r"budget|MAX_HOURLY_COST_USD",
            BUDGET,
            "raise DAILY_BUDGET_USD or MAX_HOURLY_COST_USD; python -m orchestrator cost --since 24h",
        ),
        (
            r"breaker|canary|bring-up|hosts failed",
            ORCHESTRATOR,
            "python -m orchestrator list --all, then explain one that failed",
        ),
        (r"MAX_ACTIVE_GPUS", OPERATOR, "raise MAX_ACTIVE_GPUS"),
        (r"offer|refused|capacity|market", CAPACITY, "add to RUNPOD_GPU_TYPE or RUNPOD_DATA_CENTERS"),
    )
)


@dataclass(frozen=True, slots=True)
class Blocked:
    """Something that was wanted and is not done."""

    text: str
    who: str
    fix: str


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
    blocked: Sequence[Blocked]
    offers: Sequence[OfferNow]
    last: Row | None  # the decision row
    waiting: Sequence[Row]  # workers that wait for capacity, budget or an operator


def explained(found: Row, verdicts: Iterable[Verdict], policy: Policy) -> tuple[PoolExplanation, ...]:
    """Each pool of the policy; `verdicts` are the planner's, on what is now."""
    now = datetime.fromisoformat(found["now"])
    by_pool = {verdict.pool: verdict for verdict in verdicts}
    rows = {offer["key"]: offer for offer in found["offers"]}
    return tuple(
        PoolExplanation(
            pool=pool.name,
            target=by_pool[pool.name].target,
            rule=by_pool[pool.name].rule,
            inputs=by_pool[pool.name].inputs,
            blocked=[block(text) for text in by_pool[pool.name].blocked],
            offers=_offers(pool, rows, now),
            last=found["decisions"].get(pool.name),
            waiting=[worker for worker in found["waiting"] if worker["pool"] == pool.name],
        )
        for pool in policy.pools
    )


def block(text: str) -> Blocked:
    """Who must act on a blocked wish."""
    who, fix = next(
        ((who, fix) for words, who, fix in BLOCKS if words.search(text)), (ORCHESTRATOR, "python -m orchestrator plan")
    )
    return Blocked(text, who, fix)


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
