"""What becomes of a worker that claims no more because its tasks fail, or because its disk is full.

After WORKER_MAX_CONSECUTIVE_FAILURES different tasks have failed in a row the database gives a worker no more tasks.
Such a worker is no capacity, so another one is started while there is work: the second opinion.

    another worker completes tasks of the same types       the worker is sick: replaced, its host gets a strike
    its own check fails (its agent reports a full disk)    the worker is sick: replaced
    another worker of the release is held back as well     the release is bad: the breaker opens, no host gets a strike
    neither, for as long as a bring-up may take            the worker is replaced, and nothing is held against its host

Another worker's success counts only if it began after these tasks had begun to fail. Failures that the handler calls
permanent hold a worker back only if there is such a success: alone they say something about the inputs.

Where MAX_ACTIVE_GPUS leaves no room for a second opinion, the worker is replaced at once, and its successor gives it.
Each task that a replaced worker failed since its last success gets one attempt back, once in the task's life.
"""

from datetime import timedelta

from orchestrator.core.actions import Terminate
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import HeldBack, Policy, Snapshot, Worker
from orchestrator.core.states import READY, State

DISK_FULL_S = 30.0  # an agent that has just cleaned up reports it with its next heartbeats
REMEMBERED = timedelta(hours=1)  # an earlier worker of the release that was replaced without a second opinion


def end(worker: Worker, snapshot: Snapshot, policy: Policy) -> Terminate | None:
    """The end of a ready worker that is not fit, once it is known why, or the time for that is over."""
    full_since = worker.disk_full_since
    if full_since and not worker.tasks_running and (snapshot.now - full_since).total_seconds() >= DISK_FULL_S:
        return _sick(worker, FailureCode.DISK_FULL, f"its disk has been full since {full_since:%H:%M:%S}")
    return _judged(worker, worker.held_back, snapshot, policy) if worker.held_back else None


def _judged(worker: Worker, held: HeldBack, snapshot: Snapshot, policy: Policy) -> Terminate | None:
    """The end of a worker whose tasks failed in a row; None while a second opinion is awaited."""
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
    """Another worker of the release that fails such tasks too, or was replaced for it without a second opinion."""
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
    """Whether another worker of the pool gives the second opinion within the limit, or may be started for it."""
    pool = next((pool for pool in policy.pools if pool.name == worker.pool), None)
    here = [w for w in snapshot.workers if w.pool == worker.pool and w.id != worker.id]
    live = [w for w in here if w.state is State.SPAWNING or w.state in READY]
    free = pool.max_active - len(live) - 1 if pool is not None else 0
    return free > 0 or (free == 0 and any(w.is_fit for w in live))
