"""Rollout: workers of the present release replace those of earlier releases. A worker never changes its code.

If a worker released a task because only the present release has a handler for it, its row is marked (`lacks`). If its
tasks fail one after the other, it is held back. While no worker of the present release is ready, one is started beyond
the target, within the usual spawn limits. If there is no room or no money for it, one earlier worker ends first. Once
it is ready, these workers end. The others stay until such a task reaches them too.
"""

from collections.abc import Sequence

from orchestrator.core.actions import Terminate
from orchestrator.core.exit_causes import FAILURES, ExitCause
from orchestrator.core.failures import UNTRIED
from orchestrator.core.model import Demand, Snapshot, Worker
from orchestrator.core.policy import Policy, Pool
from orchestrator.core.states import READY


def end(worker: Worker, snapshot: Snapshot, policy: Policy) -> Terminate | None:
    """Return the end of a ready worker that lacks a handler, once a worker with the handler is ready."""
    pool = next((p for p in policy.pools if p.name == worker.pool), None)
    if pool is None or worker.stop_requested_at is not None or not policy.succeeds(pool, worker):
        return None
    here = (w for w in snapshot.workers if w.pool == pool.name and w.state in READY)
    if worker.drain_requested_at is None and all(w.release != policy.release(pool) for w in here):
        return None
    why = f"its release {worker.release} has no handler for {worker.metadata.lacks}, {policy.release(pool)} has one"
    return Terminate(worker.id, worker.state, ExitCause.SUPERSEDED, None, why)


def obsolete(worker: Worker, snapshot: Snapshot, policy: Policy) -> Terminate | None:
    """Return the end of a starting worker of an earlier release that fails: the present one may be the correction."""
    pool = next((p for p in policy.pools if p.name == worker.pool), None)
    if pool is None or worker.release in (None, policy.release(pool)):
        return None
    tried = (one for one in snapshot.ended if one.pool == worker.pool and one.failure_code not in UNTRIED)
    last = max(
        (one for one in tried if one.promoted or one.exit_cause in FAILURES), key=lambda one: one.at, default=None
    )
    if last is None or last.promoted or last.release != worker.release:
        return None
    why = f"its release {worker.release} fails ({last.failure_code or last.exit_cause}); {policy.release(pool)} is new"
    return Terminate(worker.id, worker.state, ExitCause.SUPERSEDED, None, why)


def awaited(pool: Pool, policy: Policy, workers: Sequence[Worker], demand: Demand) -> str | None:
    """Return what waits for a first worker of the present release, if anything. `workers` are all of the pool."""
    waiting = demand.claimable or demand.blocked.get("scheduled")
    if not waiting or not pool.most:
        return None
    if any(w.state in READY and w.release == policy.release(pool) for w in workers):
        return None
    earlier = [w for w in workers if w.state in READY and w.release not in (None, policy.release(pool))]
    if failing := next((w for w in earlier if w.held_back is not None), None):
        return f"tasks fail on release {failing.release}, and {policy.release(pool)} may be the correction"
    marked = next((w for w in workers if policy.succeeds(pool, w)), None)
    return f"tasks of type {marked.metadata.lacks} wait for release {policy.release(pool)}" if marked else None


def place(pool: Pool, snapshot: Snapshot, policy: Policy, ready: Sequence[Worker], why: str) -> list[Terminate]:
    """Return the earlier worker that ends to make room: one that is held back first, then an idle one.

    None while another one ends.
    """
    mine = (w for w in snapshot.workers if w.pool == pool.name)
    if any(w.exit_cause is ExitCause.SUPERSEDED for w in mine):
        return []
    earlier = [w for w in ready if w.release != policy.release(pool) and w.id not in snapshot.in_flight]
    earlier.sort(key=lambda w: (w.held_back is None, w.tasks_running, w.created_at, w.id))
    return [Terminate(w.id, w.state, ExitCause.SUPERSEDED, None, f"it makes room: {why}") for w in earlier[:1]]
