"""How many nodes a running cluster has: as many as its tasks and its running jobs need, within its limits."""

from collections.abc import Mapping
from types import MappingProxyType

from orchestrator.core.cluster_states import ClusterStatus, MemberStatus
from orchestrator.core.clusters.actions import DrainNode, MoveCluster, MoveMember, OnCluster, OnMember, Remark, Scale
from orchestrator.core.clusters.facts import ClusterFacts
from orchestrator.core.clusters.readings import DaemonState, is_busy
from orchestrator.core.plurals import counted

NOTHING: Mapping[str, None] = MappingProxyType({"waiting_for": None, "deadline_s": None})  # no remark


def is_overdue(facts: ClusterFacts) -> bool:
    """Whether the recorded deadline of the cluster has passed."""
    return facts.row.deadline_at is not None and facts.row.deadline_at <= facts.now


def plan(facts: ClusterFacts) -> OnCluster | None:
    """Let the number of nodes follow the tasks. A surplus is recorded first, and released when its time is over.

    While it is not known which nodes are busy, nothing is released, and the time of a surplus goes on.
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
    if row.deadline_at is None:
        text = f"work for all nodes: {row.nodes - needed} of {row.nodes} have none, and are released then"
        return Remark(text, facts.policy.idle_s)
    return _release(facts, needed) if is_overdue(facts) else None


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
