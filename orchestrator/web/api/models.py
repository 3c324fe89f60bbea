"""The JSON of the API. An answer has the fields named here and no others: rows have more, which is not for callers."""

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from orchestrator.core.api_tokens import MAX_TENANT_CHARS
from orchestrator.core.moments import moment

MAX_TASKS = 1_000  # of one submission
MAX_PAGE = 200
TASK_REFERENCE = r"^(#[0-9]{1,4}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})$"
MAX_INT = 2**31 - 1
STATUSES = Literal["Queued", "In Progress", "Complete", "Failed", "Cancelled"]
PoolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]
Tenant = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TENANT_CHARS)]
ConcurrencyKey = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")]
TaskType = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Label = Annotated[str, StringConstraints(max_length=264, pattern=r"^[^=\x00-\x1f\x7f]{1,63}=[^\x00]{0,200}$")]
Cursor = Annotated[str, StringConstraints(max_length=200)]
TaskReference = Annotated[str, StringConstraints(pattern=TASK_REFERENCE)]
WebhookUrl = Annotated[
    str, StringConstraints(max_length=2_000, pattern=r"^[Hh][Tt][Tt][Pp][Ss]?://[A-Za-z0-9._:\[\]-]+([/?][!-\"$-~]*)?$")
]
Reason = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Moment = Annotated[datetime, BeforeValidator(lambda value: moment(value) if isinstance(value, str) else value)]
Limit = Annotated[int, Field(ge=1, le=MAX_PAGE, description="Rows of the page")]


