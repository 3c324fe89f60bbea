"""The breaker and its spawn limits: how many spawns of a pool may begin now, given how the last bring-ups ended.

    halted       the provider refused for a reason that a person must correct (balance, quota, key): wait, try one
    open         too many bring-ups failed, or workers soon after promotion: one canary at a time, more and more rarely;
                 or tasks fail on every worker: one more at most, then none: those that are there try now and then
    new_release  no worker of this release was ever promoted: one canary before the others
    paced        the newest bring-up failed: one new worker in PACE_S

All limits derive from the ended bring-ups, so a new leader decides the same. The breaker trips at the bring-up with
which the failure rate of FAILURE_WINDOW_MINUTES exceeds MAX_WORKER_FAILURE_RATE. A success closes it; time alone does
not. Each failed canary costs money, so the pause before the next one grows with the time for which its release has
failed: after a fix outside, a pool loses at most another half of its outage. A new release (image, code, handlers,
set-up command) may be the fix, so its first canary starts at once.

A promoted worker is on probation until it has completed a task, or for the failure window if there is no task. If it
fails before, it counts as a failed bring-up at that moment, and its promotion does not count as a success: an image
whose agent starts and then crashes wastes as much money as one whose agent never starts. A worker that fails later has
shown that image and code work; its host or its task is to blame. The success that closes the breaker is a promotion, if
bring-ups failed, or the end of a probation, if promoted workers failed. Until then the promoted worker is the canary. A
task that kills its pods ends MAX_ATTEMPTS of them, which is too few to trip the breaker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from orchestrator.core.blocked import Blocked, BlockedReason
from orchestrator.core.exit_causes import FAILURES, ExitCause
from orchestrator.core.failures import UNTRIED, Breaker, codes_where
from orchestrator.core.model import EndedBringUp, Snapshot
from orchestrator.core.policy import Policy, Pool
from orchestrator.core.provider import OfferState
from orchestrator.core.states import READY, State

PACE_S = 10.0  # between two spawns after a failure, and at least between a failed canary and the next
CANARY_SHARE = 0.5  # of the time for which this release has failed: the pause before the next canary
CANARY_MAX_S = 300.0  # the longest such pause
HALT_S = 30.0  # after a refusal that a person must correct; doubles
HALT_MAX_S = 600.0
OF_THE_ACCOUNT, OF_THE_SPEC = codes_where(breaker=Breaker.ACCOUNT), codes_where(breaker=Breaker.SPEC)
UNPACED = UNTRIED - codes_where(breaker=Breaker.HOST)  # cool-downs and halts delay the next spawn after these
# A stuck task is evidence about the task, not about image, code or hosts.
COUNTED = FAILURES - {ExitCause.TASK_STUCK}


# The states of a pool's breaker as metrics name them, and the kind of blocked reason in each.
STATES = {
    "closed": None,
    "halted": BlockedReason.HALTED,
    "open": BlockedReason.BREAKER_OPEN,
    "new_release": BlockedReason.NEW_RELEASE,
    "paced": BlockedReason.PACED,
}


@dataclass(frozen=True, slots=True)
class SpawnLimit:
    """The number of spawns that may begin now."""

    spawns: int
    reason: Blocked  # its `until`: when the limit may rise; None: after an event, at no known time


def spawn_limit(pool: Pool, snapshot: Snapshot, policy: Policy, spawning: int) -> SpawnLimit | None:
    """Return the limit for a pool with `spawning` workers, or None if there is no limit."""
    ended = sorted((_as_counted(c, policy) for c in snapshot.ended if c.pool == pool.name), key=lambda c: c.at)
    bring_ups = [c for c in ended if c.promoted or c.exit_cause in COUNTED]
    tried = [c for c in bring_ups if c.promoted or c.failure_code not in UNTRIED]
    release = policy.release(pool)
    # What still starts of an earlier release says nothing about this one.
    mine = [w for w in snapshot.workers if w.pool == pool.name and w.state is State.SPAWNING]
    spawning = max(0, spawning - sum(w.release not in (None, release) for w in mine))
    canary = max(0, 1 - spawning)
    halt = _halt(pool, release, snapshot)
    if halt:
        return halt if halt.spawns == 0 else SpawnLimit(canary, halt.reason)
    if limited := failing(pool, release, snapshot, spawning):
        return limited
    if opened := _opened(tried, release, snapshot, policy, spawning):
        return opened
    pace = _pace(pool, snapshot, bring_ups, policy)
    if release not in snapshot.promoted_releases:
        if pace and pace.spawns == 0:
            return pace
        return SpawnLimit(canary, Blocked(BlockedReason.NEW_RELEASE, detail={"release": release}))
    return pace


def _as_counted(ended: EndedBringUp, policy: Policy) -> EndedBringUp:
    """Return the bring-up as the breaker counts it: a failure on probation counts as a failed bring-up."""
    failed_at = ended.ending_since
    if not ended.promoted or ended.exit_cause not in COUNTED or failed_at is None:
        return ended
    if ended.exit_cause is not ExitCause.RELEASE_BAD and _lasted(ended, failed_at, policy):
        return ended
    return replace(ended, promoted=False, at=failed_at)


def failing(pool: Pool, release: str, snapshot: Snapshot, spawning: int) -> SpawnLimit | None:
    """Return the limit while tasks fail on every ready worker of the release.

    One more may try the tasks of suspects. If they fail on several workers, yet another one would only fail them too.
    """
    here = [w for w in snapshot.workers if (w.pool, w.release) == (pool.name, release) and w.state in READY]
    held = [w.held_back for w in here if w.held_back]
    if not held or len(held) < len(here):
        return None
    paused = [one for one in held if not one.suspect]
    bad = paused and not any(one.release_works for one in paused)
    detail = {"bad_release": release} if bad else {"failing": ", ".join(sorted({c for one in held for c in one.codes}))}
    after = [one.until for one in paused if one.until and one.until > snapshot.now]
    reason = Blocked(BlockedReason.BREAKER_OPEN, detail=detail, until=min(after, default=None))
    return SpawnLimit(0 if paused else max(0, 1 - spawning), reason)


def _lasted(ended: EndedBringUp, until: datetime, policy: Policy) -> bool:
    """Whether the promoted worker was past its probation at that time."""
    return ended.worked or until - ended.at >= timedelta(seconds=policy.failure_window_s)


def _opened(
    tried: Sequence[EndedBringUp], release: str, snapshot: Snapshot, policy: Policy, spawning: int
) -> SpawnLimit | None:
    """Return the limit while the breaker is open: one canary at a time, and a pause before the next."""
    unfit = frozenset(worker.id for worker in snapshot.workers if not worker.is_fit)
    tripped = _trip(tried, release, snapshot.now, policy, unfit)
    if tripped is None:
        return None
    probation = tripped.probation
    if probation:
        ends_at = probation.at + timedelta(seconds=policy.failure_window_s)
        until = ends_at if ends_at > snapshot.now else None  # an unfit canary stays one until it ends or is well
        return SpawnLimit(
            0, Blocked(BlockedReason.BREAKER_OPEN, detail={**tripped.why, "canary": probation.worker_id}, until=until)
        )
    tries = [ended.at for ended in tried if ended.release == release and ended.at >= tripped.since]
    failing_s = (tries[-1] - tries[0]).total_seconds() if tries else 0.0
    next_at = tried[-1].at + timedelta(seconds=min(max(PACE_S, CANARY_SHARE * failing_s), CANARY_MAX_S))
    is_tried = any(ended.release in (None, release) for ended in tried if ended.at >= tripped.since)
    if is_tried and not spawning and next_at > snapshot.now:
        return SpawnLimit(0, Blocked(BlockedReason.BREAKER_OPEN, detail=tripped.why, until=next_at))
    return SpawnLimit(max(0, 1 - spawning), Blocked(BlockedReason.BREAKER_OPEN, detail=tripped.why))


@dataclass(frozen=True, slots=True)
class _Trip:
    """An open breaker: when and why it tripped."""

    why: Mapping[str, object]  # facts for the blocked reason
    since: datetime
    probation: EndedBringUp | None  # the promoted worker whose probation may close it, if there is one


def _trip(
    tried: Sequence[EndedBringUp], release: str, now: datetime, policy: Policy, unfit: frozenset[str]
) -> _Trip | None:
    """Derive the trip from the ended bring-ups, oldest first. None: the breaker is closed.

    A worker that is `unfit` now claims no tasks, so the time since its promotion proves nothing.
    """
    window = timedelta(seconds=policy.failure_window_s)
    opened, needs_probation = None, False  # whether only the end of a probation closes the breaker
    for last, ended in enumerate(tried):
        if ended.promoted:
            lasted = ended.worker_id not in unfit and _lasted(ended, ended.ending_since or now, policy)
            if lasted or not needs_probation:
                opened, needs_probation = None, False
            elif ended.ending_since is None and opened:
                opened = replace(opened, probation=ended)
            continue
        if ended.exit_cause is ExitCause.RELEASE_BAD and ended.release == release:
            needs_probation = True
            opened = opened or _Trip({"bad_release": release}, ended.at, None)
            continue
        recent = [c for c in tried[: last + 1] if ended.at - c.at <= window]
        failed = [c for c in recent if not c.promoted]
        if len(recent) >= policy.failure_min_bringups and len(failed) > policy.max_failure_rate * len(recent):
            on_probation = sum(c.ending_since is not None for c in failed)
            # A failed canary does not change which success closes the breaker.
            needs_probation = needs_probation or on_probation > 0
            code = str(ended.failure_code or ended.exit_cause)
            why: dict[str, object] = {"failed": len(failed), "ended": len(recent), "code": code}
            why |= {"window_min": window.total_seconds() / 60} | ({"soon_after": on_probation} if on_probation else {})
            opened = replace(opened, why=why) if opened else _Trip(why, ended.at, None)
    return opened


def _halt(pool: Pool, release: str, snapshot: Snapshot) -> SpawnLimit | None:
    """Wait after a refusal that a person must correct: longer after each refusal in a row.

    A refusal of an earlier release's image or settings says nothing about this one.
    """
    refused: list[EndedBringUp] = []
    for ended in snapshot.ended:
        refused_here = ended.failure_code in OF_THE_SPEC and ended.pool == pool.name
        refused_here = refused_here and ended.release in (None, release)
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
        return SpawnLimit(0, Blocked(BlockedReason.HALTED, detail={"code": str(newest.failure_code)}, until=until))
    return SpawnLimit(1, Blocked(BlockedReason.HALTED, detail={"tried_after": str(newest.failure_code)}))


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
        return SpawnLimit(
            1, Blocked(BlockedReason.PACED, detail=detail, until=snapshot.now + timedelta(seconds=PACE_S))
        )
    return SpawnLimit(0, Blocked(BlockedReason.PACED, detail=detail, until=spawned_at + timedelta(seconds=PACE_S)))
