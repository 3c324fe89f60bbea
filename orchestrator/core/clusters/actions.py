"""The actions of a cluster's plan: a closed union of frozen dataclasses.

The leader's job carries the actions out, one at a time for a member. It writes rows with compare-and-set against the
states in the action, so an action of an outdated plan has no effect.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.cluster_states import ClusterStatus, MemberRole, MemberStatus
from orchestrator.core.clusters.addresses import NodeName
from orchestrator.core.clusters.view import Configuration
from orchestrator.core.failures import FailureCode


@dataclass(frozen=True, slots=True)
class Allocate:
    """Move the cluster to allocating. From then on, its pool's target is `nodes`."""

    nodes: int
    deadline_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Join:
    """Add a promoted worker as a pending member."""

    worker_id: str
    role: MemberRole
    index: int
    node_name: NodeName


@dataclass(frozen=True, slots=True)
class MoveMember:
    """Move a member to another status."""

    worker_id: str
    from_status: MemberStatus
    to_status: MemberStatus
    why: str
    fields: Mapping[str, Any] = field(default_factory=dict)  # of fleet_cluster_member_move


@dataclass(frozen=True, slots=True)
class UpdateMember:
    """Change fields of a member (its role, its addresses, its details) without a change of status."""

    worker_id: str
    status: MemberStatus
    why: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Configure:
    """Write the configuration and the key, start munged, and install Slurm first if `install`."""

    worker_id: str
    configuration: Configuration
    install: bool
    operation_id: int | None = None


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Write another configuration, and restart the member's daemons that run. Jobs on it continue."""

    worker_id: str
    configuration: Configuration
    operation_id: int | None = None


@dataclass(frozen=True, slots=True)
class StartController:
    """Start slurmctld on the controller."""

    worker_id: str
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class StartNode:
    """Start, or restart, a member's slurmd. A node that is down is resumed."""

    worker_id: str
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class Smoke:
    """Run one job over `nodes` nodes from the controller. Its success is stored with the controller's worker id.

    `smoke_evidence` then has {"controller": worker id, "nodes": names}: another controller needs another smoke job.
    """

    worker_id: str  # the controller
    nodes: int
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class DrainNode:
    """Let the node take no new job (on the controller), then move the member from ready to draining."""

    worker_id: str
    controller_id: str
    why: str
    operation_id: int | None = None


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """Stop the daemons of a drained member, then move it to removed. Its worker ends."""

    worker_id: str
    why: str


@dataclass(frozen=True, slots=True)
class ReconcileAuthorizedKey:
    """Put the managed line into authorized_keys: a node task."""

    worker_id: str
    operation_id: int | None


@dataclass(frozen=True, slots=True)
class TakeOverKey:
    """Do a node task over SSH that waits for an agent from which nothing is heard."""

    worker_id: str
    node_task_id: int


@dataclass(frozen=True, slots=True)
class RefuseOperation:
    """Let an operation fail that cannot be done."""

    operation_id: int
    why: str


@dataclass(frozen=True, slots=True)
class MoveCluster:
    """Move the cluster to another status."""

    from_status: ClusterStatus
    to_status: ClusterStatus
    why: str
    fields: Mapping[str, Any] = field(default_factory=dict)  # of fleet_cluster_move


@dataclass(frozen=True, slots=True)
class Scale:
    """Change the number of wanted nodes."""

    nodes: int
    why: str


@dataclass(frozen=True, slots=True)
class Remark:
    """Record what the cluster waits for, and until when. None removes the remark."""

    waiting_for: str | None
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class RecordConfiguration:
    """Record the identity of the configuration that the members should have."""

    conf_sha: str


@dataclass(frozen=True, slots=True)
class Dissolve:
    """Every member and worker is gone: move the cluster from deleting to deleted."""

    why: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Move the cluster to failed. All its workers end."""

    from_status: ClusterStatus
    code: FailureCode
    why: str


OnMember = (
    Join
    | MoveMember
    | UpdateMember
    | Configure
    | Reconfigure
    | StartController
    | StartNode
    | Smoke
    | DrainNode
    | RemoveNode
    | ReconcileAuthorizedKey
    | TakeOverKey
)  # each names its worker; at most one for a worker in a plan
OnCluster = Allocate | MoveCluster | Scale | Remark | RecordConfiguration | Dissolve | Fail  # at most one in a plan
ClusterAction = OnMember | OnCluster | RefuseOperation
