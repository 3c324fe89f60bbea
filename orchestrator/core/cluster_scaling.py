"""The size of a cluster pool: the nodes that its live cluster wants, and none without one.

A node that drains is no capacity, so its replacement is started at once. A worker ends only if the cluster does not
keep it: its member was removed or has failed, it exceeds the wanted nodes and never joined, or its cluster has ended.
Nothing ends because it is idle. The money for all missing nodes must be there before the first of them is recorded. A
cluster that begins gets none either while the pool may not have all of its nodes: it would pay for the others in vain.
"""

from copy import copy
from dataclasses import replace

from orchestrator.core import scale_limits
from orchestrator.core.actions import Action, PoolDecision, Terminate
from orchestrator.core.blocked import SPAWNS, TASKS, WORKERS, Blocked, BlockedReason
from orchestrator.core.budget import BudgetRoom
from orchestrator.core.cluster_states import LIVE_MEMBER, WANTS_NODES, ClusterStatus, MemberStatus
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import ClusterNeed, Demand, Snapshot, Worker
from orchestrator.core.policy import Policy, Pool
from orchestrator.core.pool_size import Size
from orchestrator.core.provider import Offer
from orchestrator.core.states import READY, Stage, State


def size(pool: Pool, snapshot: Snapshot, policy: Policy, *, leaving: frozenset[str]) -> Size:
    """Calculate the size of a cluster pool. The workers `leaving` end in this tick."""
    need = next((one for one in snapshot.clusters if one.pool == pool.name), None)
    demand = next((d for d in snapshot.demand if d.pool == pool.name), Demand(pool.name, 0, 0, {}, None))
    mine = [w for w in snapshot.workers if w.pool == pool.name]
    here = [w for w in mine if w.id not in leaving and (w.state is State.SPAWNING or w.state in READY)]
    going = [w for w in mine if w.state is State.TERMINATING or w.id in leaving]
    wanted = need.nodes if need is not None and need.status in WANTS_NODES else 0
    nodes = [w for w in here if _status(need, w) in LIVE_MEMBER - {MemberStatus.DRAINING}]
    free = [w for w in here if need is not None and w.cluster == need.id and _status(need, w) is None]
    free.sort(key=lambda w: (w.state is State.SPAWNING, w.created_at, w.id))  # a ready one is the first to join
    room = max(0, wanted - len(nodes))
    kept = {w.id for w in (*nodes, *free[:room])} | {w.id for w in here if _status(need, w) is MemberStatus.DRAINING}
    capacity = [*nodes, *free[:room]]
    draining = len(kept) - len(capacity)
    target = max(0, min(wanted, pool.most - draining))
    if begins(need) and target < wanted:
        target = min(target, len(capacity))
    found = Size(
        demand,
        [w for w in capacity if w.state in READY],
        [w for w in capacity if w.state is State.SPAWNING],
        going,
        busy=sum(1 for w in capacity if w.tasks_running),
        running=demand.running,
        wanted=wanted,
        target=target,
        cluster=need,
        unwanted=tuple(w for w in here if w.id not in kept),
    )
    if found.missing <= 0:
        return found
    return replace(found, refused=refusal(pool, found.missing, BudgetRoom(snapshot, policy)))


def begins(need: ClusterNeed | None) -> bool:
    """Whether it waits until all of its nodes are there."""
    return need is not None and need.status is ClusterStatus.ALLOCATING


def _status(need: ClusterNeed | None, worker: Worker) -> MemberStatus | None:
    return need.members.get(worker.id) if need is not None and worker.cluster == need.id else None


def refusal(pool: Pool, nodes: int, room: BudgetRoom) -> Blocked | None:
    """Return why the rest of the budgets does not pay for so many nodes on any offer of the pool."""
    first = None
    for offer in pool.offers:
        refused = _refusal(pool, offer, nodes, copy(room))
        if refused is None:
            return None
        first = first or refused
    return None if first is None else Blocked(BlockedReason.CLUSTER_BUDGET, detail={**first.detail, "nodes": nodes})


def _refusal(pool: Pool, offer: Offer, nodes: int, room: BudgetRoom) -> Blocked | None:
    for _ in range(nodes):
        refused = room.refusal(pool, offer)
        if refused is not None:
            return refused
        room.take(pool, offer)
    return None


def keep(pool: Pool, nodes: int, room: BudgetRoom) -> None:
    """Keep the money of so many nodes from other pools, on the first offer that it pays for."""
    offer = next((one for one in pool.offers if _refusal(pool, one, nodes, copy(room)) is None), None)
    if offer is None:
        return
    for _ in range(nodes):
        room.take(pool, offer)


def plan(pool: Pool, mine: Size, snapshot: Snapshot) -> tuple[list[Action], PoolDecision]:
    """Return the ends of workers that the cluster does not keep, and the decision. Spawns are scaling.py's."""
    need = mine.cluster
    ends: list[Action] = [_end(worker, need) for worker in mine.unwanted if worker.id not in snapshot.in_flight]
    if need is None:
        rule = "no cluster of this pool is live: 0"
    else:
        nodes = f"{mine.wanted} nodes of cluster {need.id} ({need.status})"
        rule = f"min({nodes}, {scale_limits.most_text(pool)}) = {mine.target}"
    reasons = []
    if need is None and mine.demand.claimable:
        reasons.append(Blocked(BlockedReason.NO_CLUSTER, mine.demand.claimable, TASKS))
    if mine.wanted > pool.max_active:
        limit = {"limit": pool.max_active}
        reasons.append(Blocked(BlockedReason.MAX_ACTIVE, mine.wanted - pool.max_active, WORKERS, limit))
    if pool.scale_limit and mine.wanted > pool.most:
        count = min(mine.wanted, pool.max_active) - min(mine.target, pool.most)
        reasons.append(scale_limits.reason(pool.scale_limit, count, WORKERS))
    if mine.refused is not None:
        reasons.append(replace(mine.refused, count=mine.asked, unit=SPAWNS))
    inputs: dict[str, object] = {
        "claimable": mine.demand.claimable,
        "running": mine.running,
        "blocked": dict(sorted(mine.demand.blocked.items())),
        "ready": len(mine.ready),
        "busy": mine.busy,
        "spawning": len(mine.spawning),
        "terminating": len(mine.ending),
        "wanted": mine.wanted,
        "max_active": pool.max_active,
        "cluster": need.id if need else None,
    }
    return ends, PoolDecision(pool.name, rule, mine.target, inputs, tuple(reasons))


def _end(worker: Worker, need: ClusterNeed | None) -> Terminate:
    status = _status(need, worker)
    if status is MemberStatus.FAILED and worker.state in READY:
        why = f"as a node of cluster {worker.cluster} it has failed"
        return Terminate(worker.id, worker.state, ExitCause.HEARTBEAT_LOST, FailureCode.MEMBER_LOST, why)
    if need is None or worker.cluster != need.id:
        why = f"its cluster {worker.cluster} has ended" if worker.cluster else "no cluster reserves it"
    elif status is MemberStatus.REMOVED:
        why = f"cluster {need.id} has removed it"
    else:
        why = f"cluster {need.id} ({need.status}) needs no more than {need.nodes} nodes"
    code = FailureCode.INTENT_STALE if worker.stage is Stage.INTENT else None
    return Terminate(worker.id, worker.state, ExitCause.SCALE_DOWN, code, why)
