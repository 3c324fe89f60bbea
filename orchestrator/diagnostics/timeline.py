"""`timeline <worker>`: events and attempts in order, with durations, omissions, and gaps without activity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.core import moments
from orchestrator.core.states import State
from orchestrator.diagnostics.evidence import evidence_text

Row = Mapping[str, Any]
GAP_S = 5.0  # seconds; a shorter gap is not shown
IN_MOTION = frozenset({State.SPAWNING, State.TERMINATING})  # states in which some attempt should be open
KINDS = {
    "spawning": "booting",
    "active": "busy",
    "idle": "idle",
    "terminating": "draining",
}  # kinds of costs
ORDER = ("state", "stage", "asked", "attempt", "task", "gap", "hole")  # order of entries that begin at the same time


@dataclass(frozen=True, slots=True)
class Entry:
    """One line."""

    at: datetime
    until: datetime | None  # None: it is still open
    kind: str  # one of ORDER
    what: str
    note: str

    def seconds(self, now: datetime) -> float:
        """Return the seconds that the entry took, or has taken so far."""
        return max(0.0, ((self.until or now) - self.at).total_seconds())


@dataclass(frozen=True, slots=True)
class StateSum:
    """The time and cost of a state in all."""

    state: str
    seconds: float
    usd: float


def entries(found: Row) -> tuple[Entry, ...]:
    """Return the entries of a worker that fleet_worker() found, in order."""
    now = moments.moment(found["now"])
    made = [*map(_attempt, found["attempts"]), *map(_task, found["tasks"])]
    taken = [
        (moments.moment(a["started_at"]), moments.moment(a["ended_at"]) if a["ended_at"] else now)
        for a in found["attempts"]
    ]
    taken += [(hole.at, hole.until or now) for hole in _holes(found, "attempts", "started_at")]
    for events, end in _stretches(found):
        made += [*_events(events, end), *_gaps(events, taken, end or now)]
    for kind, at in (("events", "at"), ("attempts", "started_at"), ("tasks", "started_at")):
        made += _holes(found, kind, at)
    return tuple(sorted(made, key=lambda entry: (entry.at, ORDER.index(entry.kind))))


def by_state(found: Row) -> tuple[StateSum, ...]:
    """Return the time and dollars of each state that the worker has been in, including omitted events."""
    seconds, usd = found["states"], found["worker"]["cost_by_kind"]
    return tuple(
        StateSum(state, round(float(seconds[state]), 3), float(usd.get(kind, 0)))
        for state, kind in KINDS.items()
        if state in seconds
    )


def _stretches(found: Row) -> list[tuple[Sequence[Row], datetime | None]]:
    """Return the events before and after the omission, each with the end of its period; None: until now."""
    events, hole = found["events"], found["left_out"]["events"]
    if not hole["count"]:
        return [(events, None)]
    return [(events[: hole["at"]], moments.moment(events[hole["at"] - 1]["at"])), (events[hole["at"] :], None)]


def _holes(found: Row, kind: str, at: str) -> list[Entry]:
    """Return the line for omitted events, if there are any: from the event before them to the event after them."""
    rows, hole = found[kind], found["left_out"][kind]
    if not hole["count"]:
        return []
    before = rows[hole["at"] - 1][at] if hole["at"] else found["worker"]["promoted_at"] or found["worker"]["created_at"]
    return [
        Entry(
            moments.moment(before),
            moments.moment(rows[hole["at"]][at]),
            "hole",
            f"… {hole['count']} {kind} not shown",
            "",
        )
    ]


def _events(events: Sequence[Row], end: datetime | None) -> list[Entry]:
    made = []
    for index, event in enumerate(events):
        moved = event["from_state"] != event["to_state"]
        staged = event["from_stage"] != event["to_stage"]
        kind = "state" if moved else "stage" if staged else "asked"
        until = next((moments.moment(e["at"]) for e in events[index + 1 :] if _ends(kind, e)), end)
        if kind == "asked" or event["to_state"] == State.TERMINATED:
            until = moments.moment(event["at"])
        facts = event["detail"] or {}
        what = event["to_state"] if moved else event["to_stage"] if staged else "address" if "ssh" in facts else "asked"
        why = [f"{name} {facts[name]}" for name in ("exit_cause", "failure_code") if moved and facts.get(name)]
        reason = (
            "" if event["reason"] == f"bring-up: {what}" else event["reason"]
        )  # only facts that `what` does not contain
        by = "" if event["actor"] == "orchestrator" else f" (by {event['actor']})"
        made.append(Entry(moments.moment(event["at"]), until, kind, what, "; ".join(filter(None, [reason + by, *why]))))
    return made


def _ends(kind: str, event: Row) -> bool:
    moved = event["from_state"] != event["to_state"]
    return moved or (kind == "stage" and event["from_stage"] != event["to_stage"])


def _attempt(row: Row) -> Entry:
    facts = [row["outcome"] or "under way", row["failure_code"] or "", row["exception_type"] or ""]
    note = " ".join(fact for fact in facts if fact)
    seen = evidence_text(row["evidence"] or {})
    until = moments.moment(row["ended_at"]) if row["ended_at"] else None
    what = f"{row['stage']} attempt {row['attempt']}"
    return Entry(moments.moment(row["started_at"]), until, "attempt", what, f"{note}: {seen}" if seen else note)


def _task(row: Row) -> Entry:
    facts = [row["outcome"] or "running", row["failure_code"] or "", row["exit_class"] or "", row["message"] or ""]
    until = moments.moment(row["ended_at"]) if row["ended_at"] else None
    what = f"task {row['task_id']} attempt {row['attempt']}"
    return Entry(moments.moment(row["started_at"]), until, "task", what, " ".join(fact for fact in facts if fact))


def _gaps(events: Sequence[Row], taken: Sequence[tuple[datetime, datetime]], until: datetime) -> list[Entry]:
    """Return the times in which a starting or ending worker had no open attempt."""
    made = []
    for state, begin, end in _spans(events, until):
        if state not in IN_MOTION:
            continue
        free = begin
        for started, ended in [*sorted(taken), (end, end)]:
            if begin <= started <= end and (started - free).total_seconds() > GAP_S:
                made.append(Entry(free, started, "gap", "nothing under way", _waited_for(events, free)))
            if started <= end:
                free = max(free, ended)
    return made


def _waited_for(events: Sequence[Row], at: datetime) -> str:
    before = [event for event in events if moments.moment(event["at"]) <= at]
    waited = (before[-1]["detail"] or {}).get("waiting_for") if before else None
    return f"it waited for {waited}" if waited else ""


def _spans(events: Sequence[Row], until: datetime) -> list[tuple[str, datetime, datetime]]:
    """Return (state, from, to) without `terminated`, which has no end."""
    moves = [(e["to_state"], moments.moment(e["at"])) for e in events if e["from_state"] != e["to_state"]]
    ends = [*(at for _, at in moves), until][1:]  # without moves there is no end either: retention deletes events
    return [(state, at, end) for (state, at), end in zip(moves, ends, strict=True) if state != State.TERMINATED]
