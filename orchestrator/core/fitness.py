"""The end of a worker that claims no more tasks: its tasks fail, its disk is full, or it does not ask for any.

After WORKER_MAX_CONSECUTIVE_FAILURES different tasks in a row have failed, the database gives a worker no more tasks.
Such a worker is no capacity, so another one is started while there is work. It gives a second opinion:

    another worker completes tasks of the same types       the worker is sick: replaced, its host gets a strike
    its own check fails (its agent reports a full disk)    the worker is sick: replaced
    another worker of the release fails such tasks too     the release is bad: the breaker opens, no host gets a strike
    neither, for as long as a bring-up may take            the worker is replaced, and its host gets no strike

Another worker's success counts only if it began after these tasks had begun to fail. Failures that the handler marks as
permanent count against a worker only if there is such a success: otherwise the inputs may be the cause.

If MAX_ACTIVE_GPUS leaves no room for a second worker, the worker is replaced at once, and its successor gives the
second opinion. Each task that a replaced worker failed since its last success gets one attempt back, once per task.

The controller of a cluster is never held back: no other worker of its pool can give a second opinion.
"""

from datetime import timedelta

from orchestrator.core import guards
from orchestrator.core.actions import Terminate
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import HeldBack, Snapshot, Worker
from orchestrator.core.policy import Policy
from orchestrator.core.states import READY, State

UNCLAIMED_S = 300.0  # an idle agent claims at least twice a minute
DISK_FULL_S = 30.0  # an agent that has just freed space reports it with its next heartbeats
REMEMBERED = timedelta(hours=1)  # for how long a worker that was replaced without a second opinion counts


def end(worker: Worker, snapshot: Snapshot, policy: Policy) -> Terminate | None:
    """Return the end of an unfit ready worker, once the cause is known or the time to find it is over."""
    full_since = guards.reported_since(worker.disk_full_since, worker, snapshot) if worker.disk_full_since else None
    if full_since and not worker.tasks_running and (snapshot.now - full_since).total_seconds() >= DISK_FULL_S:
        return _sick(worker, FailureCode.DISK_FULL, f"its disk has been full since {full_since:%H:%M:%S}")
    if worker.held_back:
        return _end_of_held_back(worker, worker.held_back, snapshot, policy)
    return _end_of_unclaiming(worker, snapshot)


def _end_of_unclaiming(worker: Worker, snapshot: Snapshot) -> Terminate | None:
    """Return the end of an idle worker that claims none of the ready tasks, one of a pool at a time.

    Its heartbeats and its claims come from different threads. Such a worker would cost money without end, and it counts
    as the capacity for these tasks. If claims fail for all workers, replacing one at a time costs little.
    """
    if not _claims_nothing(worker, snapshot):  # first, because most workers claim: the rest looks at each of the pool
        return None
    here = [one for one in snapshot.workers if one.pool == worker.pool]
    first = next(one.id for one in here if _claims_nothing(one, snapshot))  # workers are sorted by id
    changing = any(one.state in (State.SPAWNING, State.TERMINATING) for one in here)
    if changing or worker.id != first:
        return None
    why = f"tasks wait, and it has not asked for one since {snapshot.claim_seen_at[worker.id]:%H:%M:%S}"
    return _sick(worker, FailureCode.NOT_CLAIMING, why)


def _claims_nothing(worker: Worker, snapshot: Snapshot) -> bool:
    if snapshot.store_outage or worker.own_program or worker.state is not State.IDLE or not worker.is_fit:
        return False
    if worker.cluster is not None:  # only the controller of a running cluster claims
        return False
    demand = next((one for one in snapshot.demand if one.pool == worker.pool), None)
    observed_since = snapshot.window.back(UNCLAIMED_S, snapshot.now)
    asked_at = snapshot.claim_seen_at.get(worker.id)
    if observed_since is None or asked_at is None or demand is None or demand.oldest_claimable_at is None:
        return False
    # A claim that got no answer also counts as a claim: another worker would get no answer either. After an outage, the
    # first heartbeat may arrive before the first claim.
    unanswered_at = snapshot.unanswered_at.get(worker.id, asked_at)
    heard_again_at = snapshot.heard_again_at.get(worker.id, asked_at)
    may_claim_since = max(asked_at, unanswered_at, heard_again_at, demand.oldest_claimable_at)
    return demand.claimable > 0 and may_claim_since <= observed_since


def _end_of_held_back(worker: Worker, held: HeldBack, snapshot: Snapshot, policy: Policy) -> Terminate | None:
    """Return the end of a worker whose tasks failed in a row; None while it waits for a second opinion."""
    failed = f"{held.failures} different tasks failed in a row ({', '.join(held.codes)})"
    if worker.disk_full_since:
        return _sick(worker, FailureCode.DISK_FULL, f"{failed}, and its disk is full")
    if held.done_elsewhere_at:
        done = f"another worker completed such a task at {held.done_elsewhere_at:%H:%M:%S}"
        return _sick(worker, FailureCode.TASKS_FAIL_HERE, f"{failed}, and {done}")
    also = _also_failing(worker, held, snapshot)
    if also:
        why = f"{failed}, as on {also} of the same release"
        return Terminate(worker.id, worker.state, ExitCause.RELEASE_BAD, FailureCode.TASKS_FAIL_EVERYWHERE, why)
    held_s = (snapshot.now - held.since).total_seconds()
    if held_s >= policy.spawning_timeout_s:
        none = f"no other worker has run such a task for {held_s:.0f} s"
    elif not _has_room(worker, snapshot, policy):
        none = "MAX_ACTIVE_GPUS leaves no room for a second opinion"
    else:
        return None
    return _sick(worker, FailureCode.TASKS_FAIL_UNJUDGED, f"{failed}, and {none}")


def _sick(worker: Worker, code: FailureCode, why: str) -> Terminate:
    return Terminate(worker.id, worker.state, ExitCause.WORKER_SICK, code, why)


def _also_failing(worker: Worker, held: HeldBack, snapshot: Snapshot) -> str | None:
    """Return another worker of the release that fails such tasks too, or was replaced for it before."""
    for other in snapshot.workers:
        same = other.id != worker.id and (other.pool, other.release) == (worker.pool, worker.release)
        here = other.machine_id is not None and other.machine_id == worker.machine_id
        if same and not here and other.held_back and other.held_back.types & held.types:
            return other.id
    unsettled = {FailureCode.TASKS_FAIL_UNJUDGED, FailureCode.TASKS_FAIL_EVERYWHERE}
    for bring_up in reversed(snapshot.ended):
        same = bring_up.worker_id != worker.id and (bring_up.pool, bring_up.release) == (worker.pool, worker.release)
        if same and bring_up.failure_code in unsettled and bring_up.ending_since:
            recent = snapshot.now - bring_up.ending_since <= REMEMBERED
            return bring_up.worker_id if recent else None
    return None


def _has_room(worker: Worker, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether another worker of the pool can give the second opinion, or may be started for it."""
    pool = next((pool for pool in policy.pools if pool.name == worker.pool), None)
    here = [w for w in snapshot.workers if w.pool == worker.pool and w.id != worker.id]
    live = [w for w in here if w.state is State.SPAWNING or w.state in READY]
    free = pool.max_active - len(live) - 1 if pool is not None else 0
    return free > 0 or (free == 0 and any(w.is_fit for w in live))
