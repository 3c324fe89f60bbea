"""`timeline <worker>`: every event and attempt in order, with durations, and when nothing was under way."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.core.states import State
from orchestrator.diagnostics.proof import told

Row = Mapping[str, Any]
GAP_S = 5.0  # a shorter stretch without anything under way is not worth a line
IN_MOTION = frozenset({State.SPAWNING, State.TERMINATING})  # in these states somebody should be doing something
KINDS = {"spawning": "booting", "active": "busy", "idle": "idle", "terminating": "draining"}  # as costs are booked
ORDER = ("state", "stage", "asked", "attempt", "task", "gap")  # of what begins at the same moment


@dataclass(frozen=True, slots=True)
class Entry:
    """One line."""

    at: datetime
    until: datetime | None  # None: it still goes on
    kind: str  # one of ORDER
    what: str
    note: str

    def seconds(self, now: datetime) -> float:
        """How long it took, or has taken."""
        return max(0.0, ((self.until or now) - self.at).total_seconds())


@dataclass(frozen=True, slots=True)
class StateSum:
    """What a state took in all."""

    state: str
    seconds: float
    usd: float


def entries(found: Row) -> tuple[Entry, ...]:
    """Of a worker that fleet_worker() found; in order."""
    now = datetime.fromisoformat(found["now"])
    made = [*_events(found["events"]), *map(_attempt, found["attempts"]), *map(_task, found["tasks"])]
    made += _gaps(found["events"], found["attempts"], now)
    return tuple(sorted(made, key=lambda entry: (entry.at, ORDER.index(entry.kind))))


def by_state(found: Row) -> tuple[StateSum, ...]:
    """Time and dollars of each state that it has been in."""
    now, seconds = datetime.fromisoformat(found["now"]), defaultdict[str, float](float)
    for state, begin, end in _spans(found["events"], now):
        seconds[state] += (end - begin).total_seconds()
    usd = found["worker"]["cost_by_kind"]
    return tuple(StateSum(state, round(spent, 3), float(usd.get(KINDS[state], 0))) for state, spent in seconds.items())


def _events(events: Sequence[Row]) -> list[Entry]:
    made = []
    for index, event in enumerate(events):
        moved = event["from_state"] != event["to_state"]
        staged = event["from_stage"] != event["to_stage"]
        kind = "state" if moved else "stage" if staged else "asked"
        until = next((_time(e["at"]) for e in events[index + 1 :] if _ends(kind, e)), None)
        if kind == "asked" or event["to_state"] == State.TERMINATED:
            until = _time(event["at"])
        what = event["to_state"] if moved else event["to_stage"] if staged else "asked"
        facts = event["detail"] or {}
        why = [f"{name} {facts[name]}" for name in ("exit_cause", "failure_code") if moved and facts.get(name)]
        reason = "" if event["reason"] == f"climbing: {what}" else event["reason"]  # nothing that `what` does not say
        by = "" if event["actor"] == "orchestrator" else f" (by {event['actor']})"
        made.append(Entry(_time(event["at"]), until, kind, what, "; ".join(filter(None, [reason + by, *why]))))
    return made


def _ends(kind: str, event: Row) -> bool:
    moved = event["from_state"] != event["to_state"]
    return moved or (kind == "stage" and event["from_stage"] != event["to_stage"])


def _attempt(row: Row) -> Entry:
    facts = [row["outcome"] or "under way", row["failure_code"] or "", row["exception_type"] or ""]
    note = " ".join(fact for fact in facts if fact)
    seen = told(row["evidence"] or {})
    until = _time(row["ended_at"]) if row["ended_at"] else None
    what = f"{row['stage']} attempt {row['attempt']}"
    return Entry(_time(row["started_at"]), until, "attempt", what, f"{note}: {seen}" if seen else note)


def _task(row: Row) -> Entry:
    facts = [row["outcome"] or "running", row["failure_code"] or "", row["exit_class"] or "", row["message"] or ""]
    until = _time(row["ended_at"]) if row["ended_at"] else None
    what = f"task {row['task_id']} attempt {row['attempt']}"
    return Entry(_time(row["started_at"]), until, "task", what, " ".join(fact for fact in facts if fact))


def _gaps(events: Sequence[Row], attempts: Sequence[Row], now: datetime) -> list[Entry]:
    """Where a worker that was coming or going had no attempt under way."""
    taken = sorted((_time(a["started_at"]), _time(a["ended_at"]) if a["ended_at"] else now) for a in attempts)
    made = []
    for state, begin, end in _spans(events, now):
        if state not in IN_MOTION:
            continue
        free = begin
        for started, ended in [*taken, (end, end)]:
            if begin <= started <= end and (started - free).total_seconds() > GAP_S:
                made.append(Entry(free, started, "gap", "nothing under way", _waited_for(events, free)))
            if started <= end:
                free = max(free, ended)
    return made


def _waited_for(events: Sequence[Row], at: datetime) -> str:
    before = [event for event in events if _time(event["at"]) <= at]
    waited = (before[-1]["detail"] or {}).get("waiting_for") if before else None
    return f"it waited for {waited}" if waited else ""


def _spans(events: Sequence[Row], now: datetime) -> list[tuple[str, datetime, datetime]]:
    """(state, from, to) without `terminated`, which lasts for ever."""
    moves = [(e["to_state"], _time(e["at"])) for e in events if e["from_state"] != e["to_state"]]
    ends = [at for _, at in moves[1:]] + [now]
    return [(state, at, end) for (state, at), end in zip(moves, ends, strict=True) if state != State.TERMINATED]


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
