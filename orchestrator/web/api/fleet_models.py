"""The JSON of the API about the fleet: workers, events, decisions, pools, pauses, costs, and the audit log."""

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, StringConstraints

from orchestrator.web.api.models import (
    MAX_PAGE,
    AnswerModel,
    Cursor,
    InputModel,
    Limit,
    Moment,
    PoolName,
    QueryModel,
    Reason,
)

Subject = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,300}$")]
EntryId = Annotated[int, Field(ge=1, le=2**62)]


class TerminateInput(InputModel):
    """How a worker is to end."""

    reason: Reason = "asked for through the API"
    at_once: bool = Field(False, description="Do not wait for its tasks: they are queued again")


class PauseInput(InputModel):
    """A pause of spawning."""

    reason: Reason = "paused through the API"
    pool: PoolName | None = Field(None, description="By default every pool")
    for_s: Annotated[float, Field(gt=0, le=31_536_000)] | None = Field(None, description="It then ends by itself")


class WorkerQuery(QueryModel):
    """Which workers."""

    ended: bool = Field(False, description="Also those that have ended")
    cursor: Cursor | None = Field(None, description="`next` of a page")
    limit: Limit = MAX_PAGE


class EventQuery(QueryModel):
    """Which events."""

    after: Annotated[int, Field(ge=0, le=2**62)] | None = Field(
        None, description="`next` of a page; by default the list has the newest events, and a stream begins now"
    )
    limit: Limit = 50


class AuditQuery(QueryModel):
    """Which entries of the audit log."""

    subject: Subject | None = Field(None, description="only what was done with this task, worker or pool")
    before: EntryId | None = Field(None, description="`next` of a page")
    limit: Limit = 50


class CostQuery(QueryModel):
    """Which time."""

    since: AwareDatetime | None = Field(None, description="By default 24 hours ago")
    until: AwareDatetime | None = Field(None, description="By default now")


class PoolQuery(QueryModel):
    """Which pool."""

    pool: PoolName | None = Field(None, description="By default every pool")


class WorkerShown(AnswerModel):
    """A worker."""

    id: str
    status: str
    pool: str | None
    stage: str | None
    state_since: Moment
    waiting_on: str | None
    waiting_for: str | None
    deadline_at: Moment | None
    gpu_type: str | None
    gpu_count: int | None
    data_center: str | None
    pod_id: str | None
    price_usd_per_hour: float | None
    cost_usd: float | None = None
    last_heartbeat: Moment | None
    tasks_running: int = 0
    tasks_done: int = 0
    tasks_failed: int = 0
    exit_cause: str | None
    failure_code: str | None
    created_at: Moment
    terminated_at: Moment | None = None


class WorkersShown(AnswerModel):
    """Workers, newest first."""

    workers: list[WorkerShown]
    next: str | None = Field(description="The cursor of the next page")


class WorkerAsked(AnswerModel):
    """Whether the worker's end was requested now, or before."""

    outcome: Literal["requested", "already"]


class DecisionShown(AnswerModel):
    """A scaling decision."""

    id: int
    pool: str
    at: Moment
    term: int
    rule: str
    target: int
    inputs: Any
    actions: Any
    blocked: Any


class DecisionsShown(AnswerModel):
    """Decisions, newest first."""

    decisions: list[DecisionShown]
    next: int | None


class PoolShown(AnswerModel):
    """A pool, by its last decision."""

    pool: str
    decision: DecisionShown | None
    paused: Any = None


class PoolsShown(AnswerModel):
    """The pools, and the offers of the fleet."""

    pools: list[PoolShown]
    offers: list[dict[str, Any]]
    leader: dict[str, Any] | None


class ConditionShown(AnswerModel):
    """One thing that is wrong with the fleet."""

    kind: str = Field(description="See the table in docs/health.md")
    severity: Literal["HIGH", "MEDIUM", "LOW"]
    subject: str = Field(description="The pool, worker or task that it is about; empty: the fleet")
    text: str
    evidence: str
    who: str = Field(description="Who must act")
    then: str = Field(description="What happens by itself to the tasks that wait because of it")
    pools: list[str] | None = Field(description="Pools whose tasks wait because of it; null: every pool")
    since: Moment | None
    until: Moment | None


