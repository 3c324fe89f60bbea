"""Statistics as JSON, for a row of the database that anyone may have written."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.core.economics.history import MAX_RUN_S
from orchestrator.core.economics.recorded import MAX_BOOT_S
from orchestrator.core.economics.statistics import (
    BOOTS,
    GRID_S,
    GROUP_FROM,
    MAX_LEVELS,
    RUNS,
    TRAFFIC_FROM,
    Gaps,
    LastUse,
    Statistics,
)

DIGITS = 6  # of a weight, after the point
CLASSES = len(TRAFFIC_FROM) + 1
AHEAD_S = 60.0  # so far may a clock go back between two leaders
MAX_WEIGHT = 1e9  # also of a rate
FORM = 1  # of the JSON: another one is not read


def as_json(known: Statistics) -> dict[str, Any]:
    """Return what `statistics_of` reads."""
    return {
        "form": FORM,
        "boot_s": known.boot_s,
        "boots": known.boots,
        "run_s": known.run_s,
        "runs": known.runs,
        "rate": known.rate,
        "rate_at": known.rate_at,
        "gaps": [[_gaps_as_json(gaps) for gaps in row] for row in known.gaps],
        "last_use": [None if last is None else [last.at, last.traffic] for last in known.last_use],
    }


def statistics_of(value: object, now: float) -> Statistics | None:
    """Decode a stored row; None if any part of it cannot be true now. Then the runs have to be read again."""
    try:
        return _statistics_of(value, now + AHEAD_S)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _gaps_as_json(gaps: Gaps) -> dict[str, Any] | None:
    if not any(gaps.weights):
        return None
    return {"at": gaps.at, "weights": [round(weight, DIGITS) for weight in gaps.weights]}


def _statistics_of(value: Any, latest: float) -> Statistics:
    row: Mapping[str, Any] = value
    if row["form"] != FORM:
        raise ValueError("another form")
    gaps = tuple(
        tuple(_gaps_of(one, latest) for one in _sized(row_of_gaps, len(GROUP_FROM)))
        for row_of_gaps in _sized(row["gaps"], CLASSES)
    )
    return Statistics(
        boot_s=_number(row["boot_s"], MAX_BOOT_S),
        boots=_count(row["boots"], BOOTS),
        run_s=_number(row["run_s"], MAX_RUN_S),
        runs=_count(row["runs"], RUNS),
        rate=_number(row["rate"], MAX_WEIGHT),
        rate_at=_number(row["rate_at"], latest),
        gaps=gaps,
        last_use=tuple(_last_use_of(one, latest) for one in _sized(row["last_use"], MAX_LEVELS)),
    )


def _gaps_of(value: Any, latest: float) -> Gaps:
    if value is None:
        return Gaps()
    weights = tuple(_number(weight, MAX_WEIGHT) for weight in _sized(value["weights"], len(GRID_S)))
    return Gaps(weights, _number(value["at"], latest))


def _last_use_of(value: Any, latest: float) -> LastUse | None:
    if value is None:
        return None
    at, traffic = _sized(value, 2)
    return LastUse(_number(at, latest), _count(traffic, CLASSES - 1))


def _sized(value: Any, size: int) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) != size:
        raise ValueError("another length")
    return value


def _number(value: Any, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ValueError("no number")
    return float(value)


def _count(value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError("no count")
    return value
