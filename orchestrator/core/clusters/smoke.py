"""The smoke job: a cluster counts as running only after a job over two of its nodes (or its only one) succeeded."""

from orchestrator.core.cluster_states import MemberStatus
from orchestrator.core.clusters.actions import OnMember, Smoke
from orchestrator.core.clusters.facts import ClusterFacts
from orchestrator.core.clusters.readings import DaemonState

SMOKE_NODES = 2


def is_deployed(facts: ClusterFacts) -> bool:
    """Whether all wanted nodes are ready, and slurmctld is not known to be down."""
    has_controller = facts.controller is not None and facts.controller.status is MemberStatus.READY
    return has_controller and len(facts.ready) >= facts.row.nodes and facts.slurmctld is not DaemonState.DOWN


def plan(facts: ClusterFacts) -> list[OnMember]:
    """Return the smoke job if every wanted node is ready, and no node is known to be cut off from another one."""
    controller, configuration = facts.controller, facts.configuration
    if controller is None or configuration is None or facts.is_smoked or not is_deployed(facts):
        return []
    is_free = facts.is_free(facts.row.id) and facts.is_free(controller.worker_id)
    if not is_free or facts.slurmctld is not DaemonState.UP:
        return []
    names = {member.node_name for member in facts.ready}
    for member in facts.ready:
        reading = facts.reading(member.worker_id)
        peers = (reading.peers if reading else None) or {}
        if any(reached is False for name, reached in peers.items() if name in names):
            return []
    return [Smoke(controller.worker_id, min(SMOKE_NODES, len(facts.ready)), configuration)]
