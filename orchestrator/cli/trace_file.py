"""Reads a trace: a CSV file with the columns arrival_s, duration_s and, if there are several pools, pool.

Other columns are ignored. A trace comes from anywhere, so that its size, its rows and its numbers are bounded.
"""

import csv
from collections.abc import Sequence
from math import isfinite

from orchestrator.cli.options import file_text
from orchestrator.core.economics.replay import RecordedTask
from orchestrator.errors import BAD_ARGUMENT, Failure
from orchestrator.observability.redaction import plain

MAX_BYTES = 64 << 20
MAX_TASKS = 500_000
MAX_POOLS = 1_000
MAX_NAME = 63  # characters of a pool's name
MAX_ARRIVAL_S = 1e10  # also seconds since 1970
MAX_SPAN_S = 3_660 * 86_400.0
MAX_DURATION_S = 30 * 86_400.0
SHOWN = 40  # characters of a value that an error shows
FORM = "the first line is `arrival_s,duration_s` or `arrival_s,duration_s,pool`, then one line for each task"


def read(path: str) -> list[RecordedTask]:
    """Read the tasks of a trace, at least one, in the order of their arrivals. Raises Failure."""
    text = file_text(path, "the trace", MAX_BYTES, fix="replay fewer days")
    rows = csv.reader(text.splitlines())
    tasks: list[RecordedTask] = []
    pools: set[str] = set()
    try:
        header = [name.strip() for name in next(rows, [])]
        places = _places(header)
        for row in rows:
            if not row:
                continue
            task = _task(row, places, rows.line_num)
            _check_place(task, tasks, rows.line_num)
            pools.add(task.pool)
            if len(tasks) == MAX_TASKS or len(pools) > MAX_POOLS:
                what = f"{MAX_TASKS:,} tasks" if len(tasks) == MAX_TASKS else f"{MAX_POOLS:,} pools"
                raise _refused(rows.line_num, f"a trace has at most {what}", "replay fewer days, or fewer pools")
            tasks.append(task)
    except csv.Error as error:
        raise _refused(rows.line_num, f"it is not CSV: {error}", FORM) from None
    if not tasks:
        raise _refused(1, "it has no tasks", FORM)
    return tasks


def _places(header: Sequence[str]) -> dict[str, int]:
    missing = [name for name in ("arrival_s", "duration_s") if name not in header]
    if missing:
        raise _refused(1, f"it names no column {' and no column '.join(missing)}", FORM)
    return {name: header.index(name) for name in ("arrival_s", "duration_s", "pool") if name in header}


def _task(row: Sequence[str], places: dict[str, int], line: int) -> RecordedTask:
    if len(row) <= max(places.values()):
        raise _refused(line, f"it has {len(row)} columns, fewer than the first line", FORM)
    pool = row[places["pool"]].strip() if "pool" in places else "default"
    if not 0 < len(pool) <= MAX_NAME or not pool.isprintable():
        raise _refused(line, f"pool {_shown(pool)} is not a name of 1 to {MAX_NAME} characters", "correct the name")
    arrival_s = _number(row[places["arrival_s"]], "arrival_s", MAX_ARRIVAL_S, line)
    return RecordedTask(arrival_s, _number(row[places["duration_s"]], "duration_s", MAX_DURATION_S, line), pool)


def _check_place(task: RecordedTask, before: Sequence[RecordedTask], line: int) -> None:
    if not before:
        return
    if task.arrival_s < before[-1].arrival_s:
        raise _refused(line, "the task arrives before the one in the line above", "sort the lines by arrival_s")
    if task.arrival_s - before[0].arrival_s > MAX_SPAN_S:
        raise _refused(line, "the task arrives more than ten years after the first one", "replay fewer days")


def _number(text: str, name: str, most: float, line: int) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not isfinite(number) or not 0 <= number <= most:
        raise _refused(line, f"{name} {_shown(text)} is not a number from 0 to {most:g}", "correct or remove the line")
    return number


def _shown(text: str) -> str:
    return repr(plain(text if len(text) <= SHOWN else text[:SHOWN] + "…"))


def _refused(line: int, why: str, fix: str) -> Failure:
    return Failure(BAD_ARGUMENT, what="the trace cannot be used", why=f"line {line}: {why}", fix=fix)
