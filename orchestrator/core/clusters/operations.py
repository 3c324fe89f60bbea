"""What operators asked for: the actions of operations that no leader has taken yet, or that one took and did not do.

An operation on a whole cluster waits until none of its members has a running action, and then acts on all of them. One
that cannot be done now waits until its deadline; one that never can be done is refused.
"""

from datetime import datetime

from orchestrator.core.cluster_states import (
    OPEN_NODE_TASK,
    MemberStatus,
    NodeTaskVia,
    OperationKind,
    OperationStatus,
)
from orchestrator.core.clusters.actions import (
    Configure,
    DrainNode,
    OnMember,
    ReconcileAuthorizedKey,
    Reconfigure,
    RefuseOperation,
    TakeOverKey,
)
from orchestrator.core.clusters.facts import CONFIGURED, ClusterFacts
from orchestrator.core.clusters.readings import NO_CONFIGURATION
from orchestrator.core.clusters.rows import MemberOperation, MemberRow, MemberWorker

HEARD_S = 60.0  # an agent that was heard within it gets its node tasks with its next heartbeat
CONTROLLER_STAYS = (
    "it is the controller, whose agent runs the tasks: python -m orchestrator terminate ends it after its task, "
    "and another member becomes the controller"
)


def plan(facts: ClusterFacts) -> tuple[list[OnMember], list[RefuseOperation]]:
    """Return the actions of accepted operations, the oldest first, and the refusals."""
    actions: list[OnMember] = []
    refused: list[RefuseOperation] = []
    taken: set[str] = set()
    waiting = [one for one in facts.row.operations if one.status is OperationStatus.ACCEPTED or _is_left(one, facts)]
    for operation in sorted(waiting, key=lambda one: one.id):
        if operation.kind is OperationKind.ADD:  # it describes a join
            continue
        members = [m for m in facts.live if operation.worker_id in (None, m.worker_id)]
        why = _refusal(operation, members, facts)
        if why is not None:
            refused.append(RefuseOperation(operation.id, why))
            continue
        names = {member.worker_id for member in members}
        if names & (taken | facts.view.in_flight):
            continue
        wanted = [_action(operation, member, facts) for member in members]
        if all(one is not None for one in wanted):
            actions += [one for one in wanted if one is not None]
            taken |= names
    return actions, refused


def is_heard(worker: MemberWorker | None, now: datetime) -> bool:
    """Whether the agent of a worker will take a node task with one of its next heartbeats."""
    heard_at = worker.last_heartbeat if worker else None
    return heard_at is not None and (now - heard_at).total_seconds() < HEARD_S


def taken_over(facts: ClusterFacts) -> list[OnMember]:
    """Return the node tasks that wait for agents that have fallen silent. SSH is used only where it works."""
    reached = {one.worker_id: one for one in facts.live if not one.adapter_detail.get("unreached_since")}
    return [
        TakeOverKey(task.worker_id, task.id)
        for task in facts.row.node_tasks
        if task.via is NodeTaskVia.AGENT and task.status in OPEN_NODE_TASK and task.worker_id in reached
        if not is_heard(reached[task.worker_id].worker, facts.now)
    ]


def _is_left(operation: MemberOperation, facts: ClusterFacts) -> bool:
    """Whether a leader that is gone took an operation without doing it: no call runs, and the rows show no result."""
    if operation.status is not OperationStatus.DISPATCHED or operation.worker_id in facts.view.in_flight:
        return False
    if operation.kind is OperationKind.BOOTSTRAP_SSH:
        return not any(task.operation_id == operation.id for task in facts.row.node_tasks)
    is_ready = any(m.worker_id == operation.worker_id for m in facts.ready)
    return is_ready if operation.kind is OperationKind.DRAIN else operation.kind is OperationKind.RECONCILE


def _refusal(operation: MemberOperation, members: list[MemberRow], facts: ClusterFacts) -> str | None:
    if not members:
        return "the cluster has no such live member"
    if operation.kind is not OperationKind.DRAIN:
        return None
    if operation.worker_id is None:
        return "name one worker"
    member = members[0]
    if member.status is MemberStatus.DRAINING:
        return "it is draining already"
    if member is facts.controller:
        return CONTROLLER_STAYS
    return None


def _action(operation: MemberOperation, member: MemberRow, facts: ClusterFacts) -> OnMember | None:
    """Return the action of an operation on one member; None if it must wait."""
    if operation.kind is OperationKind.BOOTSTRAP_SSH:
        return ReconcileAuthorizedKey(member.worker_id, operation.id)
    if operation.kind is OperationKind.DRAIN:
        if member.status is not MemberStatus.READY or facts.controller is None:
            return None
        return DrainNode(member.worker_id, facts.controller.worker_id, f"{operation.actor} asked for it", operation.id)
    reading, configuration = facts.reading(member.worker_id), facts.configuration
    if reading is None or configuration is None or member.status not in CONFIGURED:
        return None
    if reading.conf_sha == NO_CONFIGURATION or reading.slurm_installed is False:
        install = facts.policy.install_slurm and reading.slurm_installed is False
        return Configure(member.worker_id, configuration, install, operation.id)
    return Reconfigure(member.worker_id, configuration, operation.id)
