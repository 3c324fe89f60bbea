"""How many bring-ups of a pool may begin now, by how the last ones ended.

    halted    the provider refused for a reason that somebody must mend (balance, quota, key, request): wait, try one
    open      too many failed, climbing or soon after: one canary at a time until one succeeds, more and more rarely
    unproven  a release that was never promoted, the first one included: one canary before the fan-out
    paced     the newest climb failed: one new worker in PACE_S

Everything follows from the ended climbs, so a new leader judges alike. The breaker opens at the climb with which the
failure rate of FAILURE_WINDOW_MINUTES passed MAX_WORKER_FAILURE_RATE, and a success closes it; time alone does not.
Each canary of a night is rented for nothing, so the pause before the next grows with the time that its release has
been tried in vain: a mended pool loses half of its outage again at most. A new release may be the cure: it begins anew.

A promoted worker is on probation until it has completed a task, or for as long as that window where there is none. One
that fails before counts as a failed climb, at the moment at which it fell, and its promotion as no success: an image
whose agent comes up and dies is rented for nothing, like one whose agent never comes up. Whoever fails later has shown
that image and code work, and blames its host or its task. So a success is what disproves the failures that opened the
breaker: a promotion, where climbs had failed; where promoted workers had fallen, an end of probation, and until then
the promoted one is the canary. A task that kills its pods fells MAX_ATTEMPTS of them, fewer than are judged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from orchestrator.core.blocked import Blocked, Kind
from orchestrator.core.exit_causes import FAILURES, ExitCause
from orchestrator.core.failures import UNTRIED, Breaker, codes_where
from orchestrator.core.model import EndedClimb, OfferState, Policy, Pool, Snapshot

PACE_S = 10.0  # between two spawns after a failure, and at least between a failed canary and the next
CANARY_SHARE = 0.5  # of the time that this release has been tried in vain: the pause before the next canary
CANARY_MAX_S = 300.0  # and no longer
HALT_S = 30.0  # after a refusal that somebody must mend; doubles
HALT_MAX_S = 600.0
OF_THE_ACCOUNT, OF_THE_SPEC = codes_where(breaker=Breaker.ACCOUNT), codes_where(breaker=Breaker.SPEC)
UNPACED = UNTRIED - codes_where(breaker=Breaker.HOST)  # cool-downs and halts delay the next spawn after these
# A stuck task says something about the task, and nothing about image, code or hosts.
COUNTED = FAILURES - {ExitCause.TASK_STUCK}


# The states of a pool's breaker as metrics name them, and the kind of blocked reason in each.
STATES = {
    "closed": None,
    "halted": Kind.HALTED,
    "open": Kind.BREAKER_OPEN,
    "unproven": Kind.UNPROVEN,
    "paced": Kind.PACED,
}


@dataclass(frozen=True, slots=True)
class Brake:
    """At most `limit` spawns now."""

    limit: int
    reason: Blocked  # its `until`: when it may be more; None: when something has happened


def brake(pool: Pool, snapshot: Snapshot, policy: Policy, spawning: int) -> Brake | None:
    """What holds back the spawns of a pool that has so many on their way; None: nothing."""
    judged = sorted((_judged(c, policy) for c in snapshot.ended if c.pool == pool.name), key=lambda climb: climb.at)
    climbs = [c for c in judged if c.promoted or c.exit_cause in COUNTED]
    tried = [c for c in climbs if c.promoted or c.failure_code not in UNTRIED]
    canary = max(0, 1 - spawning)
    halt = _halt(pool, snapshot)
    if halt:
        return halt if halt.limit == 0 else Brake(canary, halt.reason)
    release = policy.release(pool)
    if opened := _opened(tried, release, snapshot, policy, spawning):
        return opened
    pace = _pace(pool, snapshot, climbs, policy)
    if release not in snapshot.proven:
        if pace and pace.limit == 0:
            return pace
        return Brake(canary, Blocked(Kind.UNPROVEN, detail={"release": release}))
    return pace


def _judged(climb: EndedClimb, policy: Policy) -> EndedClimb:
    """The climb as it counts: failed, and when its worker fell, if that was on probation."""
    fell_at = climb.ending_since
    if not climb.promoted or climb.exit_cause not in COUNTED or fell_at is None:
        return climb
    if climb.exit_cause is not ExitCause.RELEASE_BAD and _lasted(climb, fell_at, policy):
        return climb
    return replace(climb, promoted=False, at=fell_at)


def _lasted(climb: EndedClimb, until: datetime, policy: Policy) -> bool:
    """Whether the promoted worker was past its probation by then."""
    return climb.worked or until - climb.at >= timedelta(seconds=policy.failure_window_s)


def _opened(
    tried: Sequence[EndedClimb], release: str, snapshot: Snapshot, policy: Policy, spawning: int
) -> Brake | None:
    """The open breaker: one canary, which spawns or is on probation, and a pause before the next."""
    judged = _judgement(tried, release, snapshot.now, policy)
    if judged is None:
        return None
    trial = judged.trial
    if trial:
        until = trial.at + timedelta(seconds=policy.failure_window_s)
        return Brake(0, Blocked(Kind.BREAKER_OPEN, detail={**judged.why, "canary": trial.worker_id}, until=until))
    tries = [climb.at for climb in tried if climb.release == release and climb.at >= judged.since]
    vain_s = (tries[-1] - tries[0]).total_seconds() if tries else 0.0
    next_at = tried[-1].at + timedelta(seconds=min(max(PACE_S, CANARY_SHARE * vain_s), CANARY_MAX_S))
    if not spawning and next_at > snapshot.now:
        return Brake(0, Blocked(Kind.BREAKER_OPEN, detail=judged.why, until=next_at))
    return Brake(max(0, 1 - spawning), Blocked(Kind.BREAKER_OPEN, detail=judged.why))


@dataclass(frozen=True, slots=True)
class _Judgement:
    """An open breaker."""

    why: Mapping[str, object]  # facts for the blocked reason
    since: datetime
    trial: EndedClimb | None  # the promoted worker that is on probation for it, if there is one


def _judgement(tried: Sequence[EndedClimb], release: str, now: datetime, policy: Policy) -> _Judgement | None:
    """What the ended climbs, oldest first, come to; None: the breaker is closed."""
    window = timedelta(seconds=policy.failure_window_s)
    opened, fell = None, 0
    for last, climb in enumerate(tried):
        if climb.promoted:
            if not fell or _lasted(climb, climb.ending_since or now, policy):
                opened, fell = None, 0
            elif climb.ending_since is None and opened:
                opened = replace(opened, trial=climb)
            continue
        if climb.exit_cause is ExitCause.RELEASE_BAD and climb.release == release:
            fell = max(fell, 1)
            opened = opened or _Judgement({"bad_release": release}, climb.at, None)
            continue
        recent = [c for c in tried[: last + 1] if climb.at - c.at <= window]
        failed = [c for c in recent if not c.promoted]
        if len(recent) >= policy.failure_min_climbs and len(failed) > policy.max_failure_rate * len(recent):
            fallen = sum(c.ending_since is not None for c in failed)
            fell = max(fell, fallen)  # what opened it is to be disproved, however a canary fails
            code = str(climb.failure_code or climb.exit_cause)
            why: dict[str, object] = {"failed": len(failed), "ended": len(recent), "code": code}
            why |= {"window_min": window.total_seconds() / 60} | ({"soon_after": fallen} if fallen else {})
            opened = replace(opened, why=why) if opened else _Judgement(why, climb.at, None)
    return opened


def _halt(pool: Pool, snapshot: Snapshot) -> Brake | None:
    """Wait after a refusal that will be repeated until somebody mends something: longer with each in a row."""
    refused: list[EndedClimb] = []
    for climb in snapshot.ended:
        refused_here = climb.failure_code in OF_THE_SPEC and climb.pool == pool.name
        if climb.promoted or climb.failure_code not in UNTRIED:
            refused.clear()
        elif climb.failure_code in OF_THE_ACCOUNT or refused_here:
            refused.append(climb)
    if not refused:
        return None
    newest = refused[-1]
    known = snapshot.offers.values() if newest.failure_code in OF_THE_ACCOUNT else _of(pool, snapshot)
    if any(offer.last_success and offer.last_success > newest.at for offer in known):
        return None
    wait_s = min(HALT_S * 2 ** min(len(refused) - 1, 10), HALT_MAX_S)
    until = newest.at + timedelta(seconds=wait_s)
    if until > snapshot.now:
        return Brake(0, Blocked(Kind.HALTED, detail={"code": str(newest.failure_code)}, until=until))
    return Brake(1, Blocked(Kind.HALTED, detail={"tried_after": str(newest.failure_code)}))


def _of(pool: Pool, snapshot: Snapshot) -> list[OfferState]:
    return [snapshot.offers[offer.key] for offer in pool.offers if offer.key in snapshot.offers]


def _pace(pool: Pool, snapshot: Snapshot, climbs: Sequence[EndedClimb], policy: Policy) -> Brake | None:
    recent = timedelta(seconds=policy.failure_window_s)
    if not climbs or climbs[-1].promoted or snapshot.now - climbs[-1].at > recent:
        return None
    if climbs[-1].failure_code in UNPACED:
        return None
    last = climbs[-1]
    failed = "bring_up_code" if last.ending_since is None else "probation_code"
    detail = {failed: str(last.failure_code or last.exit_cause), "pace_s": PACE_S}
    spawned_at = snapshot.last_spawn_at.get(pool.name)
    if spawned_at is None or snapshot.now - spawned_at >= timedelta(seconds=PACE_S):
        return Brake(1, Blocked(Kind.PACED, detail=detail, until=snapshot.now + timedelta(seconds=PACE_S)))
    return Brake(0, Blocked(Kind.PACED, detail=detail, until=spawned_at + timedelta(seconds=PACE_S)))
