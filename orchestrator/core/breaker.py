"""How many bring-ups of a pool may begin now, by how the last ones ended.

    halted    the provider refused for a reason that somebody must mend (balance, quota, key, request): wait, try one
    open      too many climbs failed: one canary at a time until one succeeds
    unproven  a release that nothing was ever promoted with, where another was: one canary before the fan-out
    paced     the newest climb failed: one new worker in PACE_S

Everything follows from the ended climbs, so a new leader judges alike. The breaker opens at the climb with which the
failure rate of FAILURE_WINDOW_MINUTES passed MAX_WORKER_FAILURE_RATE, and a success closes it; time alone does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from orchestrator.core.model import EndedClimb, OfferState, Policy, Pool, Snapshot
from orchestrator.core.states import FAILURES, FailureCode

PACE_S = 10.0  # between two spawns after a failure, and between a failed canary and the next
HALT_S = 30.0  # after a refusal that somebody must mend; doubles
HALT_MAX_S = 600.0
OF_THE_ACCOUNT = frozenset({FailureCode.QUOTA, FailureCode.BALANCE, FailureCode.API_AUTH})  # hold for every pool
OF_THE_MARKET = frozenset({FailureCode.NO_CAPACITY, FailureCode.INTENT_STALE, FailureCode.HOST_AVOIDED})
UNTRIED = OF_THE_ACCOUNT | OF_THE_MARKET | {FailureCode.BAD_SPEC}  # say nothing of image, code or hosts


class Brakes(StrEnum):
    """The kinds of brake, the first one the absence of all."""

    CLOSED = "closed"
    HALTED = "halted"
    OPEN = "open"
    UNPROVEN = "unproven"
    PACED = "paced"


@dataclass(frozen=True, slots=True)
class Brake:
    """At most `limit` spawns now."""

    kind: Brakes
    limit: int
    why: str
    until: datetime | None  # when it may be more; None: when something has happened


def brake(pool: Pool, snapshot: Snapshot, policy: Policy, spawning: int) -> Brake | None:
    """What holds back the spawns of a pool that has so many on their way; None: nothing."""
    climbs = [c for c in snapshot.ended if c.pool == pool.name and (c.promoted or c.exit_cause in FAILURES)]
    tried = [c for c in climbs if c.promoted or c.failure_code not in UNTRIED]
    canary = max(0, 1 - spawning)
    halt = _halt(pool, snapshot)
    if halt:
        return halt if halt.limit == 0 else Brake(halt.kind, canary, halt.why, None)
    if opened := _open(tried, policy):
        next_at = tried[-1].at + timedelta(seconds=PACE_S)
        if not spawning and next_at > snapshot.now:
            return Brake(Brakes.OPEN, 0, f"{opened}, next canary {next_at:%H:%M:%S}", next_at)
        return Brake(Brakes.OPEN, canary, f"{opened}, one canary at a time", None)
    pace = _pace(pool, snapshot, climbs, policy)
    release = policy.release(pool)
    if snapshot.proven and release not in snapshot.proven:
        if pace and pace.limit == 0:
            return pace
        return Brake(Brakes.UNPROVEN, canary, f"release {release} is not proven, a canary first", None)
    return pace


def _open(tried: Sequence[EndedClimb], policy: Policy) -> str | None:
    """Why the breaker is open, if it is."""
    why = None
    for last, climb in enumerate(tried):
        if climb.promoted:
            why = None
            continue
        recent = [c for c in tried[: last + 1] if climb.at - c.at <= timedelta(seconds=policy.failure_window_s)]
        failed = sum(not c.promoted for c in recent)
        if len(recent) >= policy.failure_min_climbs and failed > policy.max_failure_rate * len(recent):
            within = f"{failed} of {len(recent)} bring-ups failed within {policy.failure_window_s / 60:g} min"
            why = f"breaker open, {within} ({climb.failure_code})"
    return why


def _halt(pool: Pool, snapshot: Snapshot) -> Brake | None:
    """Wait after a refusal that will be repeated until somebody mends something: longer with each in a row."""
    refused: list[EndedClimb] = []
    for climb in snapshot.ended:
        bad_spec = climb.failure_code == FailureCode.BAD_SPEC and climb.pool == pool.name
        if climb.failure_code in OF_THE_ACCOUNT or bad_spec:
            refused.append(climb)
        elif climb.promoted or climb.failure_code not in UNTRIED:
            refused.clear()
    if not refused:
        return None
    newest = refused[-1]
    known = snapshot.offers.values() if newest.failure_code in OF_THE_ACCOUNT else _of(pool, snapshot)
    if any(offer.last_success and offer.last_success > newest.at for offer in known):
        return None
    wait_s = min(HALT_S * 2 ** min(len(refused) - 1, 10), HALT_MAX_S)
    until = newest.at + timedelta(seconds=wait_s)
    if until > snapshot.now:
        why = f"halted by {newest.failure_code}, an operator must act, next try {until:%H:%M:%S}"
        return Brake(Brakes.HALTED, 0, why, until)
    return Brake(Brakes.HALTED, 1, f"after {newest.failure_code} one at a time", None)


def _of(pool: Pool, snapshot: Snapshot) -> list[OfferState]:
    return [snapshot.offers[offer.key] for offer in pool.offers if offer.key in snapshot.offers]


def _pace(pool: Pool, snapshot: Snapshot, climbs: Sequence[EndedClimb], policy: Policy) -> Brake | None:
    recent = timedelta(seconds=policy.failure_window_s)
    if not climbs or climbs[-1].promoted or snapshot.now - climbs[-1].at > recent:
        return None
    if climbs[-1].failure_code in UNTRIED - {FailureCode.HOST_AVOIDED}:
        return None  # the offers' own cool-down paces these
    why = f"the last bring-up failed ({climbs[-1].failure_code}), one spawn in {PACE_S:g} s"
    spawned_at = snapshot.last_spawn_at.get(pool.name)
    if spawned_at is None or snapshot.now - spawned_at >= timedelta(seconds=PACE_S):
        return Brake(Brakes.PACED, 1, why, snapshot.now + timedelta(seconds=PACE_S))
    return Brake(Brakes.PACED, 0, why, spawned_at + timedelta(seconds=PACE_S))
