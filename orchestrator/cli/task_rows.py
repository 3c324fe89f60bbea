"""Rows of tasks for people: one line each with what a queued task waits for, and the table of a list."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from orchestrator.cli.output import Output, one_line
from orchestrator.cli.tables import GAP, cut, fit, stack, state
from orchestrator.diagnostics.amounts import ago, relative, span
from orchestrator.diagnostics.tasks import progress
from orchestrator.observability.redaction import plain

SHORT_ID = 8  # digits of a task's id on a narrow terminal; every command accepts them
WHOLE_ID = 36
NOTE = "note"
NOTE_CHARACTERS = 200
NOTE_LINES = 2  # of a terminal that a note takes at most; `explain` and `tasks show` have all of it
Row = Mapping[str, Any]


def counted_by_status(counts: Mapping[str, int], beyond: Sequence[str]) -> str:
    """Return `more than 9,876 Complete, 3 Queued`; of the statuses in `beyond` there are more than were counted."""
    return ", ".join(f"{'more than ' if status in beyond else ''}{n:,} {status}" for status, n in counts.items())


def listing(rows: Sequence[Row], output: Output, now: datetime) -> RenderableType:
    """Return one line per task. On a narrow terminal, ids are shortened to the digits that tell them apart."""
    ids = [str(row["id"]) for row in rows]
    digits = next(n for n in (SHORT_ID, 2 * SHORT_ID, WHOLE_ID) if len({one[:n] for one in ids}) == len(set(ids)))
    cells: dict[str, list[str | Text]] = {
        "task": list(ids),
        "status": [state(row["status"]) for row in rows],
        "type": [one_line(row["task_type"], 30) for row in rows],
        "pool": [one_line(row["pool"], 63) for row in rows],
        "try": [f"{attempts_made(row)}/{row.get('max_attempts') or '–'}" for row in rows],
        "age": [span(ago(row["created_at"], now)) for row in rows],
        "worker": [plain(row.get("worker_id") or "–") for row in rows],
    }
    if len({row["pool"] for row in rows}) == 1:
        del cells["pool"]
    notes = [note(row, now) for row in rows]
    if whole := fit(cells, [*map(Text, notes)], output, layouts=[tuple(cells)], title=NOTE, note_lines=NOTE_LINES):
        return whole
    said = [Text(plain(_shorter(row, text))) for row, text in zip(rows, notes, strict=True)]
    del cells["worker"]
    short: dict[str, list[str | Text]] = {
        "short id": [one[:digits] for one in ids],
        **{name: cells[name] for name in cells if name != "task"},
    }
    layouts = [tuple(cells), tuple(short)]
    if made := fit(cells | short, said, output, layouts=layouts, title=NOTE, note_lines=NOTE_LINES):
        return made
    said = [cut(one, output, output.out.width - GAP, NOTE_LINES) for one in said]
    return stack(short, said, output, below=(), title=NOTE)


def _shorter(row: Row, text: str) -> str:
    """Return the note for a narrow terminal: with the end of the worker's id, or the file of an output alone."""
    if row["status"] == "In Progress":
        return f"on {row['worker_id'][-SHORT_ID:]}  {text}"
    folder, slash, file = text.rpartition("/")
    return f"…/{file}" if row["status"] == "Complete" and slash and folder else text


def attempts_made(row: Row) -> int:
    """Return the attempts that count: without those given back or made before a retry."""
    return max(0, (row.get("attempts") or 0) - (row.get("uncounted") or 0))


def note(row: Row, now: datetime) -> str:
    """Return what a task waits for, how far it is, or how it ended, on one line."""
    if row["status"] == "Queued":
        return one_line(waits(row, now), NOTE_CHARACTERS)
    if row["status"] == "In Progress":
        if row.get("cancel_requested_at"):
            return "being cancelled"
        return one_line(progress(row["progress"]), 60) if row.get("progress") else ""
    if row["status"] == "Complete":
        return one_line(row.get("output_location") or "", NOTE_CHARACTERS)
    return one_line(": ".join(filter(None, (row.get("failure_code"), row.get("error_message")))), NOTE_CHARACTERS)


def waits_for_worker(row: Row) -> bool:
    """Whether a task waits for nothing but a worker."""
    reason = row.get("waits") or {"kind": "worker"}
    return bool(row["status"] == "Queued" and reason["kind"] == "worker")


def waits(row: Row, now: datetime) -> str:
    """Return what a queued task waits for: `retry in 30s: NO_HANDLER`. The reason is data of the database."""
    reason = row.get("waits") or {"kind": "worker"}
    until = relative(reason.get("until"), now)
    match reason["kind"]:
        case "dependencies":
            unmet = "some" if reason["unmet"] is None else reason["unmet"]
            return f"waits for {unmet} of {reason['of']} {'task' if reason['of'] == 1 else 'tasks'}"
        case "limit":
            limit = f"{'key' if reason['scope'] == 'key' else 'type'} {reason['name']}"
            held = f"waits for the {limit}: {reason['running']} of {reason['most']} run"
            return held if reason["most"] else f"waits: the limit of the {limit} is 0"
        case "retry":
            return f"retry {until}: {reason['code']}"
        case "scheduled":
            return f"starts {until}"
        case _:
            return "waits for a worker"
