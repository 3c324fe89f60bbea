"""The input of a cluster's plan and its actions: a closed union of frozen dataclasses.

The leader's job carries the actions out, one at a time for a member. It writes rows with compare-and-set against the
states in the action, so an action of an outdated plan has no effect.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from orchestrator.core.cluster_addresses import FabricAddress, NodeName
from orchestrator.core.cluster_readings import Observed
from orchestrator.core.cluster_rows import ClusterRow
from orchestrator.core.cluster_states import ClusterStatus, MemberRole, MemberStatus
from orchestrator.core.failures import FailureCode

MAX_NODES = 64  # of one cluster


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a configuration, from its member's row, so that every leader gets the same."""

    worker_id: str
    name: NodeName
    address: FabricAddress
    index: int  # its slurmd's port follows from it
    cpus: int
    memory_mb: int | None  # None: Slurm does not count memory
    gpus: int
    gpu_files: int  # the number of /dev/nvidia<n>; 0: the GPUs are counted without files


@dataclass(frozen=True, slots=True)
class Configuration:
    """The content of slurm.conf and gres.conf of a whole cluster."""

    cluster: str
    controller: NodeName
    nodes: tuple[Node, ...]  # by index


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What is known about one cluster: its rows, and what this leader has seen. A new leader has seen nothing."""

    row: ClusterRow
    now: datetime  # the database's clock
    observed: Mapping[str, Observed] = field(default_factory=dict)  # worker -> since its last action began
    in_flight: frozenset[str] = frozenset()  # workers with a running action, and the cluster's id for one of its own
    retry_at: Mapping[str, datetime] = field(default_factory=dict)  # worker or cluster id -> end of its backoff
    usd_per_node_hour: float | None = None  # the usual price of one node


@dataclass(frozen=True, slots=True)
class ClusterPolicy:
    """The numbers of the plan. `conf_sha` is the identity of the text that a configuration becomes."""

    conf_sha: Callable[[Configuration], str]
    install_slurm: bool = False  # whether Slurm may be installed on a pod whose image has none
    idle_s: float = 600  # for how long less work must be waiting before nodes are released
    allocate_s: float = 1_800  # until every node of a new cluster is promoted
    deploy_s: float = 900  # from then until the smoke job has succeeded
    reconcile_s: float = 300  # of one member, before it is replaced
    lost_s: float = 60  # a member that neither SSH nor slurmctld knows
    cut_off_s: float = 900  # a member that SSH does not reach, if slurmctld says nothing either: as long as a deadman
    fresh_s: float = 30  # a reading that is older says nothing
    delete_s: float = 600  # for running jobs, after a delete was asked for
    drain_s: float = 86_400  # for the jobs of a node that is drained
    remove_s: float = 60  # for stopping the daemons of a drained node


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
)  # each names its worker; at most one for a worker in a plan
OnCluster = Allocate | MoveCluster | Scale | Remark | Dissolve | Fail  # at most one in a plan
ClusterAction = OnMember | OnCluster | RefuseOperation
