"""The JSON of the API about what people set up: schedules, webhooks, limits, tenants, tokens, and avoided hosts."""

from typing import Any, Literal
from uuid import UUID

from pydantic import AwareDatetime, Field

from orchestrator.web.api.fleet_models import EntryId, ReasonExplained
from orchestrator.web.api.models import AnswerModel, InputModel, Limit, Moment, PoolName, QueryModel


class DecisionQuery(QueryModel):
    """Which decisions."""

    before: EntryId | None = Field(None, description="`next` of a page")
    limit: Limit = 50
    pool: PoolName | None = Field(None, description="By default every pool that the token sees")


class BlockedQuery(QueryModel):
    """Which time."""

    since: AwareDatetime | None = Field(None, description="By default an hour before its end")
    until: AwareDatetime | None = Field(None, description="By default now")
    pool: PoolName | None = Field(None, description="By default every pool that the token sees")


class BlockedShown(AnswerModel):
    """One reason that blocked a pool."""

    reason: ReasonExplained
    since: Moment = Field(description="The first moment within the time")
    until: Moment = Field(description="The last moment within the time")
    seconds: float = Field(description="For how long the decisions in force named it")
    decisions: int


class PoolTimeShown(AnswerModel):
    """What a pool decided in a time."""

    pool: str
    decisions: int
    idle: int = Field(description="Decisions without any action")
    actions: list[str]
    target: int = Field(description="Of the decision in force at the end")
    sentence: str
    blocked: list[BlockedShown]


class BlockedTimes(AnswerModel):
    """What was blocked in a time, and why."""

    since: Moment
    until: Moment
    pools: list[PoolTimeShown]
    is_cut: bool = Field(description="The time has more decisions than were looked at: the newest 1,000 count")


class ScheduleRunShown(AnswerModel):
    """What came of a due time."""

    due_at: Moment
    outcome: Literal["fired", "skipped", "missed"]
    task_id: str | None
    reason: str | None
    at: Moment


class ScheduleShown(AnswerModel):
    """A recurring task."""

    name: str
    task_type: str | None
    cron: str | None
    every_s: int | None
    timezone: str
    overlap: str
    catch_up: str
    created_at: Moment
    paused_at: Moment | None
    next_at: Moment | None = Field(description="null: paused, never, or not worked out yet")
    problem: str | None
    last_run: ScheduleRunShown | None
    recent: dict[str, int] = Field(description="Of its last 100 due times, how many have each outcome")


class SchedulesShown(AnswerModel):
    """The schedules, by name."""

    at: Moment
    schedules: list[ScheduleShown]


class WebhookQuery(QueryModel):
    """Which messages."""

    state: Literal["waiting", "undeliverable", "sent"] | None = Field(None, description="By default all")
    limit: Limit = 50


class WebhookShown(AnswerModel):
    """An address that is told about the end of tasks."""

    name: str
    task_type: str | None = Field(description="null: tasks of every type")
    origin: str = Field(description="Scheme and host; the rest of the URL may be a secret")
    progress: bool
    created_at: Moment


class MessageShown(AnswerModel):
    """A message, and what came of it."""

    id: str
    webhook: str | None = Field(description="null: the task's own webhook_url")
    event: str
    task_id: str | None
    host: str
    state: Literal["waiting", "undeliverable", "sent"]
    attempts: int
    failure: str | None = Field(description="The answer to the last attempt")
    created_at: Moment
    next_at: Moment | None
    sent_at: Moment | None
    give_up_at: Moment


class WebhooksShown(AnswerModel):
    """The addresses, and the newest messages."""

    at: Moment
    webhooks: list[WebhookShown]
    messages: list[MessageShown]
    undeliverable: int = Field(description="Messages that were given up within a day")
    late: int = Field(description="Messages that are due for longer than five minutes")


class ResendInput(InputModel):
    """Which message."""

    message_id: UUID | None = Field(None, description="By default all that were given up, 10,000 at once")


class Resent(AnswerModel):
    """How many messages are due now."""

    due: int


class LimitShown(AnswerModel):
    """How many tasks of a concurrency key or a type run at once."""

    scope: Literal["key", "type"]
    name: str
    most: int
    is_set: bool = Field(description="Whether somebody set it; a key without a limit has 1")
    running: int
    ready: int
    waiting: int


class LimitsShown(AnswerModel):
    """The limits, those with most waiting tasks first."""

    limits: list[LimitShown]


class TenantShown(AnswerModel):
    """A tenant with a weight or live tasks."""

    tenant: str | None = Field(description="null: tasks without a tenant")
    weight: int
    ready: int
    waiting: int
    running: int


class TenantsShown(AnswerModel):
    """The tenants, by name."""

    tenants: list[TenantShown]


class TokenShown(AnswerModel):
    """A token of the API, without what it is made of."""

    name: str
    scopes: list[str]
    pools: list[str] | None = Field(description="null: all")
    tenant: str | None = Field(description="null: all")
    created_at: Moment
    expires_at: Moment | None
    revoked_at: Moment | None
    last_used_at: Moment | None = Field(description="To the minute")


class TokensShown(AnswerModel):
    """The tokens of the fleet, newest first."""

    tokens: list[TokenShown]


class HostShown(AnswerModel):
    """A machine or a place that failed."""

    key: str = Field(description="machine:<id>, or place:<data centre>|<GPU type>")
    strikes: int
    last_failure: Moment
    avoid_until: Moment | None
    evidence: Any


class HostsShown(AnswerModel):
    """What is avoided now, the newest failure first."""

    hosts: list[HostShown]
