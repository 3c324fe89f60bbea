"""The newest attempts that failed."""

from uuid import UUID

from pydantic import Field
from starlette.responses import Response

from orchestrator.web.api.models import STATUSES, AnswerModel, Limit, Moment, QueryModel
from orchestrator.web.api.operations import Api, ApiCall, shown


class FailureQuery(QueryModel):
    """How many."""

    limit: Limit = 50


class FailureShown(AnswerModel):
    """The newest attempt of a task that failed or was lost."""

    task_id: UUID
    task_type: str | None
    status: STATUSES = Field(description="Of the task now: it may run again, or be complete")
    attempt: int
    worker_id: str | None
    pool: str | None
    at: Moment
    code: str | None
    message: str | None = Field(description="Its first 200 characters")


class FailuresShown(AnswerModel):
    """Those of the last day, newest first. `is_all` is false if older ones of that day were not looked at."""

    failures: list[FailureShown]
    is_all: bool


async def listed(api: Api, call: ApiCall) -> Response:
    """The failures that a token sees."""
    found = await api.rows.failures(call.holder, call.query.limit)
    return shown(FailuresShown.model_validate({name: found[name] for name in ("failures", "is_all")}))
