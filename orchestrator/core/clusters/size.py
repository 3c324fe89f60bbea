"""How many nodes a running cluster has: as many as its tasks and its running jobs need, within its limits."""

from collections.abc import Mapping
from types import MappingProxyType

from orchestrator.core.cluster_states import ClusterStatus, MemberStatus
from orchestrator.core.clusters.actions import DrainNode, MoveCluster, MoveMember, OnCluster, OnMember, Remark, Scale
from orchestrator.core.clusters.facts import ClusterFacts
from orchestrator.core.clusters.readings import DaemonState, is_busy
from orchestrator.core.clusters.rows import ClusterRow
from orchestrator.core.plurals import counted

NOTHING: Mapping[str, None] = MappingProxyType({"waiting_for": None, "deadline_s": None})  # no remark


def is_overdue(facts: ClusterFacts) -> bool:
    """Whether the recorded deadline of the cluster has passed."""
    return facts.row.deadline_at is not None and facts.row.deadline_at <= facts.now


def plan(facts: ClusterFacts) -> OnCluster | None:
    """Let the number of nodes follow the tasks. A surplus is recorded first, and released when its time is over.

    Only as many nodes are released as had no work all that time. While it is not known which nodes are busy, nothing is
    released, and the time of a surplus goes on.
    """
    row = facts.row
    if facts.for_tasks > row.nodes:
        why = f"the tasks need {counted(facts.for_tasks, 'node')}" + _cost(facts, facts.for_tasks)
        return Scale(facts.for_tasks, why)
    if facts.for_tasks < row.nodes and facts.busy is None:
        return None
    needed = min(max(facts.for_tasks, facts.busy or 0), row.nodes)
    if row.nodes == 0 and facts.busy == 0:  # an operator asked for none
        return MoveCluster(row.status, ClusterStatus.REQUESTED, "no node is wanted", NOTHING)
    if needed == row.nodes:
        return Remark(None, None) if row.deadline_at is not None else None
    return _shrink(facts, row.nodes - needed)


def _shrink(facts: ClusterFacts, surplus: int) -> OnCluster | None:
    row, recorded = facts.row, _recorded(facts.row)
    if row.deadline_at is None or recorded is None:
        return Remark(_surplus(surplus, row.nodes), facts.policy.idle_s)
    if surplus < recorded:
        left_s = max(0.0, (row.deadline_at - facts.now).total_seconds())
        return Remark(_surplus(surplus, row.nodes), left_s)
    return _release(facts, row.nodes - recorded) if is_overdue(facts) else None


def _surplus(nodes: int, of: int) -> str:
    return f"work for all nodes: {nodes} of {of} have none, and are released then"


def _recorded(row: ClusterRow) -> int | None:
    """Return the recorded surplus; None if none is recorded, or one of another size of the cluster."""
    return next((n for n in range(1, row.nodes + 1) if row.waiting_for == _surplus(n, row.nodes)), None)


def _release(facts: ClusterFacts, needed: int) -> OnCluster:
    idle_s = facts.policy.idle_s
    if needed == 0:
        why = f"no task needed a node for {idle_s:.0f} s: all are released"
        return MoveCluster(facts.row.status, ClusterStatus.REQUESTED, why, {"nodes": 0, **NOTHING})
    return Scale(needed, f"only {counted(needed, 'node')} had work for {idle_s:.0f} s")


def _cost(facts: ClusterFacts, nodes: int) -> str:
    rate = facts.view.usd_per_node_hour
    return f", about ${rate * nodes:.2f}/h" if rate is not None else ""


def drains(facts: ClusterFacts) -> list[OnMember]:
    """Drain the nodes beyond the wanted number: first those without a job that are not ready, never the controller.

    No node is drained that the tasks need: it would be replaced at once. One that is being repaired may have a job.
    """
    wanted = max(facts.row.nodes, facts.for_tasks)
    surplus = len(facts.kept) - wanted
    controller = facts.controller
    if surplus <= 0 or controller is None:
        return []
    others = [m for m in facts.kept if m is not controller]
    others.sort(key=lambda m: (is_busy(facts.state_of(m)), m.status is MemberStatus.READY, -m.index_no))
    is_up = facts.slurmctld is DaemonState.UP
    drains: list[OnMember] = []
    for member in others[:surplus]:
        why = f"the cluster needs no more than {counted(wanted, 'node')}"
        if member.status is MemberStatus.READY:
            if is_up and facts.is_free(member.worker_id):
                drains.append(DrainNode(member.worker_id, controller.worker_id, why))
        elif member.status is MemberStatus.PENDING or (is_up and not facts.may_work(member)):
            drains.append(MoveMember(member.worker_id, member.status, MemberStatus.REMOVED, why))
    return drains
