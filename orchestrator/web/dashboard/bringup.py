"""The bring-up of a worker as rows: each stage with its attempts, next to what is usual on its GPU type."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.core import moments
from orchestrator.core.states import Stage, State
from orchestrator.diagnostics.evidence import evidence_text
from orchestrator.web.dashboard.charts import Bar, lane

Row = Mapping[str, Any]
STAGES = tuple(Stage)[: tuple(Stage).index(Stage.PROMOTED)]
MAX_ATTEMPTS = 20  # of a stage that are shown one by one
STEP_S = 10.0  # the chart of a bring-up that is under way grows in steps


def bringup(history: Row, usual: Row, now: datetime) -> Row:
    """{rows, seconds, is_over, usual}: a row for each stage that was reached, or that is usual."""
    worker = history["worker"]
    began, attempts = moments.moment(worker["created_at"]), defaultdict(list)
    for one in history["attempts"]:
        attempts[one["stage"]].append(one)
    is_over = worker["status"] != State.SPAWNING
    ended = _end(worker, attempts, now)
    took_s = max((ended - began).total_seconds(), 0.001)
    whole_s = took_s if is_over else math.ceil(max(took_s, float(usual["p95_s"] or 0)) / STEP_S) * STEP_S
    rows = [
        _row(stage, attempts[stage], usual["stages"].get(stage), began, whole_s, now)
        for stage in STAGES
        if attempts[stage] or (stage in usual["stages"] and not is_over)
    ]
    return {"rows": rows, "seconds": took_s, "whole_s": whole_s, "is_over": is_over, "usual": usual}


def _end(worker: Row, attempts: Mapping[str, Sequence[Row]], now: datetime) -> datetime:
    """When the bring-up ended, or now."""
    if worker["status"] == State.SPAWNING:
        return now
    ends = [one["ended_at"] for stage in STAGES for one in attempts[stage] if one["ended_at"]]
    known = worker["promoted_at"] or worker["bringup_ended_at"]
    return max(map(moments.moment, [known] if known else [worker["created_at"], *ends]))


def _row(
    stage: Stage, attempts: Sequence[Row], usual: Row | None, began: datetime, whole_s: float, now: datetime
) -> Row:
    bars, first_s, last_s = [], None, 0.0
    for one in attempts:
        begin_s = (moments.moment(one["started_at"]) - began).total_seconds()
        until = moments.moment(one["ended_at"]) if one["ended_at"] else now
        took_s = max(0.0, (until - began).total_seconds() - begin_s)
        failed = one["outcome"] not in (None, "ok")
        said = f"attempt {one['attempt']}: {one['outcome'] or 'under way'}, {took_s:.1f} s"
        bars.append(Bar(begin_s, took_s, "bad" if failed else "busy", said))
        first_s, last_s = begin_s if first_s is None else first_s, begin_s + took_s
    spread = (first_s, float(usual["p50_s"]), float(usual["p95_s"])) if usual and first_s is not None else None
    return {
        "stage": stage.value,
        "lane": lane(bars, whole_s, spread),
        "took_s": None if first_s is None else last_s - first_s,
        "usual": usual,
        "state": _state(attempts),
        "attempts": [_attempt(one) for one in attempts[-MAX_ATTEMPTS:]],
        "attempts_left_out": max(0, len(attempts) - MAX_ATTEMPTS),
    }


def _state(attempts: Sequence[Row]) -> str:
    """The shape in front of a stage."""
    if not attempts:
        return "idle"
    return {"ok": "active", None: "spawning"}.get(attempts[-1]["outcome"], "bad")


def _attempt(row: Row) -> Row:
    return {
        "number": row["attempt"],
        "outcome": row["outcome"] or "under way",
        "code": row["failure_code"],
        "kind": row["exception_type"],
        "evidence": evidence_text(row["evidence"] or {}),
        "failed": row["outcome"] not in (None, "ok"),
        "at": row["started_at"],
    }
