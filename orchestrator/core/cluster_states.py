"""The states of a cluster, its members, operations and node tasks, and their transitions, as data.

    cluster     requested --> allocating --> deploying --> running <--> degraded --> deleting --> deleted | failed
                    ^_____________|______________________________|         (released: it waits for tasks again)
    member      pending --> reconciling <--> ready <--> draining --> removed, or failed
    operation   accepted --> dispatched --> running --> succeeded | failed | expired
    node task   queued --> dispatched --> completed | failed | expired

The table `cluster_transitions` has the same transitions, and a trigger rejects every other; a test compares the two.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

S = TypeVar("S", bound=StrEnum)


class ClusterStatus(StrEnum):
    """`cluster_apps.status`."""

    REQUESTED = "requested"  # has no nodes: it was just created, or it has released them
    ALLOCATING = "allocating"  # wants its nodes; fails at the deadline unless all of them are promoted
    DEPLOYING = "deploying"  # all members are promoted; Slurm is set up until the deadline
    RUNNING = "running"  # the smoke job succeeded
    DEGRADED = "degraded"  # a member is lost and being replaced, or slurmctld is down
    DELETING = "deleting"  # an operator deletes it; its members drain and their workers end
    DELETED = "deleted"  # final
    FAILED = "failed"  # final; reason and failure_code say why


class MemberStatus(StrEnum):
    """`cluster_members.status`."""

    PENDING = "pending"  # its worker is promoted, and it has joined
    RECONCILING = "reconciling"  # it is being configured
    READY = "ready"  # its daemons answer under the present configuration
    DRAINING = "draining"  # it takes no new Slurm job
    REMOVED = "removed"  # final: the cluster no longer knows it
    FAILED = "failed"  # final: lost, or it could not be configured; its worker ends


class MemberRole(StrEnum):
    """`cluster_members.role`."""

    CONTROLLER = "controller"  # runs slurmctld and slurmd, and claims the pool's tasks
    WORKER = "worker"  # runs slurmd only


class OperationKind(StrEnum):
    """`member_operations.kind`."""

    ADD = "add"
    RECONCILE = "reconcile"
    DRAIN = "drain"
    BOOTSTRAP_SSH = "bootstrap_ssh"


class OperationStatus(StrEnum):
    """`member_operations.status`."""

    ACCEPTED = "accepted"  # recorded; the leader has not looked at it
    DISPATCHED = "dispatched"  # the leader has taken it
    RUNNING = "running"  # the member changes, or its agent has the node task (clusters/operations.py)
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"  # its deadline passed first


class NodeTaskKind(StrEnum):
    """`node_tasks.kind`."""

    AUTHORIZED_KEY = "allocation.reconcile_managed_authorized_key"


class NodeTaskVia(StrEnum):
    """`node_tasks.via`: who carries it to the pod."""

    AGENT = "agent"  # the agent receives it with the reply to a heartbeat
    SSH = "ssh"  # the leader does it over SSH


class NodeTaskStatus(StrEnum):
    """`node_tasks.status`."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"


class ClusterSubject(StrEnum):
    """`cluster_events.subject`: what changed its state."""

    CLUSTER = "cluster"
    MEMBER = "member"
    OPERATION = "operation"
    NODE_TASK = "node_task"


def _pairs(table: Mapping[S, tuple[S, ...]]) -> frozenset[tuple[S, S]]:
    return frozenset((old, new) for old, news in table.items() for new in news)


_C, _M, _O, _N = ClusterStatus, MemberStatus, OperationStatus, NodeTaskStatus

CLUSTER_TRANSITIONS: frozenset[tuple[ClusterStatus, ClusterStatus]] = _pairs(
    {
        _C.REQUESTED: (_C.ALLOCATING, _C.DELETING, _C.FAILED),
        _C.ALLOCATING: (_C.REQUESTED, _C.DEPLOYING, _C.DELETING, _C.FAILED),
        _C.DEPLOYING: (_C.RUNNING, _C.DELETING, _C.FAILED),
        _C.RUNNING: (_C.REQUESTED, _C.DEGRADED, _C.DELETING, _C.FAILED),
        _C.DEGRADED: (_C.REQUESTED, _C.RUNNING, _C.DELETING, _C.FAILED),
        _C.DELETING: (_C.DELETED, _C.FAILED),
    }
)
MEMBER_TRANSITIONS: frozenset[tuple[MemberStatus, MemberStatus]] = _pairs(
    {
        _M.PENDING: (_M.RECONCILING, _M.REMOVED, _M.FAILED),
        _M.RECONCILING: (_M.READY, _M.DRAINING, _M.REMOVED, _M.FAILED),
        _M.READY: (_M.RECONCILING, _M.DRAINING, _M.FAILED),
        _M.DRAINING: (_M.READY, _M.REMOVED, _M.FAILED),
    }
)
OPERATION_TRANSITIONS: frozenset[tuple[OperationStatus, OperationStatus]] = _pairs(
    {
        _O.ACCEPTED: (_O.DISPATCHED, _O.FAILED, _O.EXPIRED),
        _O.DISPATCHED: (_O.RUNNING, _O.SUCCEEDED, _O.FAILED, _O.EXPIRED),
        _O.RUNNING: (_O.SUCCEEDED, _O.FAILED, _O.EXPIRED),
    }
)
NODE_TASK_TRANSITIONS: frozenset[tuple[NodeTaskStatus, NodeTaskStatus]] = _pairs(
    {
        _N.QUEUED: (_N.DISPATCHED, _N.FAILED, _N.EXPIRED),
        _N.DISPATCHED: (_N.COMPLETED, _N.FAILED, _N.EXPIRED),
    }
)
TRANSITIONS: Mapping[ClusterSubject, frozenset[tuple[StrEnum, StrEnum]]] = MappingProxyType(
    {
        ClusterSubject.CLUSTER: frozenset(CLUSTER_TRANSITIONS),
        ClusterSubject.MEMBER: frozenset(MEMBER_TRANSITIONS),
        ClusterSubject.OPERATION: frozenset(OPERATION_TRANSITIONS),
        ClusterSubject.NODE_TASK: frozenset(NODE_TASK_TRANSITIONS),
    }
)

LIVE_CLUSTER = frozenset(ClusterStatus) - {ClusterStatus.DELETED, ClusterStatus.FAILED}
WANTS_NODES = LIVE_CLUSTER - {ClusterStatus.REQUESTED, ClusterStatus.DELETING}  # the pool's target is `nodes`
WORKING = frozenset({ClusterStatus.RUNNING, ClusterStatus.DEGRADED})  # a ready controller runs tasks
LIVE_MEMBER = frozenset(MemberStatus) - {MemberStatus.REMOVED, MemberStatus.FAILED}
OPEN_OPERATION = frozenset({OperationStatus.ACCEPTED, OperationStatus.DISPATCHED, OperationStatus.RUNNING})
OPEN_NODE_TASK = frozenset({NodeTaskStatus.QUEUED, NodeTaskStatus.DISPATCHED})
