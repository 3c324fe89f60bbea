"""The JSON of the API about clusters. A cluster is an app instance, and the fleet is its project."""

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from orchestrator.core.cluster_states import (
    ClusterStatus,
    MemberRole,
    MemberStatus,
    NodeTaskKind,
    NodeTaskStatus,
    NodeTaskVia,
    OperationKind,
    OperationStatus,
)
from orchestrator.core.model import ID_PATTERN
from orchestrator.web.api.models import AnswerModel, InputModel, Moment

MemberId = Annotated[str, StringConstraints(pattern=f"^{ID_PATTERN.pattern}$")]


class ReconcileInput(InputModel):
    """Which member."""

    worker_id: MemberId | None = Field(None, description="The worker, or the name of its node; by default every member")


class WaitsShown(AnswerModel):
    """What an instance waits for."""

    who: str = Field(description="Who must act: orchestrator, provider, operator or nobody")
    what: str
    until: Moment | None
    then: str = Field(description="What happens next by itself")
    fix: str
    code: str | None


class DemandShown(AnswerModel):
    """The tasks of its pool that wait or run."""

    tasks: int
    nodes: int
    largest: int


class DiagnosisShown(AnswerModel):
    """Something that is wrong, from one observation."""

    code: str
    worker_id: str | None = Field(description="Null: the whole cluster")
    cause: str
    evidence: str
    fix: str


class AppInstanceShown(AnswerModel):
    """A cluster."""

    id: str
    project_id: str
    app_slug: str
    pool: str
    status: ClusterStatus
    nodes: int
    min_nodes: int
    max_nodes: int
    ready_nodes: int
    waits: WaitsShown
    diagnoses: list[DiagnosisShown]
    demand: DemandShown
    reason: str | None
    failure_code: str | None
    deadline_at: Moment | None
    created_at: Moment
    status_since: Moment
    smoke_at: Moment | None = Field(description="When the smoke job, over two nodes, succeeded")
    conf_sha: str | None
    delete_requested_at: Moment | None
    usd_per_hour: float = Field(description="Of the workers that live now")
    cost_usd: float | None = Field(description="Of all its workers; null in a list")


class AppInstancesShown(AnswerModel):
    """The clusters."""

    app_instances: list[AppInstanceShown]


class ConnectionShown(AnswerModel):
    """How a member is reached. There is no host name here: SSH connects to an address only."""

    host: str | None
    port: int | None


class MemberWorkerShown(AnswerModel):
    """The worker of a member."""

    id: str
    status: str
    stage: str
    gpu_type: str | None
    gpu_count: int
    data_center: str | None
    price_usd_per_hour: float | None
    pod_id: str | None
    last_heartbeat: Moment | None
    drain_requested_at: Moment | None


class MemberShown(AnswerModel):
    """A member of a cluster."""

    worker_id: str
    node_name: str = Field(description="Slurm's name of the node")
    role: MemberRole
    status: MemberStatus
    reason: str | None
    connection: ConnectionShown
    fabric_addr: str | None = Field(description="The private address between members")
    hostname: str | None = Field(description="What the pod calls itself: nothing connects to it")
    adapter_detail: dict[str, Any] = Field(description="What the last probe said: phase, slurmctld_state, …")
    created_at: Moment
    status_since: Moment
    worker: MemberWorkerShown | None


class MembersShown(AnswerModel):
    """The members, live ones first."""

    members: list[MemberShown]


class NodeTaskShown(AnswerModel):
    """Something that is done on a pod."""

    id: int
    worker_id: str
    operation_id: int | None
    kind: NodeTaskKind
    via: NodeTaskVia
    status: NodeTaskStatus
    error: str | None
    created_at: Moment
    status_since: Moment
    deadline_at: Moment


class OperationShown(AnswerModel):
    """An operation on a member, or on all of them."""

    id: int
    worker_id: str | None = Field(description="Null: every member")
    kind: OperationKind
    status: OperationStatus
    actor: str
    error: str | None
    evidence: dict[str, Any] | None
    created_at: Moment
    status_since: Moment
    deadline_at: Moment


class OperationsShown(AnswerModel):
    """The newest operations and node tasks: of each, 100 open ones and 100 others at most."""

    member_operations: list[OperationShown]
    node_tasks: list[NodeTaskShown]


class OperationsAccepted(AnswerModel):
    """What the leader will do."""

    member_operations: list[OperationShown]
