"""What other rules of scaling would have cost: the leader's last review of each pool."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from starlette.responses import Response

from orchestrator.core.economics.policies import ReviewCandidate, ScalingPolicy
from orchestrator.web.api.models import AnswerModel, Moment
from orchestrator.web.api.operations import Api, ApiCall, shown


class ReviewedFigures(AnswerModel):
    """What was recorded, or what a replay found. Waits are null if no task ran."""

    usd: float
    boots: int
    wait_p50_s: float | None
    wait_p95_s: float | None
    wait_max_s: float | None
    waited_s: float
    most_on_a_day_usd: float | None
    not_run: int


class CandidateFigures(ReviewedFigures):
    """One rule. `cost_s`: seconds of one GPU, with the waiting at its price."""

    cost_s: float


class ReviewShown(AnswerModel):
    """A review of the time before it. `error_share`: by how much a replay of the rule in force differs in dollars."""

    since: Moment
    until: Moment
    tasks: int
    boot_s: float
    wait_price: float
    usd_per_hour: float
    recorded: ReviewedFigures
    candidates: dict[ReviewCandidate, CandidateFigures]
    error_share: float | None
    in_force: ScalingPolicy
    tomorrow: ReviewCandidate


class PoolReviewShown(AnswerModel):
    """The last review of a pool. Null if it cannot be read: another version may have written it."""

    pool: str
    at: Moment | None
    review: ReviewShown | None


class ScalingReviewsShown(AnswerModel):
    """Those of the last eight days."""

    at: Moment
    reviews: list[PoolReviewShown]


async def listed(api: Api, call: ApiCall) -> Response:
    """The reviews of the pools that a token sees."""
    found = await api.rows.reviews()
    seen = [one for one in found["reviews"] if call.holder.pools is None or one["pool"] in call.holder.pools]
    return shown(ScalingReviewsShown(at=found["now"], reviews=[_readable(one) for one in seen]))


def _readable(row: Mapping[str, Any]) -> PoolReviewShown:
    try:
        return PoolReviewShown.model_validate(row)
    except ValidationError:
        return PoolReviewShown(pool=row["pool"], at=None, review=None)
