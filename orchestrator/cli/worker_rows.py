"""Derived values of a worker row for operators: ages, flags and what it waits for. They are never stored."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from orchestrator.cli.output import one_line
from orchestrator.core.findings import Severity
from orchestrator.core.plurals import at_least, counted
from orchestrator.core.states import LIVE, State, WaitingOn
from orchestrator.diagnostics import first_cause
from orchestrator.diagnostics.advice import without
from orchestrator.diagnostics.amounts import ago, relative, span, usd
from orchestrator.diagnostics.condition_kinds import ConditionKind
from orchestrator.diagnostics.fact_sources import worker_of
from orchestrator.diagnostics.failing_stage import failing_stage
from orchestrator.diagnostics.worker_rules import overdue
from orchestrator.observability.redaction import plain

HIDDEN = ("token_jti",)  # useless to a reader, and a part of the worker's credentials
BUSY = "busy"
LINE_CHARS = 1_000
_EPOCH = datetime.fromtimestamp(0, UTC)


def public(row: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the row as JSON output has it, with the derived values."""
    shown = {name: value for name, value in row.items() if name not in HIDDEN}
    computed = {
        "age_s": ago(row["created_at"], now) if is_live(row) else ended_after_s(row),
        "heartbeat_age_s": ago(row.get("last_heartbeat"), now),
        "busy_share": busy_share(row),
        "flags": flags(row, now),
    }
    return shown | computed


def is_live(row: Mapping[str, Any]) -> bool:
    """Whether the worker has not terminated."""
    return row["status"] in LIVE


def ended_after_s(row: Mapping[str, Any]) -> float | None:
    """Return how long a terminated worker lived."""
    ended = row.get("terminated_at") or row.get("state_since")
    born, died = ago(row["created_at"], _EPOCH), ago(ended, _EPOCH)
    return None if born is None or died is None else born - died


def flags(row: Mapping[str, Any], now: datetime) -> list[str]:
    """Return the worker's conditions that an operator should check."""
    worker, found = worker_of(row), []
    if late := overdue(worker, now):
        found.append(f"{'no heartbeat' if worker.is_ready else worker.state} for {span(late[1])}")
    if worker.is_ready and worker.unfit:
        found.append(f"claims no more tasks: {worker.unfit}")
    found += [finding.text for finding in worker.findings if worker.is_ready and finding.severity is Severity.WARN]
    return found


def note(row: Mapping[str, Any], now: datetime) -> str:
    """Return one line: what it waits for and until when, or how it ended."""
    if not is_live(row):
        why = " ".join(str(row[name]) for name in ("exit_cause", "failure_code") if row.get(name))
        ended = row.get("terminated_at") or row.get("state_since")
        return one_line(f"ended {relative(ended, now)}: {why or 'no cause is recorded'}")
    parts = list(flags(row, now))
    if row["status"] in {State.SPAWNING, State.TERMINATING}:
        parts.append(f"{row['stage']} {span(ago(row.get('stage_since'), now))}")
    running = row.get("tasks_running")
    if (waiting := waits_for(row)) and not (running and waiting in {"tasks", WaitingOn.WORKER}):
        parts.append(waiting if waiting.endswith(".") else f"waits for {waiting}")  # a sentence says it all
    if row.get("drain_requested_at") and row["status"] != State.TERMINATING:
        parts.append("asked to end")
    if running:
        parts.append(f"works on {counted(running, 'task')}")
    return one_line("; ".join(parts).replace(".; ", "; "))


def waits_for(row: Mapping[str, Any]) -> str | None:
    """Return the party or the thing that it waits for, whichever is more precise. `explain` names the same party."""
    if not is_live(row):
        return None
    if failing := failing_stage(row):
        return f"{failing.who}: {failing.code}"
    what = row.get("waiting_for")
    return what if what and what != row.get("stage") else row.get("waiting_on")


def busy_share(row: Mapping[str, Any]) -> float | None:
    """Return the share of the cost in which the worker was busy, 0 to 1. None if it cost nothing."""
    by_kind = row.get("cost_by_kind") or {}
    total = sum(float(amount) for amount in by_kind.values())
    return round(float(by_kind.get(BUSY, 0)) / total, 4) if total else None


def leaderless(leadership: Mapping[str, Any]) -> str | None:
    """Return a warning with its fix if nobody leads, else None. It is the condition `no_leader`, or its cause."""
    if leadership.get("read_only"):
        cause = first_cause.of_standing(leadership)
        return cause.line if cause else None
    if leadership["leader"] is not None:
        return None
    since, now = "none has led this fleet yet", datetime.fromisoformat(leadership["now"])
    if last := leadership["last"]:
        since = f"for {span(ago(last['until'], now))}, last leader: {plain(last['holder'])}"
    row = ConditionKind.NO_LEADER.row
    return f"{row.text} ({since}); {row.then}. fix: {row.fix}"


def warning(leadership: Mapping[str, Any], pools: Collection[str] | None = None) -> str | None:
    """Return the first cause of what is wrong on one line, with its fix: of the fleet, or of tasks of these pools.

    None if nothing is known to be wrong.
    """
    if missing := leaderless(leadership):
        return missing
    cause = first_cause.of_standing(leadership, pools)
    if cause is None:
        return None
    fix = without(cause.fix, "list", "tasks list", instead="python -m orchestrator health")
    return plain(one_line(replace(cause, fix=fix).line, LINE_CHARS))


def by_pool(counts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line per pool: `pool default: 2 active, 1 spawning`."""
    pools: dict[str, list[str]] = {}
    order = [member.value for member in State]
    for one in sorted(counts, key=lambda one: (one["pool"], order.index(one["status"]))):
        pools.setdefault(one["pool"], []).append(f"{one['workers']:,} {one['status']}")
    return [f"pool {' '.join(plain(pool).split())}: {', '.join(parts)}" for pool, parts in pools.items()]


def totals(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the cost of the listed workers, per hour now and so far."""
    listed = list(rows)
    prices = [row["price_usd_per_hour"] for row in listed if is_live(row) and row.get("pod_id")]
    known = [float(price) for price in prices if price is not None]
    spent = sum(float(row.get("cost_usd") or 0) for row in listed)
    rate = {"usd_per_hour": round(sum(known), 4), "unpriced_workers": len(prices) - len(known)}
    return {"workers": len(listed), **rate, "spent_usd": round(spent, 6)}


def unpriced(sums: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line that says which prices the totals lack, if they lack any."""
    if count := sums["unpriced_workers"]:
        have = counted(count, "worker has", "workers have")
        yield f"{have} no known price: {at_least(usd(sums['usd_per_hour']), count)}/h"
