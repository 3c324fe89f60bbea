"""How a member leaves its cluster: it fails, its worker is to end, it drains, or its cluster ends.

A member whose worker is to end drains, and the worker waits for it. The controller does not drain: its worker waits for
the task of its agent, then another member becomes the controller.
"""

from orchestrator.core.cluster_states import WORKING, MemberStatus
from orchestrator.core.clusters.actions import DrainNode, MoveMember, OnMember, RemoveNode
from orchestrator.core.clusters.details import own_detail
from orchestrator.core.clusters.facts import ClusterFacts
from orchestrator.core.clusters.readings import DaemonState, is_busy, is_drained, is_draining, is_up
from orchestrator.core.clusters.rows import MemberRow
from orchestrator.core.failures import FailureCode


def failed(member: MemberRow, code: FailureCode, why: str) -> MoveMember:
    """Return the move of a member that cannot be a node: its cluster replaces it."""
    detail = own_detail(member) | {"phase": "failed", "failure_code": str(code), "error": why}
    return MoveMember(member.worker_id, member.status, MemberStatus.FAILED, why, {"adapter_detail": detail})


def departure(member: MemberRow, facts: ClusterFacts) -> OnMember | None:
    """Return the drain, or the end, of a member whose worker is to end. None: it goes on as it is, until it can drain.

    Nothing runs on a node before the cluster runs. A node with a job, or one of which Slurm says nothing, is not given
    up: the worker's own bound ends the wait.
    """
    controller, why = facts.controller, "its worker is to end"
    if controller is None or member is controller or not facts.is_free(member.worker_id):
        return None
    if member.status is MemberStatus.READY:
        is_able = facts.slurmctld is DaemonState.UP and facts.row.status in WORKING
        return DrainNode(member.worker_id, controller.worker_id, why) if is_able else None
    state = facts.state_of(member)
    if member.status is MemberStatus.PENDING or (state is not None and not is_busy(state)):
        return MoveMember(member.worker_id, member.status, MemberStatus.REMOVED, why)
    return None


def draining(member: MemberRow, facts: ClusterFacts, bound_s: float) -> OnMember | None:
    """Remove a drained member. Its bound ends the wait for its jobs, and another one the wait for its pod.

    A slurmctld without its old state, as on another controller, is told again that the node drains.
    """
    name, waited_s = member.worker_id, (facts.now - member.status_since).total_seconds()
    is_over = waited_s >= bound_s
    if waited_s >= bound_s + facts.policy.remove_s or (is_over and facts.reading(name) is None):
        why = f"still draining after {waited_s:.0f} s"
        return MoveMember(name, MemberStatus.DRAINING, MemberStatus.REMOVED, why)
    if not facts.is_free(name):
        return None
    state = facts.state_of(member)
    if is_drained(state) and facts.has_registered:
        return RemoveNode(name, "no job runs on its node")
    if is_over:
        why = f"still busy after {waited_s:.0f} s" if bound_s else f"the cluster is {facts.row.status}"
        return RemoveNode(name, why)
    if facts.controller is not None and is_up(state) and not is_draining(state):
        # another slurmctld, with an empty state
        return DrainNode(name, facts.controller.worker_id, member.reason or "it leaves the cluster")
    return None


def leave(member: MemberRow, facts: ClusterFacts, bound_s: float) -> OnMember | None:
    """Return the next step of a member whose cluster needs none: `bound_s` is the time for its jobs."""
    if member.worker_id in facts.view.in_flight:
        return None
    lost = facts.lost(member)
    if lost is not None:
        return failed(member, *lost)
    if member.status is MemberStatus.DRAINING:
        return draining(member, facts, bound_s)
    drains = member.status is MemberStatus.READY or facts.may_work(member)
    to_status = MemberStatus.DRAINING if drains else MemberStatus.REMOVED
    return MoveMember(member.worker_id, member.status, to_status, f"the cluster is {facts.row.status}")
