"""How workers of the present release come into the place of earlier ones, which keep their code for their life.

A worker that handed back a task because only the present release has a handler for it is marked in its row (LACKS). As
long as no worker of the present release is ready, one is brought up beyond the target, behind the brakes as any canary;
only where there is no place or no money for it one earlier worker goes first. Once it is ready the marked ones go. The
others stay: they do what they can do until such a task comes to them as well.
"""

from collections.abc import Sequence

from orchestrator.core.actions import Terminate
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.model import LACKS, Demand, Policy, Pool, Snapshot, Worker
from orchestrator.core.states import READY


def end(worker: Worker, snapshot: Snapshot, policy: Policy) -> Terminate | None:
    """The end of a ready worker that lacks a handler, once one that has it is ready or the database has drained it."""
    pool = next((p for p in policy.pools if p.name == worker.pool), None)
    if pool is None or worker.stop_requested_at is not None or not policy.succeeds(pool, worker):
        return None
    here = (w for w in snapshot.workers if w.pool == pool.name and w.state in READY)
    if worker.drain_requested_at is None and all(w.release != policy.release(pool) for w in here):
        return None
    why = f"its release {worker.release} has no handler for {worker.metadata[LACKS]}, {policy.release(pool)} has one"
    return Terminate(worker.id, worker.state, ExitCause.SUPERSEDED, None, why)


def awaited(pool: Pool, policy: Policy, workers: Sequence[Worker], demand: Demand) -> str | None:
    """What waits for a first worker of the present release, if something does; `workers` are all of the pool."""
    waiting = demand.claimable or demand.blocked.get("scheduled")
    if not waiting or not pool.max_active:
        return None
    if any(w.state in READY and w.release == policy.release(pool) for w in workers):
        return None
    marked = next((w for w in workers if policy.succeeds(pool, w)), None)
    return f"tasks of type {marked.metadata[LACKS]} wait for release {policy.release(pool)}" if marked else None


def place(pool: Pool, snapshot: Snapshot, policy: Policy, ready: Sequence[Worker], why: str) -> list[Terminate]:
    """The one earlier worker that makes place, an idle one first; none while another still does."""
    mine = (w for w in snapshot.workers if w.pool == pool.name)
    if any(w.exit_cause is ExitCause.SUPERSEDED for w in mine):
        return []
    earlier = [w for w in ready if w.release != policy.release(pool) and w.id not in snapshot.in_flight]
    earlier.sort(key=lambda w: (w.tasks_running, w.created_at, w.id))
    return [Terminate(w.id, w.state, ExitCause.SUPERSEDED, None, f"it makes place: {why}") for w in earlier[:1]]
