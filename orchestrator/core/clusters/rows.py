"""The rows of clusters as the leader, the commands and the API read them: frozen values without behaviour.

All datetimes are timezone-aware UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.core.cluster_states import (
    ClusterStatus,
    ClusterSubject,
    MemberRole,
    MemberStatus,
    NodeTaskKind,
    NodeTaskStatus,
    NodeTaskVia,
    OperationKind,
    OperationStatus,
)
from orchestrator.core.states import Stage, State


@dataclass(frozen=True, slots=True)
class MemberWorker:
    """The worker of a member, as its row in `workers` has it."""

    id: str
    status: State
    stage: Stage
    gpu_count: int
    gpu_type: str | None
    data_center: str | None
    price_usd_per_hour: float | None
    created_at: datetime
    promoted_at: datetime | None
    last_heartbeat: datetime | None
    drain_requested_at: datetime | None
    pod_id: str | None
    ssh_host: str | None  # the transport address: what SSH connects to
    ssh_port: int | None
    nonce: str | None  # the launch of the agent
    release: str | None
    cluster: str | None  # the cluster that reserves it


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A row of `cluster_members`, with its worker."""

    cluster: str
    worker_id: str
    role: MemberRole
    status: MemberStatus
    node_name: str  # Slurm's name of the node
    index_no: int  # 0..63, unique among the live members of a cluster; its port follows from it
    ssh_host: str | None
    ssh_port: int | None
    fabric_addr: str | None
    hostname: str | None  # what the pod calls itself: shown, and never connected to
    adapter_detail: Mapping[str, Any]
    created_at: datetime
    status_since: datetime
    reason: str | None
    worker: MemberWorker | None  # None: the worker's row is gone


@dataclass(frozen=True, slots=True)
class ClusterDemand:
    """The ready and running tasks of the pool, and the nodes that they ask for. The first 1,000 tasks count."""

    tasks: int
    nodes: int
    largest: int  # nodes of the largest of them; 0 without tasks


@dataclass(frozen=True, slots=True)
class MemberOperation:
    """A row of `member_operations`."""

    id: int
    cluster: str
    worker_id: str | None  # None: every member
    kind: OperationKind
    status: OperationStatus
    actor: str
    error: str | None
    evidence: Mapping[str, Any] | None
    created_at: datetime
    status_since: datetime
    deadline_at: datetime


@dataclass(frozen=True, slots=True)
class NodeTask:
    """A row of `node_tasks`: something that is done on a pod, by its agent or over SSH."""

    id: int
    cluster: str
    worker_id: str
    operation_id: int | None
    kind: NodeTaskKind
    payload: Mapping[str, Any]
    via: NodeTaskVia
    status: NodeTaskStatus
    error: str | None
    created_at: datetime
    status_since: datetime
    deadline_at: datetime


@dataclass(frozen=True, slots=True)
class Event:
    """A row of `cluster_events`: one change of a state."""

    id: int
    cluster: str
    worker_id: str | None
    subject: ClusterSubject
    from_state: str | None  # None: the row was added
    to_state: str
    reason: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """A row of `cluster_apps`, with everything that the report has about it."""

    id: str
    pool: str
    status: ClusterStatus
    nodes: int
    min_nodes: int
    max_nodes: int
    conf_sha: str | None
    reason: str | None
    failure_code: str | None
    waiting_for: str | None
    deadline_at: datetime | None
    created_at: datetime
    status_since: datetime
    smoke_at: datetime | None
    smoke_evidence: Mapping[str, Any] | None
    delete_requested_at: datetime | None
    demand: ClusterDemand
    members: tuple[MemberRow, ...]  # all live ones, and the newest of the others
    unjoined: tuple[MemberWorker, ...]  # live workers that the cluster reserves and that are not members yet
    operations: tuple[MemberOperation, ...]  # the newest first; open ones before ended ones
    node_tasks: tuple[NodeTask, ...]  # the same
    events: tuple[Event, ...]  # the newest first
    cost_usd: float | None  # of all its workers, without storage; None: the report is about all clusters


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """What the database knows about the clusters of a fleet."""

    now: datetime  # the database's time
    clusters: tuple[ClusterRow, ...]
