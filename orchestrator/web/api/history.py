"""What was recorded each minute, and what was done and spent in each hour or day."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field
from starlette.responses import Response

from orchestrator.errors import NOT_ALLOWED
from orchestrator.web.api.fleet import utc, visible_worker
from orchestrator.web.api.models import AnswerModel, Moment, PoolName, QueryModel
from orchestrator.web.api.operations import Api, ApiCall, shown
from orchestrator.web.api.problems import Problem

DAY, MONTH = timedelta(days=1), timedelta(days=30)
MAX_POOLS = 50
DIMENSION = r"fleet|queue|type|tenant|kind|pool|gpu|label:.{1,100}"


class HistoryQuery(QueryModel):
    """Which time, and which pool."""

    since: AwareDatetime | None = Field(None, description="By default 24 hours ago")
    step_s: Annotated[int, Field(ge=60, le=86_400)] | None = Field(
        None, description="By default a 360th of the time, and never less than that"
    )
    pool: PoolName | None = Field(None, description="By default every pool that the token sees, of the first 50")


class UsageQuery(QueryModel):
    """Which time, by what."""

    by: Annotated[str, Field(pattern=f"^(?:{DIMENSION})$")] = Field(
        "kind", description="fleet, queue (the tasks of a pool), type, tenant or label:KEY of tasks; kind, pool or gpu "
        "of workers"
    )  # fmt: skip
    span: Literal["hour", "day"] = Field("day", description="In UTC. At most 168 hours or 400 days")
    since: AwareDatetime | None = Field(None, description="By default 30 days or 24 hours ago")
    until: AwareDatetime | None = Field(None, description="By default now")


class MinutesShown(AnswerModel):
    """A pool in a step: means, and the sums of attempts that ended."""

    at: Moment
    ready: float
    ready_most: float
    waiting: float
    running: float
    spawning: float
    active: float
    idle: float
    ending: float
    usd_per_hour: float
    completed: int
    failed: int


class HistoryShown(AnswerModel):
    """What the leader recorded. A step without a record is absent."""

    at: Moment
    since: Moment
    step_s: int
    pools: dict[str, list[MinutesShown]]


class ReadingShown(AnswerModel):
    """What a worker last reported in a minute; a reading is null if its agent gives none."""

    at: Moment
    status: str
    running: int
    gpu_percent: float | None
    gpu_used_mb: int | None
    gpu_total_mb: int | None


class WorkerHistoryShown(AnswerModel):
    """The newest 1,440 minutes of a worker, the oldest first."""

    at: Moment
    points: list[ReadingShown]


class UsedShown(AnswerModel):
    """What was done and spent in an hour or a day by one name."""

    at: Moment
    name: str
    tasks: int
    attempts: int
    completed: int
    failed: int
    seconds: float
    usd: float
    wasted_usd: float


class UsageShown(AnswerModel):
    """Roll-ups, the oldest first; of each step the 50 most expensive names."""

    until: Moment | None = Field(description="What ended later is not rolled up yet, and a day only when it is over")
    points: list[UsedShown]


async def fleet(api: Api, call: ApiCall) -> Response:
    """The minutes of the pools that the token sees."""
    query, holder = call.query, call.holder
    since = utc(query.since or datetime.now(UTC) - DAY)
    first, *others = holder.pools_of(query.pool) or [query.pool]  # no pool: the first ones of the fleet
    found = await api.rows.history(since, query.step_s, first)
    steps = found["step_s"]
    more = await asyncio.gather(*(api.rows.history(since, steps, pool) for pool in others[: MAX_POOLS - 1]))
    pools = {pool: points for one in (found, *more) for pool, points in one["pools"].items() if holder.sees(pool)}
    answer = {"at": found["now"], "since": found["since"], "step_s": steps, "pools": pools}
    return shown(HistoryShown.model_validate(answer))


async def worker(api: Api, call: ApiCall) -> Response:
    """The minutes of one worker."""
    found = await api.rows.worker_minutes((await visible_worker(api, call))["id"])
    return shown(WorkerHistoryShown.model_validate({"at": found["now"], "points": found["points"]}))


async def usage(api: Api, call: ApiCall) -> Response:
    """The roll-ups of the fleet."""
    if call.holder.pools is not None:
        raise Problem(403, NOT_ALLOWED, "a token that is restricted to pools sees no usage")
    query = call.query
    since = query.since or datetime.now(UTC) - (MONTH if query.span == "day" else DAY)
    found = await api.rows.usage(query.by, query.span, utc(since), query.until and utc(query.until))
    return shown(UsageShown.model_validate(found))
