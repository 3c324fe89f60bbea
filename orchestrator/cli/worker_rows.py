"""What a worker row says to an operator: ages, flags and the one thing it waits for. Computed, never stored."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from orchestrator.cli.output import ago, one_line, span
from orchestrator.core.states import LIVE, READY, State
from orchestrator.diagnostics.early_warnings import unfit
from orchestrator.observability.redaction import plain

SLOW_SPAWN_S = 300.0  # flags, as operators know them: spawning for longer than 5 minutes,
SILENT_S = 600.0  # … no heartbeat for 10 minutes,
STUCK_S = 600.0  # … in one transitional state for 10 minutes
HIDDEN = ("token_jti",)  # of no use to a reader, and half of what a worker proves itself with
BUSY = "busy"
LEAD = "python -m orchestrator run"
_EPOCH = datetime.fromtimestamp(0, UTC)


def public(row: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The row as a program gets it, with what is computed from it."""
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
    """How long a terminated worker lived."""
    ended = row.get("terminated_at") or row.get("state_since")
    born, died = ago(row["created_at"], _EPOCH), ago(ended, _EPOCH)
    return None if born is None or died is None else born - died


def flags(row: Mapping[str, Any], now: datetime) -> list[str]:
    """What an operator should look at."""
    found = []
    in_state, silent = ago(row.get("state_since"), now) or 0, ago(row.get("last_heartbeat"), now)
    if row["status"] == State.SPAWNING and in_state > SLOW_SPAWN_S:
        found.append(f"spawning for {span(in_state)}")
    if row["status"] == State.TERMINATING and in_state > STUCK_S:
        found.append(f"terminating for {span(in_state)}")
    quiet = in_state if silent is None else silent
    if row["status"] in READY and quiet > SILENT_S:
        found.append(f"no heartbeat for {span(quiet)}")
    if row["status"] in READY and (why := unfit(row)):
        found.append(f"claims no more: {why}")
    return found


def note(row: Mapping[str, Any], now: datetime) -> str:
    """One line: whom it waits for and until when, or how it ended."""
    if not is_live(row):
        return one_line(" ".join(str(row[name]) for name in ("exit_cause", "failure_code") if row.get(name)))
    parts = list(flags(row, now))
    if row["status"] in {State.SPAWNING, State.TERMINATING}:
        parts.append(f"{row['stage']} {span(ago(row.get('stage_since'), now))}")
    running = row.get("tasks_running")
    if (waiting := waits_for(row)) and not (running and waiting == "tasks"):
        parts.append(f"waits for {waiting}")
    if row.get("drain_requested_at") and row["status"] != State.TERMINATING:
        parts.append("asked to end")
    if running:
        parts.append(f"works on {running} task{'s' if running > 1 else ''}")
    return one_line("; ".join(parts))


def waits_for(row: Mapping[str, Any]) -> str | None:
    """Whom or what it waits for, whichever says more than its stage does."""
    if not is_live(row):
        return None
    what = row.get("waiting_for")
    return what if what and what != row.get("stage") else row.get("waiting_on")


def busy_share(row: Mapping[str, Any]) -> float | None:
    """The part of the money that bought work, 0 to 1; None while nothing is spent."""
    by_kind = row.get("cost_by_kind") or {}
    total = sum(float(amount) for amount in by_kind.values())
    return round(float(by_kind.get(BUSY, 0)) / total, 4) if total else None


def leaderless(leadership: Mapping[str, Any]) -> str | None:
    """That nobody leads, since when, what it means and what to type; None while somebody does."""
    if leadership["leader"] is not None:
        return None
    since, now = "on this fleet yet", datetime.fromisoformat(leadership["now"])
    if last := leadership["last"]:
        since = f"for {span(ago(last['until'], now))} (last leader: {plain(last['holder'])})"
    return f"No orchestrator has been running {since}; workers go on, none is started or ended. fix: {LEAD}"


def totals(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What the listed workers cost, now per hour and so far."""
    listed = list(rows)
    prices = [float(row["price_usd_per_hour"] or 0) for row in listed if is_live(row) and row.get("pod_id")]
    spent = sum(float(row.get("cost_usd") or 0) for row in listed)
    return {"workers": len(listed), "usd_per_hour": round(sum(prices), 4), "spent_usd": round(spent, 4)}
