"""The JSON of the API about actions on all tasks that fit a filter."""

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from orchestrator.web.api.models import (
    STATUSES,
    AnswerModel,
    InputModel,
    Limit,
    Moment,
    PoolName,
    QueryModel,
    TaskType,
    Tenant,
)

Action = Literal["cancel", "retry"]


class TaskChangeInput(InputModel):
    """An action, and which tasks: those that have all that is named. At least one filter is needed."""

    action: Action
    status: Annotated[list[STATUSES], Field(min_length=1, max_length=2)] | None = Field(
        None, description="By default Queued and In Progress of a cancel, Failed of a retry"
    )
    task_type: TaskType | None = None
    tenant: Tenant | None = None
    pool: PoolName | None = None
    labels: Annotated[dict[str, str], Field(max_length=16)] | None = None
    since: AwareDatetime | None = Field(None, description="Only tasks that were submitted since then")

    def wanted(self) -> dict[str, Any]:
        """The argument `p_filter` of SQL functions."""
        labels = [{key: value} for key, value in (self.labels or {}).items()]
        return self.model_dump(mode="json", exclude={"action", "labels"}) | {"labels": labels}


class TaskChangesQuery(QueryModel):
    """Which changes."""

    limit: Limit = 50


class TaskGroupShown(AnswerModel):
    """Tasks of a type and status that would be changed."""

    task_type: str | None
    status: STATUSES
    tasks: int
    usd: float | None = Field(description="As of all; null: no figure")


class TaskChangePreview(AnswerModel):
    """What an action would change."""

    at: Moment
    tasks: int
    looked: int = Field(description="Tasks that were looked at")
    is_all: bool = Field(description="false: older tasks were not looked at, so there may be more")
    by: list[TaskGroupShown] = Field(description="The 50 largest groups")
    groups: int = Field(description="All groups")
    usd: float | None = Field(
        description="Of a cancel: what the running attempts have cost so far, which is lost. Of a retry: one attempt "
        "of each task at the mean cost of its type within seven days; null: a type has no figure"
    )


class TaskChangeStarted(AnswerModel):
    """The change, which the leader carries out in the background."""

    id: int
    outcome: Literal["started", "repeated"]


class TaskChangeShown(AnswerModel):
    """A change of all tasks that fit a filter."""

    id: int
    action: Action
    filter: dict[str, Any]
    actor: str
    created_at: Moment = Field(description="Tasks that were submitted later are left alone")
    started_at: Moment | None
    ended_at: Moment | None
    outcome: Literal["done", "stopped"] | None = Field(description="null: it goes on")
    stopped_by: str | None
    looked: int = Field(description="Tasks that were looked at, newest first")
    changed: int
    refused: int = Field(description="Tasks that a trigger, a constraint or a lock kept from being changed")
    refusal: str | None = Field(description="Of the first one that was refused")
    locked: int = Field(description="Tasks that another transaction has locked; they are tried again")


class TaskChangesShown(AnswerModel):
    """The changes that the token sees, newest first."""

    at: Moment
    changes: list[TaskChangeShown]


class TaskChangeStopped(AnswerModel):
    """What came of it. What is changed stays changed."""

    outcome: Literal["stopped", "already"]