class InputModel(BaseModel):
    """What a caller sends: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


class TaskInput(InputModel):
    """One task to submit."""

    task_type: TaskType
    params: dict[str, Any] = Field(default_factory=dict, description="Given to the handler; at most 1 MiB of JSON")
    pool: PoolName | None = Field(None, description="By default the pool of its type")
    priority: Annotated[int, Field(ge=-MAX_INT - 1, le=MAX_INT)] | None = Field(None, description="Higher runs first")
    max_attempts: Annotated[int, Field(ge=1, le=100)] | None = None
    run_after: AwareDatetime | None = Field(None, description="Not before this time")
    depends_on: Annotated[list[TaskReference], Field(max_length=10_000)] | None = Field(
        None, description='Ids of tasks that must be Complete first; "#0" is the first task of the submission'
    )
    dedupe_key: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = Field(
        None, description="While a live task has this key, no second one is created"
    )
    timeout_s: Annotated[float, Field(ge=0.001, le=2_592_000)] | None = Field(None, description="Of one attempt")
    tenant: Tenant | None = Field(None, description="A token with a tenant sets its own")
    concurrency_key: ConcurrencyKey | None = Field(None, description="One task of a key runs at a time, or its limit")
    labels: Annotated[dict[str, str], Field(max_length=16)] | None = None
    traceparent: str | None = Field(
        None, description="The trace that it is a part of (W3C Trace Context), by default that of the request's header"
    )
    webhook_url: WebhookUrl | None = Field(None, description="Gets a signed message when the task ends")
    webhook_progress: bool | None = Field(None, description="It also gets the progress")


class TasksInput(InputModel):
    """Several tasks, submitted together or not at all."""

    tasks: Annotated[list[TaskInput], Field(min_length=1, max_length=MAX_TASKS)]


class QueryModel(InputModel):
    """The parameters of a query."""

    repeated: ClassVar[frozenset[str]] = frozenset()  # parameters that may be given several times


class Nothing(QueryModel):
    """No parameters."""


class TaskQuery(QueryModel):
    """Which tasks."""

    repeated: ClassVar[frozenset[str]] = frozenset({"label"})

    status: STATUSES | None = None
    task_type: TaskType | None = None
    tenant: Tenant | None = None
    pool: PoolName | None = None
    label: Annotated[list[Label], Field(max_length=16)] | None = Field(
        None, description="`key=value`; with several of them, tasks that have all"
    )
    cursor: Cursor | None = Field(None, description="`next` of a page")
    limit: Limit = 50

    def wanted(self) -> dict[str, Any]:
        """The argument `p_filter` of SQL functions."""
        labels = [dict([pair.split("=", 1)]) for pair in self.label or ()]
        return self.model_dump(include={"status", "task_type", "tenant", "pool"}) | {"labels": labels}


class WaitQuery(QueryModel):
    """How long to wait."""

    timeout_s: Annotated[float, Field(ge=0, le=25)] = 25


class LogQuery(QueryModel):
    """Which part of a log."""

    attempt: Annotated[int, Field(ge=1, le=MAX_INT)] | None = Field(None, description="By default the last one")
    offset: Annotated[int, Field(ge=0, le=2**53)] = Field(0, description="Bytes of the attempt's log to skip")
    limit: Annotated[int, Field(ge=1, le=1 << 20)] = Field(64 << 10, description="Bytes at most")
    follow: bool = Field(False, description="Server-sent events with each piece, until the attempt ends")


class AnswerModel(BaseModel):
    """What a caller gets."""

    model_config = ConfigDict(extra="ignore")


class AttemptShown(AnswerModel):
    """One attempt of a task."""

    attempt: int
    worker_id: str
    started_at: Moment
    ended_at: Moment | None
    outcome: str | None
    failure_code: str | None
    exit_class: str | None
    message: str | None


class TaskLine(AnswerModel):
    """A task in a list."""

    id: str
    task_type: str
    status: STATUSES
    pool: str | None
    priority: int | None
    tenant: str | None
    labels: dict[str, str] | None
    attempts: int
    max_attempts: int | None
    worker_id: str | None
    created_at: Moment
    run_after: Moment | None
    started_at: Moment | None = Field(None, validation_alias="generation_started_at")
    ended_at: Moment | None = Field(None, validation_alias="generation_processed_at")
    progress: Any = None
    progress_at: Moment | None
    cancel_requested_at: Moment | None
    failure_code: str | None
    error_message: str | None
    output_location: str | None
    version: str = Field(description="Its ETag; it changes with the state, not with the progress")


class TaskShown(TaskLine):
    """A task."""

    params: Any
    result_data: Any = None
    depends_on: list[str] | None
    dedupe_key: str | None
    traceparent: str | None = None
    timeout_s: float | None
    attempt_list: list[AttemptShown] = Field(default_factory=list, description="The newest 100, oldest first")


class TaskPage(AnswerModel):
    """Tasks, newest first. A page may be short, or empty, although `next` names another one."""

    tasks: list[TaskLine]
    next: str | None = Field(description="The cursor of the next page")


class SubmittedTask(AnswerModel):
    """A task that was submitted, or that was there already."""

    id: str
    created: bool
    ignored: str | None = Field(None, description="What was given and not used, and why")


class SubmittedTasks(AnswerModel):
    """In the order of the submission."""

    tasks: list[SubmittedTask]


class Acted(AnswerModel):
    """What came of an action, and the task after it."""

    outcome: str
    id: str
    status: STATUSES
    version: str = Field(description="Its ETag")
    task: TaskShown | None = Field(description="null if the token may not read tasks")


class Waited(AnswerModel):
    """The task when it ended, or when the time was up."""

    ended: bool
    task: TaskShown


class OutputShown(AnswerModel):
    """Where the output lies."""

    location: str
    url: str | None = Field(description="A URL for one GET; null for an output outside of the orchestrator's bucket")
    expires_in_s: int | None
    bytes: int | None = None
    sha256: str | None = None


class LogShown(AnswerModel):
    """A part of an attempt's log."""

    attempt: int
    text: str
    offset: int
    next: int = Field(description="The offset of the next part")
    complete: bool = Field(description="Whether every byte of the log up to its end is there, and was read with `next`")
    ended: bool = Field(description="Whether nothing more can follow; a log that is not complete then has lost bytes")
    missing_bytes: int = Field(description="Bytes before `next` that were lost with the pod, or are not shipped yet")


class ProblemShown(AnswerModel):
    """A refusal (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    id: str
    fix: str
