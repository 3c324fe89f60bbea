"""The rows of the two tables of the screen. Only the last column of a row is cut; enter shows all of it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.text import Text

from orchestrator.cli import tables, task_rows
from orchestrator.cli.output import NARROW_COLUMNS, one_line
from orchestrator.cli.worker_rows import ended_after_s, flags, is_live, note
from orchestrator.core import decision_text
from orchestrator.diagnostics.amounts import ago, gpu_name, relative, span, usd
from orchestrator.observability.redaction import plain, redact

Row = Mapping[str, Any]
WORKER_COLUMNS = ("worker", "state", "GPU", "age", "heartbeat", "$/h", "spent", "waiting on / note")
WORKER_FEW = ("worker", "state", "age", "waiting on / note")  # on a narrow screen
TASK_COLUMNS = ("task", "status", "type", "try", "age", "worker", "note")
TASK_FEW = ("task", "status", "type", "age", "note")
ID_CHARS = 8  # of a task's id on a narrow screen: commands take the beginning of an id
CELL_PADDING = 2  # a blank on each side
SCROLLBAR = 2


def columns(all_columns: Sequence[str], few: Sequence[str], width: int) -> Sequence[str]:
    """Return the columns for a screen of this width."""
    return few if width < NARROW_COLUMNS else all_columns


def worker(row: Row, now: datetime) -> dict[str, Text]:
    """Return the cells of a worker by column. An ended one has its life as its age, and no heartbeat or price."""
    live = is_live(row)
    gpu = gpu_name(row.get("gpu_type") or row.get("instance_type"), row.get("gpu_count"))
    age = span(ago(row["created_at"], now) if live else ended_after_s(row))
    beat = span(ago(row.get("last_heartbeat"), now)) if live else "–"
    price = usd(row.get("price_usd_per_hour")) if live else "–"
    said = Text(redact(plain(note(row, now))), style="bold red" if live and flags(row, now) else "")
    texts = (row["id"], None, plain(gpu), age, beat, price, usd(row.get("cost_usd")), None)
    cells = {name: Text(text or "") for name, text in zip(WORKER_COLUMNS, texts, strict=True)}
    return cells | {"state": tables.state(row["status"]), WORKER_COLUMNS[-1]: said}


def task(row: Row, now: datetime, width: int) -> dict[str, Text]:
    """Return the cells of a task by column."""
    name = str(row["id"]) if width >= NARROW_COLUMNS else str(row["id"])[:ID_CHARS]
    tries = f"{task_rows.attempts_made(row)}/{row.get('max_attempts') or '–'}"
    worker_id = plain(row.get("worker_id") or "–")
    texts = (name, None, one_line(row["task_type"], 24), tries, span(ago(row["created_at"], now)), worker_id)
    cells = {name: Text(text or "") for name, text in zip(TASK_COLUMNS[:-1], texts, strict=True)}
    return cells | {"status": tables.state(row["status"]), "note": Text(redact(plain(task_rows.note(row, now))))}


def fitted(names: Sequence[str], rows: Sequence[dict[str, Text]], width: int) -> list[list[Text]]:
    """Return the cells of the columns `names`, in lines that fit the width."""
    taken = sum(max(len(name), *(len(cells[name]) for cells in rows), 0) for name in names[:-1]) if rows else 0
    room = max(width - taken - CELL_PADDING * len(names) - SCROLLBAR, len(names[-1]))
    for cells in rows:
        cells[names[-1]].truncate(room, overflow="ellipsis")
    return [[cells[name] for name in names] for cells in rows]


def decision(row: Row, now: datetime, width: int) -> Text:
    """Return a decision in one line."""
    text = f"{relative(row['at'], now):>12}  {row['pool']}: {redact(one_line(decision_text.row_sentence(row), 400))}"
    return Text(text if len(text) <= width else f"{text[: width - 1]}…")
