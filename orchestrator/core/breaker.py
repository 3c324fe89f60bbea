"""How many spawns of a pool may begin now, by how the last bring-ups ended: the breaker and its spawn limits.

    halted    the provider refused for a reason that a person must correct (balance, quota, key, request): wait, try one
    open      too many bring-ups failed, or workers soon after promotion: one canary at a time, more and more rarely
    unproven  no worker of this release was ever promoted: one canary before the others
    paced     the newest bring-up failed: one new worker in PACE_S

Everything follows from the ended bring-ups, so that a new leader decides alike. The breaker trips at the bring-up with
which the failure rate of FAILURE_WINDOW_MINUTES exceeds MAX_WORKER_FAILURE_RATE. A success closes it; time alone does
not. Each failed canary costs money, so the pause before the next one grows with the time for which its release has
failed: a corrected pool loses at most another half of its outage. A new release may be the fix: its pause starts again.

A promoted worker is on probation until it has completed a task, or for the failure window if there is no task. If it
fails before, it counts as a failed bring-up at the moment of its failure, and its promotion does not count as a
success: an image whose agent starts and dies wastes as much money as one whose agent never starts. A worker that fails
later has shown that image and code work; its host or its task is to blame. So a success is what disproves the failures
that tripped the breaker: a promotion, if bring-ups failed; the end of a probation, if promoted workers failed. Until
then the promoted worker is the canary. A task that kills its pods ends MAX_ATTEMPTS of them, which is fewer than trip
the breaker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from orchestrator.core.blocked import Blocked, Kind
from orchestrator.core.exit_causes import FAILURES, ExitCause
from orchestrator.core.failures import UNTRIED, Breaker, codes_where
from orchestrator.core.model import EndedBringUp, OfferState, Policy, Pool, Snapshot

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
class SpawnLimit:
    """At most so many spawns now."""

    spawns: int
    reason: Blocked  # its `until`: when it may be more; None: when something has happened


def spawn_limit(pool: Pool, snapshot: Snapshot, policy: Policy, spawning: int) -> SpawnLimit | None:
    """Return the limit for a pool that has `spawning` workers on their way; None: there is none."""
    judged = sorted((_as_counted(c, policy) for c in snapshot.ended if c.pool == pool.name), key=lambda ended: ended.at)
    bring_ups = [c for c in judged if c.promoted or c.exit_cause in COUNTED]
    tried = [c for c in bring_ups if c.promoted or c.failure_code not in UNTRIED]
    canary = max(0, 1 - spawning)
    halt = _halt(pool, snapshot)
    if halt:
        return halt if halt.spawns == 0 else SpawnLimit(canary, halt.reason)
    release = policy.release(pool)
    if opened := _opened(tried, release, snapshot, policy, spawning):
        return opened
    pace = _pace(pool, snapshot, bring_ups, policy)
    if release not in snapshot.proven:
        if pace and pace.spawns == 0:
            return pace
        return SpawnLimit(canary, Blocked(Kind.UNPROVEN, detail={"release": release}))
    return pace


def _as_counted(ended: EndedBringUp, policy: Policy) -> EndedBringUp:
    """The ended as it counts: failed, and when its worker fell, if that was on probation."""
    fell_at = ended.ending_since
    if not ended.promoted or ended.exit_cause not in COUNTED or fell_at is None:
        return ended
    if ended.exit_cause is not ExitCause.RELEASE_BAD and _lasted(ended, fell_at, policy):
        return ended
    return replace(ended, promoted=False, at=fell_at)


def _lasted(ended: EndedBringUp, until: datetime, policy: Policy) -> bool:
    """Whether the promoted worker was past its probation by then."""
    return ended.worked or until - ended.at >= timedelta(seconds=policy.failure_window_s)


def _opened(
    tried: Sequence[EndedBringUp], release: str, snapshot: Snapshot, policy: Policy, spawning: int
) -> SpawnLimit | None:
    """The open breaker: one canary, which spawns or is on probation, and a pause before the next."""
    tripped = _trip(tried, release, snapshot.now, policy)
    if tripped is None:
        return None
    trial = tripped.trial
    if trial:
        until = trial.at + timedelta(seconds=policy.failure_window_s)
        return SpawnLimit(0, Blocked(Kind.BREAKER_OPEN, detail={**tripped.why, "canary": trial.worker_id}, until=until))
    tries = [ended.at for ended in tried if ended.release == release and ended.at >= tripped.since]
    vain_s = (tries[-1] - tries[0]).total_seconds() if tries else 0.0
    next_at = tried[-1].at + timedelta(seconds=min(max(PACE_S, CANARY_SHARE * vain_s), CANARY_MAX_S))
    if not spawning and next_at > snapshot.now:
        return SpawnLimit(0, Blocked(Kind.BREAKER_OPEN, detail=tripped.why, until=next_at))
    return SpawnLimit(max(0, 1 - spawning), Blocked(Kind.BREAKER_OPEN, detail=tripped.why))


@dataclass(frozen=True, slots=True)
class _Trip:
    """A breaker that has tripped and is open."""

    why: Mapping[str, object]  # facts for the blocked reason
    since: datetime
    trial: EndedBringUp | None  # the promoted worker that is on probation for it, if there is one


def _trip(tried: Sequence[EndedBringUp], release: str, now: datetime, policy: Policy) -> _Trip | None:
    """Return the trip that the ended bring-ups, oldest first, amount to; None: the breaker is closed."""
    window = timedelta(seconds=policy.failure_window_s)
    opened, fell = None, 0
    for last, ended in enumerate(tried):
        if ended.promoted:
            if not fell or _lasted(ended, ended.ending_since or now, policy):
                opened, fell = None, 0
            elif ended.ending_since is None and opened:
                opened = replace(opened, trial=ended)
            continue
        if ended.exit_cause is ExitCause.RELEASE_BAD and ended.release == release:
            fell = max(fell, 1)
            opened = opened or _Trip({"bad_release": release}, ended.at, None)
            continue
        recent = [c for c in tried[: last + 1] if ended.at - c.at <= window]
        failed = [c for c in recent if not c.promoted]
        if len(recent) >= policy.failure_min_bringups and len(failed) > policy.max_failure_rate * len(recent):
            fallen = sum(c.ending_since is not None for c in failed)
            fell = max(fell, fallen)  # what opened it is to be disproved, however a canary fails
            code = str(ended.failure_code or ended.exit_cause)
            why: dict[str, object] = {"failed": len(failed), "ended": len(recent), "code": code}
            why |= {"window_min": window.total_seconds() / 60} | ({"soon_after": fallen} if fallen else {})
            opened = replace(opened, why=why) if opened else _Trip(why, ended.at, None)
    return opened


def _halt(pool: Pool, snapshot: Snapshot) -> SpawnLimit | None:
    """Wait after a refusal that will be repeated until somebody mends something: longer with each in a row."""
    refused: list[EndedBringUp] = []
    for ended in snapshot.ended:
        refused_here = ended.failure_code in OF_THE_SPEC and ended.pool == pool.name
        if ended.promoted or ended.failure_code not in UNTRIED:
            refused.clear()
        elif ended.failure_code in OF_THE_ACCOUNT or refused_here:
            refused.append(ended)
    if not refused:
        return None
    newest = refused[-1]
    known = snapshot.offers.values() if newest.failure_code in OF_THE_ACCOUNT else _of(pool, snapshot)
    if any(offer.last_success and offer.last_success > newest.at for offer in known):
        return None
    wait_s = min(HALT_S * 2 ** min(len(refused) - 1, 10), HALT_MAX_S)
    until = newest.at + timedelta(seconds=wait_s)
    if until > snapshot.now:
        return SpawnLimit(0, Blocked(Kind.HALTED, detail={"code": str(newest.failure_code)}, until=until))
    return SpawnLimit(1, Blocked(Kind.HALTED, detail={"tried_after": str(newest.failure_code)}))


def _of(pool: Pool, snapshot: Snapshot) -> list[OfferState]:
    return [snapshot.offers[offer.key] for offer in pool.offers if offer.key in snapshot.offers]


def _pace(pool: Pool, snapshot: Snapshot, bring_ups: Sequence[EndedBringUp], policy: Policy) -> SpawnLimit | None:
    recent = timedelta(seconds=policy.failure_window_s)
    if not bring_ups or bring_ups[-1].promoted or snapshot.now - bring_ups[-1].at > recent:
        return None
    if bring_ups[-1].failure_code in UNPACED:
        return None
    last = bring_ups[-1]
    failed = "bring_up_code" if last.ending_since is None else "probation_code"
    detail = {failed: str(last.failure_code or last.exit_cause), "pace_s": PACE_S}
    spawned_at = snapshot.last_spawn_at.get(pool.name)
    if spawned_at is None or snapshot.now - spawned_at >= timedelta(seconds=PACE_S):
        return SpawnLimit(1, Blocked(Kind.PACED, detail=detail, until=snapshot.now + timedelta(seconds=PACE_S)))
    return SpawnLimit(0, Blocked(Kind.PACED, detail=detail, until=spawned_at + timedelta(seconds=PACE_S)))
