"""Limits of workers for a time, in a pool or in the whole fleet."""

from typing import Annotated

from pydantic import Field
from starlette.responses import Response

from orchestrator.core.api_tokens import TokenHolder
from orchestrator.core.model import EVERY_POOL
from orchestrator.errors import NOT_ALLOWED
from orchestrator.web.api.fleet import Row
from orchestrator.web.api.models import AnswerModel, InputModel, Moment, PoolName, Reason
from orchestrator.web.api.operations import Api, ApiCall, shown
from orchestrator.web.api.problems import Problem

MAX_WORKERS = 100_000
YEAR_S = 31_536_000


class ScaleLimitInput(InputModel):
    """A limit of the number of live workers."""

    most: Annotated[int, Field(ge=1, le=MAX_WORKERS)] = Field(
        description="It only lowers: a pool never has more workers than MAX_ACTIVE_GPUS"
    )
    for_s: Annotated[float, Field(gt=0, le=YEAR_S)] = Field(description="It then ends by itself")
    reason: Reason = "limited through the API"
    pool: PoolName | None = Field(None, description="By default all pools together")


class ScaleLimitShown(AnswerModel):
    """A limit of workers."""

    most: int
    reason: str
    until: Moment


class ScaleLimitsShown(AnswerModel):
    """Limits of workers by pool; `*` is the whole fleet."""

    limits: dict[str, ScaleLimitShown]


async def listed(api: Api, call: ApiCall) -> Response:
    """The limits in force that concern the token."""
    return _limits(call.holder, await api.rows.scale_limits())


async def limit(api: Api, call: ApiCall) -> Response:
    """Allow at most so many workers."""
    given = call.body
    _check_pool(call.holder, given.pool)
    await api.require_pool(call.holder, given.pool)
    found = await api.rows.limit_workers(
        call.holder.name, given.most, given.reason, pool=given.pool, for_s=given.for_s
    )  # fmt: skip
    return _limits(call.holder, found)


async def unlimit(api: Api, call: ApiCall) -> Response:
    """End a limit, or all."""
    _check_pool(call.holder, call.query.pool)
    return _limits(call.holder, await api.rows.limit_workers(call.holder.name, None, pool=call.query.pool))


def _limits(holder: TokenHolder, found: Row) -> Response:
    seen = {pool: ScaleLimitShown(**one) for pool, one in found.items() if pool == EVERY_POOL or holder.sees(pool)}
    return shown(ScaleLimitsShown(limits=seen))


def _check_pool(holder: TokenHolder, pool: str | None) -> None:
    if not (holder.pools is None if pool is None else holder.sees(pool)):
        raise Problem(403, NOT_ALLOWED, f"the token {holder.name} may limit its own pools only: name one")
