"""What a worker's agent reported of its GPUs in each minute, as curves over its life."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any

from orchestrator.core import moments
from orchestrator.web.dashboard.series import ChartSpan, Series, chart

Row = Mapping[str, Any]
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
MAX_POINTS = 240  # of a curve
MIB_PER_GIB = 1_024
FULL = 100.0  # percent


def curves(found: Row, worker: Row) -> Row | None:
    """The load and the memory of its GPUs in the last day of its life. None if nothing is recorded of it."""
    end = _minute(worker["terminated_at"] or found["now"])
    since = min(max(_minute(worker["created_at"]), end - DAY), end - MINUTE)
    step_s = MINUTE.total_seconds() * ceil((end - since) / MINUTE / MAX_POINTS)
    points = [one for one in found["points"] if moments.moment(one["at"]) >= since]
    if not points:
        return None
    span = ChartSpan(since, max(end, moments.moment(points[-1]["at"])), step_s, worker["terminated_at"] is not None)
    load, used, total = (_read(points, name) for name in ("gpu_percent", "gpu_used_mb", "gpu_total_mb"))
    used, total = ([(at, value / MIB_PER_GIB) for at, value in one] for one in (used, total))
    memory = [Series("memory of its GPUs", "line-2", _stepped(total, step_s, max)),
              Series("in use", "area", _stepped(used, step_s, max))]  # fmt: skip
    most_total = max((value for _, value in total), default=None)
    percents = [value for _, value in load]
    return {
        "load": chart("Load of its GPUs", span, [Series("busy", "area", _stepped(load, step_s, _mean))],
                      "{:.0f} %".format, top=FULL) if load else None,
        "memory": chart("Memory of its GPUs", span, memory, "{:.3g} GiB".format, top=most_total) if used else None,
        "mean_percent": _mean(percents) if percents else None,
        "most_percent": max(percents, default=None),
        "most_used": max((value for _, value in used), default=None),
        "total": most_total,
        "minutes": len(points),
        "step_min": round(step_s / MINUTE.total_seconds()),
        "is_cut": since > _minute(worker["created_at"]),
    }  # fmt: skip


def _read(points: Sequence[Row], name: str) -> list[tuple[datetime, float]]:
    """The readings that the agent gave; a minute without one is a gap."""
    return [(moments.moment(one["at"]), float(one[name])) for one in points if one[name] is not None]


def _stepped(values: Sequence[tuple[datetime, float]], step_s: float, of: Any) -> list[tuple[datetime, float]]:
    """One value for each step that has any."""
    steps: defaultdict[float, list[float]] = defaultdict(list)
    for at, value in values:
        steps[at.timestamp() // step_s * step_s].append(value)
    return [(datetime.fromtimestamp(at, UTC), of(some)) for at, some in steps.items()]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _minute(at: str) -> datetime:
    return moments.moment(at).replace(second=0, microsecond=0)
