"""The end of a worker that claims no more tasks: its tasks fail, its disk is full, or it does not ask for any.

After WORKER_MAX_CONSECUTIVE_FAILURES different tasks in a row have failed, the database holds a worker back. The same
tasks on other workers of its release decide, and a task that fails on another machine too says nothing about either:

    others complete most of the tasks that fail here       the worker is sick: replaced, its host gets a strike
    its own check fails (its agent reports a full disk)    the worker is sick: replaced
    enough of its tasks failed only here                   a suspect: no capacity, so another worker is started while
                                                           there is work, and tries these tasks
    first attempts fail elsewhere too, later ones do not   it claims again, until chance cannot explain its failures
    its tasks fail elsewhere too                           the inputs or the release: it pauses, and claims again
    so they do on all workers, again and again, and the    the release is bad: one worker stays and tries, the others
    release has never completed such a task                end, and no host gets a strike

Without work, suspects count as the warm workers of MIN_ACTIVE_GPUS and MACHINES_TO_KEEP_IDLE (`kept`).
Bad inputs therefore end no worker. Two exceptions cost no host a strike: if MAX_ACTIVE_GPUS or a budget leaves no room
for a worker on another machine, a suspect pauses, and if its next tasks fail too, its successor tries them; and a
worker on which more than BAD_TRIALS times the limit of tasks failed, none of which others could try, while they
complete such tasks, is replaced.
Each task that a sick or replaced worker failed since its last success gets one attempt back, once per task.

The controller of a cluster is never held back: no other worker of its pool can try its tasks.
"""

from dataclasses import replace
from math import ceil

from orchestrator.core import guards
from orchestrator.core.actions import Terminate
from orchestrator.core.budget import BudgetRoom
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import HeldBack, Snapshot, Worker
from orchestrator.core.policy import Policy, Pool
from orchestrator.core.states import READY, State

UNCLAIMED_S = 300.0  # an idle agent claims at least twice a minute
DISK_FULL_S = 30.0  # an agent that has just freed space reports it with its next heartbeats
UNTRIED_S = 900.0  # after which a suspect claims again if nobody has tried its tasks, as in worker_fitness.sql
BAD_TRIALS = 3  # pauses after each of which enough tasks failed again


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
    """Return the end of a worker whose tasks failed in a row; None while the same tasks elsewhere do not decide."""
    failed = f"{held.failures} different tasks failed in a row ({', '.join(held.codes)})"
    if worker.disk_full_since:
        return _sick(worker, FailureCode.DISK_FULL, f"{failed}, and its disk is full")
    if _is_succeeded(worker, snapshot, policy):
        why = f"{failed}, and a worker of the present release is ready"
        return Terminate(worker.id, worker.state, ExitCause.SUPERSEDED, None, why)
    enough = ceil(policy.max_failures / 2)
    if held.trials and held.unlike and held.done_elsewhere >= enough:  # also if tasks fail at first on the others
        return _completed_elsewhere(worker, held, failed)
    if held.suspect:
        return _end_of_suspect(worker, held, failed, snapshot, policy)
    if not held.release_works and _is_sure(held, policy) and _another_tries(worker, snapshot):
        why = f"{failed}, as on the other workers of release {worker.release}, which has completed no such task"
        return Terminate(worker.id, worker.state, ExitCause.RELEASE_BAD, FailureCode.TASKS_FAIL_EVERYWHERE, why)
    return None


def _end_of_suspect(
    worker: Worker, held: HeldBack, failed: str, snapshot: Snapshot, policy: Policy
) -> Terminate | None:
    """Return the end of a worker that failed enough tasks which did not fail on other machines."""
    pool = next((pool for pool in policy.pools if pool.name == worker.pool), None)
    demand = next((one for one in snapshot.demand if one.pool == worker.pool), None)
    waiting = demand.claimable if demand else 0
    most = held.done_elsewhere >= ceil(policy.max_failures / 2) and held.done_elsewhere > held.failed_elsewhere
    # Others may have completed them only because the world, or these tasks, are well by now: it claims once more.
    if most and (held.meanwhile or (not waiting and not held.alike)):
        return _completed_elsewhere(worker, held, failed)
    if held.trials and held.until is None and (limit := _no_room(worker, snapshot, policy)):
        return _sick(worker, FailureCode.TASKS_FAIL_UNJUDGED, f"{failed}, and {limit} has no room for another")
    if _is_sure(held, policy) and held.meanwhile and not held.failed_elsewhere:
        why = f"{failed}, and other workers completed such tasks meanwhile"
        return _sick(worker, FailureCode.TASKS_FAIL_UNJUDGED, why)
    idle_s, held_s = ((snapshot.now - since).total_seconds() for since in (worker.state_since, held.since))
    is_undecided = demand is not None and (demand.queued or demand.running) and held_s < UNTRIED_S
    is_idle = worker.state is State.IDLE and not waiting and not is_undecided
    if is_idle and pool is not None and idle_s >= pool.idle_timeout_s and worker.id not in kept(pool, snapshot, policy):
        why = f"no task for {idle_s:.0f} s, and {failed}"
        return Terminate(worker.id, worker.state, ExitCause.IDLE_TIMEOUT, None, why)
    return None


