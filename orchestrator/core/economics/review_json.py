"""What a process that replays is asked, and the review that it answers, as JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from orchestrator.core.economics import guard
from orchestrator.core.economics.guard import PoolReview
from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.economics.recorded import PoolCosts, RecordedPool
from orchestrator.core.economics.replay import RecordedTask
from orchestrator.core.economics.scaling_settings import ScalingSettings
from orchestrator.core.economics.sizes import SizeStep
from orchestrator.core.economics.what_if import FleetFigures

DIGITS = 6


def question(history: RecordedPool, settings: ScalingSettings, since: float, until: float) -> dict[str, Any]:
    """Return what `answer` needs."""
    return {
        "pool": history.pool,
        "tasks": [[task.arrival_s, task.duration_s] for task in history.tasks],
        "waits_s": list(history.waits_s),
        "costs": asdict(history.costs),
        "settings": asdict(settings),
        "since": since,
        "until": until,
    }


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Replay, and return the review. It takes seconds for 20,000 tasks."""
    pool = asked["pool"]
    tasks = [RecordedTask(arrival_s, duration_s, pool) for arrival_s, duration_s in asked["tasks"]]
    history = RecordedPool(pool, tasks, asked["waits_s"], PoolCosts(**asked["costs"]))
    given = dict(asked["settings"])
    given["scaling_policy"] = ScalingPolicy(given["scaling_policy"])
    given["scheduled"] = tuple(SizeStep(*one) for one in given["scheduled"])
    return review_as_json(guard.review(history, ScalingSettings(**given), asked["since"], asked["until"]))


def review_as_json(review: PoolReview) -> dict[str, Any]:
    """Return the row that the database keeps."""
    return {
        "since": _moment(review.since),
        "until": _moment(review.until),
        "tasks": review.tasks,
        "boot_s": round(review.boot_s, DIGITS),
        "wait_price": review.wait_price,
        "usd_per_hour": round(review.usd_per_hour, DIGITS),
        "recorded": _figures(review.recorded),
        "candidates": {
            one.value: _figures(figures) | {"cost_s": round(review.costs_s[one], DIGITS)}
            for one, figures in review.candidates.items()
        },
        "error_share": None if review.error is None else round(review.error, DIGITS),
        "in_force": review.in_force.value,
        "tomorrow": review.tomorrow.value,
    }


def _figures(one: FleetFigures) -> dict[str, Any]:
    found = {
        "usd": one.usd,
        "boots": one.boots,
        "wait_p50_s": one.waits.p50_s,
        "wait_p95_s": one.waits.p95_s,
        "wait_max_s": one.waits.max_s,
        "waited_s": one.waited_s,
        "most_on_a_day_usd": one.most_on_a_day_usd,
        "not_run": one.unrun,
    }
    return {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in found.items()}


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