class HealthShown(AnswerModel):
    """What the orchestrator that leads finds wrong, the most urgent first."""

    at: Moment
    led: bool = Field(description="Whether an orchestrator leads the fleet")
    healthy: bool | None = Field(description="False if work or money is affected; null: no recent finding")
    first_cause: ConditionShown | None = Field(description="The first condition that affects work or money")
    conditions: list[ConditionShown]


class PauseShown(AnswerModel):
    """A pause of spawning."""

    reason: str
    until: Moment | None


class PausesShown(AnswerModel):
    """Pauses by pool; `*` is every pool."""

    pauses: dict[str, PauseShown]


class EventShown(AnswerModel):
    """What happened to a worker."""

    id: int
    at: Moment
    worker_id: str
    pool: str | None
    from_state: str | None
    to_state: str
    from_stage: str | None
    to_stage: str | None
    reason: str
    actor: str


class EventsShown(AnswerModel):
    """Events, oldest first."""

    events: list[EventShown]
    next: int = Field(description="`after` of the next page, also if there is none yet")


class ExplanationShown(AnswerModel):
    """Where something is, and why."""

    subject: str
    at: Moment
    who: str = Field(description="Who must act: orchestrator, provider, worker, operator, capacity, budget or nobody")
    what: str
    code: str | None
    since: Moment | None
    until: Moment | None
    then: str = Field(description="What happens next by itself")
    fix: str
    detail: dict[str, Any]


class ReasonExplained(AnswerModel):
    """Why a pool does not get what it wants."""

    kind: str
    count: int
    unit: str
    text: str
    who: str
    then: str
    fix: str
    since: Moment | None
    until: Moment | None


class PoolExplained(AnswerModel):
    """Why a pool has its size, by its last decision."""

    pool: str
    at: Moment
    target: int
    sentence: str
    rule: str
    inputs: dict[str, Any]
    blocked: list[ReasonExplained]
    waiting: list[dict[str, Any]] = Field(description="Workers that wait for capacity, budget or an operator")


class ScalingExplained(AnswerModel):
    """The pools that have had a decision."""

    at: Moment
    pools: list[PoolExplained]


class PodChargeShown(AnswerModel):
    """A pod that RunPod charged and that has no cost in our records of these hours."""

    pod_id: str
    usd: float
    worker_id: str | None = Field(description="The worker in this database that has or had the pod")
    fleet: str | None = Field(description="The fleet of this worker")
    terminated_at: Moment | None = Field(
        description="When this worker ended; before `since`, the pod is charged although its worker has ended"
    )


class BillShown(AnswerModel):
    """RunPod's bill of a day next to our records, which the leader compares once an hour."""

    at: Moment | None = Field(None, description="When they were compared; null: not yet, see `error`")
    since: Moment | None = None
    until: Moment | None = None
    ours_usd: float | None = None
    theirs_usd: float | None = Field(None, description="What RunPod charged for the pods in our records")
    pods: int | None = Field(None, description="Pods in our records that RunPod charged")
    our_pods: int | None = Field(None, description="Pods in our records")
    unbooked_usd: float | None = Field(None, description="What RunPod charged for pods without a cost in our records")
    unbooked_pods: int | None = None
    unbooked: list[PodChargeShown] = Field(description="The most expensive of these pods, at most 20")
    error: str | None = Field(None, description="Why the bill could not be read since `failing_since`")
    failed_at: Moment | None = None
    failing_since: Moment | None = None


class CostShown(AnswerModel):
    """Dollars in a time."""

    since: Moment
    until: Moment
    usd: float
    kinds: dict[str, Any]
    types: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    workers_left_out: int = Field(description="How many workers are not listed; a shorter time has fewer")
    bill: BillShown | None = Field(
        description="The last comparison with RunPod's bill, of its own 24 hours; null: the leader has not asked yet"
    )


class AuditEntry(AnswerModel):
    """One action."""

    id: int
    at: Moment
    actor: str
    action: str
    subject: str
    detail: Any = None


class AuditPage(AnswerModel):
    """Entries, newest first."""

    entries: list[AuditEntry]
    next: int | None