def kept(pool: Pool, snapshot: Snapshot, policy: Policy) -> list[str]:
    """Return the suspects that a pool without work keeps warm, because it has too few other workers for that.

    No task would show that another worker is better.
    """
    demand = next((one for one in snapshot.demand if one.pool == pool.name), None)
    if demand is not None and (demand.claimable or demand.running):
        return []
    here = [w for w in snapshot.workers if w.pool == pool.name]
    live = sum(1 for w in here if w.state is State.SPAWNING or (w.state in READY and w.is_fit))
    suspects = [
        w.id
        for w in here
        if w.state is State.IDLE and w.held_back and replace(w, held_back=None).is_fit
        if not w.is_fit and w.release == policy.release(pool)
    ]
    return suspects[: max(0, min(max(pool.min_active, pool.keep_idle), pool.most) - live)]


def _completed_elsewhere(worker: Worker, held: HeldBack, failed: str) -> Terminate:
    done = f"other workers completed {held.done_elsewhere} of these tasks"
    return _sick(worker, FailureCode.TASKS_FAIL_HERE, f"{failed}, and {done}")


def _is_sure(held: HeldBack, policy: Policy) -> bool:
    """Whether so many tasks failed in a row, over several pauses, that their inputs alone hardly explain it."""
    return held.trials >= BAD_TRIALS and held.failures > BAD_TRIALS * policy.max_failures


def _sick(worker: Worker, code: FailureCode, why: str) -> Terminate:
    return Terminate(worker.id, worker.state, ExitCause.WORKER_SICK, code, why)


def _is_succeeded(worker: Worker, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether a fit worker of the present release can do the work of this worker of an earlier one."""
    pool = next((pool for pool in policy.pools if pool.name == worker.pool), None)
    if pool is None or worker.release == policy.release(pool):
        return False
    here = (one for one in snapshot.workers if one.pool == worker.pool and one.release == policy.release(pool))
    return any(one.state in READY and one.is_fit and one.held_back is None for one in here)


def _another_tries(worker: Worker, snapshot: Snapshot) -> bool:
    """Whether another worker of the release stays and tries its tasks now and then, if this one ends."""
    ready = [
        one
        for one in snapshot.workers
        if (one.pool, one.release) == (worker.pool, worker.release) and one.state in READY
    ]
    return all(one.held_back for one in ready) and ready[0].id != worker.id  # workers are sorted by id


def _no_room(worker: Worker, snapshot: Snapshot, policy: Policy) -> str | None:
    """Return what leaves no room for a worker on another machine that can try the tasks. None if one may.

    Another suspect can: it claims again after its pause.
    """
    pool = next((pool for pool in policy.pools if pool.name == worker.pool), None)
    here = [w for w in snapshot.workers if w.pool == worker.pool and w.id != worker.id]
    live = [w for w in here if w.state is State.SPAWNING or w.state in READY]
    free = pool.most - len(live) - 1 if pool is not None else 0
    apart = any((w.machine_id or w.id) != worker.machine_id for w in live)
    if pool is None or free < 0 or (free == 0 and not apart):
        return "an operator's limit" if pool is not None and pool.scale_limit else "MAX_ACTIVE_GPUS"
    return None if apart or not _only_successor_fits(worker, pool, snapshot, policy) else "the budget"


def _only_successor_fits(worker: Worker, pool: Pool, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether the budgets pay for another worker of the pool only in the place of this one."""
    room = BudgetRoom(snapshot, policy)
    refused = [offer for offer in pool.offers if room.refusal(pool, offer)]
    return len(refused) == len(pool.offers) and any(room.refusal(pool, offer, worker) is None for offer in refused)
