"""`explain scaling`: per pool the arithmetic now, the last decision, what blocks since and until when, each offer."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from orchestrator.core.actions import Verdict
from orchestrator.core.meanings import BUDGET, CAPACITY, OPERATOR, ORCHESTRATOR, PROVIDER
from orchestrator.core.model import Policy, Pool
from orchestrator.diagnostics import causes

Row = Mapping[str, Any]

# What is in a decision's `blocked` text -> (who must act, what happens then, what ends it). The first that fits holds.
BLOCKS: tuple[tuple[re.Pattern[str], str, str, str], ...] = tuple(
    (re.compile(words, re.IGNORECASE), who, then, fix)
    for words, who, then, fix in (
        (
            r"no list of pods",
            PROVIDER,
            "the next complete list is decided by",
            "see RUNPOD_API_KEY and RunPod's status; it is asked again at each tick",
        ),
        (
            r"the store is away.*refuses",
            OPERATOR,
            "workers claim and start again once it takes objects",
            "python -m orchestrator doctor; mend S3_BUCKET, S3_ENDPOINT_URL or the AWS keys",
        ),
        (
            r"the store is away",
            PROVIDER,
            "workers claim and start again once it answers; running tasks keep their results",
            "see the store's status; python -m orchestrator doctor",
        ),
        (r"\bpaused\b", OPERATOR, "workers are started again", "python -m orchestrator resume"),
        (
            r"halted by|after [A-Z_]+ one at a time",
            OPERATOR,
            "one worker is tried, and the pause doubles while that is refused",
            "mend what it names: the account, RUNPOD_API_KEY, RUNPOD_WORKER_IMAGE or RUNPOD_GPU_TYPE",
        ),
        (
            r"network volume|is configured",
            OPERATOR,
            "nothing until that is changed",
            "mend what it names: RUNPOD_STORAGE_NAME, RUNPOD_DATA_CENTERS or POOLS_FILE",
        ),
        (
            r"budget|MAX_HOURLY_COST_USD",
            BUDGET,
            "workers are started once it has room; a day's begins at 00:00 UTC",
            "raise DAILY_BUDGET_USD or MAX_HOURLY_COST_USD; python -m orchestrator cost --since 24h",
        ),
        (
            r"hosts failed",
            ORCHESTRATOR,
            "it is asked in its turn again",
            "python -m orchestrator list --all, then explain one that failed",
        ),
        (
            r"breaker",
            ORCHESTRATOR,
            "one is tried after the other, ever more rarely, until one succeeds",
            "python -m orchestrator list --all, then explain one that failed; once mended, spawn tries one at once",
        ),
        (
            r"canary|bring-up|on probation",
            ORCHESTRATOR,
            "the next one is tried, and a success lets all go",
            "python -m orchestrator list --all, then explain one that failed",
        ),
        (
            r"MAX_ACTIVE_GPUS",
            OPERATOR,
            "nothing more is started until it is raised",
            "raise MAX_ACTIVE_GPUS",
        ),
        (
            r"offer|refused|capacity|market",
            CAPACITY,
            "it is asked again, with one call, then with more",
            "add to RUNPOD_GPU_TYPE or RUNPOD_DATA_CENTERS",
        ),
    )
)
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Blocked:
    """Something that was wanted and is not done."""

    text: str
    who: str
    then: str
    fix: str
    since: str | None = None  # since when decisions say so without a gap; None: the next one will be the first
    until: str | None = None  # None: no time ends it


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
            blocked=[
                _blocked(by_pool[pool.name], text, found["blocks"].get(pool.name, ()))
                for text in by_pool[pool.name].blocked
            ],
            offers=_offers(pool, rows, now),
            last=found["decisions"].get(pool.name),
            waiting=[worker for worker in found["waiting"] if worker["pool"] == pool.name],
        )
        for pool in policy.pools
    )


def block(text: str) -> Blocked:
    """Who must act on a blocked wish, what happens then, and the fix."""
    known = (known for words, *known in BLOCKS if words.search(text))
    who, then, fix = next(known, (ORCHESTRATOR, "the next tick decides", "python -m orchestrator plan"))
    return Blocked(text, who, then, fix)


def _blocked(verdict: Verdict, text: str, before: Sequence[Row]) -> Blocked:
    """The same with since when the decisions before, the newest first, have said so without a gap, and until when."""
    kind = _kind(text)
    standing = list(itertools.takewhile(lambda row: kind in map(_kind, row["blocked"]), before))
    since = standing[-1]["at"] if standing else None
    until = verdict.until[text].isoformat() if text in verdict.until else None
    return replace(block(text), since=since, until=until)


def _kind(text: str) -> str:
    """The same for texts that tell the same: by what they have in common, or else word by word, numbers aside."""
    return next((words.pattern for words, *_ in BLOCKS if words.search(text)), NUMBER.sub("#", text))


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
