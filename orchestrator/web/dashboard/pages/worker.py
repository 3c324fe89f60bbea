"""`/workers/<id>`: what it waits for or why it ended, its bring-up, its tasks, its cost, and its log."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.core import moments
from orchestrator.core.api_tokens import TokenScope
from orchestrator.core.findings import GuardFinding, Severity, findings_of
from orchestrator.core.model import ID_PATTERN
from orchestrator.core.states import State
from orchestrator.core.worker_metadata import WorkerMetadata
from orchestrator.diagnostics import timeline, workers
from orchestrator.errors import NO_WORKER
from orchestrator.web.api.problems import Problem
from orchestrator.web.dashboard import charts
from orchestrator.web.dashboard.bringup import bringup
from orchestrator.web.dashboard.curves import curves
from orchestrator.web.dashboard.log_parts import streams
from orchestrator.web.dashboard.pages.audit import done_with
from orchestrator.web.dashboard.views import Facts, Page, Reads, View

Row = Mapping[str, Any]
MAX_TASKS = 50
NOTED = frozenset({Severity.NOTE, Severity.UNKNOWN})  # severities that need nobody
MAX_ENTRIES = 100
SHOWN = frozenset({"state", "stage", "asked", "gap", "hole"})  # entries; attempts and tasks have tables of their own
KINDS = {"spawning": "over", "active": "busy", "idle": "idle", "terminating": "drain"}  # colours of the cost


async def facts(reads: Reads, view: View) -> Facts:
    """All that is known of one worker."""
    name = view.path["worker_id"]
    history = await seen_worker(reads, view, name)
    found, minutes, done, (logs, log_trouble) = await asyncio.gather(
        reads.get("worker_explained", name),
        reads.get("worker_minutes", name),
        done_with(reads, view, name),
        streams(reads, f"log of {name}", lambda: reads.api.log_tails.of_worker(name), view.query.get("find", "")),
    )
    row, now = history["worker"], moments.moment(history["now"])
    explanation = workers.explained(found, reads.api.policy)
    is_over = row["status"] == State.TERMINATED
    entries = [one for one in timeline.entries(history) if one.kind in SHOWN]
    states = timeline.by_state(history)
    return {
        "title": f"{name}: {row['status']}",
        "worker": row,
        "done": done,
        "is_over": is_over,
        "why": explanation,
        "sentence": sentence(explanation),
        "bringup": bringup(history, explanation.usual, now),
        "entries": [_entry(one, now) for one in entries[-MAX_ENTRIES:]],
        "entries_left_out": max(0, len(entries) - MAX_ENTRIES),
        "tasks": [
            {**one, "took_s": _seconds(one["started_at"], one["ended_at"])}
            for one in history["tasks"][-MAX_TASKS:][::-1]
        ],
        "all_tasks": len(history["tasks"]) + history["left_out"]["tasks"]["count"],
        "states": states,
        "kinds": KINDS,
        "split": charts.split([(KINDS[one.state], one.usd) for one in states if one.usd], "Cost by state"),
        "findings": [finding(one, name) for one in findings_of(row["health"])],
        "gpus": gpu_readings(row),
        "curves": curves(minutes, row),
        "lived_s": _seconds(row["created_at"], row["terminated_at"]) if is_over else None,
        "logs": logs,
        "log_trouble": log_trouble,
        "not_shipped": not_shipped(row, logs),
        "find": view.query.get("find", ""),
        "may_operate": view.holder.may({TokenScope.OPERATE}),
    }


async def seen_worker(reads: Reads, view: View, name: str) -> Row:
    """The worker with its history. Raises Problem if there is none for this holder."""
    history: Row | None = await reads.get("worker_history", name) if ID_PATTERN.fullmatch(name) else None
    if history is None or history["worker"] is None or not view.holder.sees(history["worker"]["pool"]):
        why = "there is no worker with this id, or not for this token"
        raise Problem(404, NO_WORKER, why, fix="look at the list of workers")
    return history


def sentence(explanation: workers.WorkerExplanation) -> str:
    """Where it is, in a line under its name."""
    if explanation.state == State.TERMINATED:
        return explanation.ended[0] if explanation.ended else "It has ended."
    return f"Waits for {explanation.what}"


def finding(one: GuardFinding, name: str) -> Row:
    """What its agent reports of the machine."""
    shown: dict[str, Any] = {"code": one.code, "text": one.evidence, "since": one.since, "then": None, "fix": None}
    if one.severity not in NOTED and one.guard:
        fix = one.guard.meaning.fix.replace("<worker>", name)
        shown |= {"then": one.guard.meaning.then, "fix": fix}
    return {**shown, "shape": "bad" if one.severity.blocks else "none" if one.severity in NOTED else "warn"}


def gpu_readings(row: Row) -> list[Row]:
    """Each GPU as the final snapshot of the pod has it."""
    found = (WorkerMetadata.of(row["metadata"]).last_snapshot or {}).get("gpus")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, Sequence) else []


def not_shipped(row: Row, logs: Sequence[Row]) -> int:
    """The bytes of log that the pod had at its last heartbeat and the bucket has not, as far as it is known."""
    if row["status"] == State.TERMINATED:
        return 0
    told: int = sum(size for sizes in (row.get("log_bytes") or {}).values() for size in sizes.values())
    stored: int = sum(one["stored_bytes"] for one in logs)
    return max(0, told - stored)


def _entry(one: timeline.Entry, now: datetime) -> Row:
    shown = {"at": one.at, "until": one.until, "kind": one.kind, "what": one.what, "note": one.note}
    return {**shown, "took_s": one.seconds(now)}


def _seconds(begin: str, end: str | None) -> float | None:
    return (moments.moment(end) - moments.moment(begin)).total_seconds() if end else None


PAGE = Page(
    "/workers/{worker_id}", "", "worker.html", facts,
    lambda view: f"orchestrator explain {view.path['worker_id']}", parent="/workers",
)  # fmt: skip
