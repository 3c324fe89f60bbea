"""Reads tasks from lines of JSON, each with an id that is the same in each import of the line."""

import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from orchestrator.cli.options import no_constant

MAX_LINE_BYTES = 2 << 20  # params have 1 MiB at most
NAMESPACE = uuid.UUID("0e2c8d5c-6a55-5d0c-9d0e-6f7c2b8f3a41")  # of the ids that are made from lines


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the file: a task, or why it is none."""

    number: int
    size: int  # bytes
    task: Mapping[str, Any] | None
    why: str = ""


def read(file: IO[bytes], key: str, task_type: str | None = None) -> Iterator[Line]:
    """Yield each line that is not blank. A line longer than MAX_LINE_BYTES is read past and is not a task.

    A task without `id` gets one from `key`, the line's text, and how often this text occurred before. Lines that were
    imported already are recognised by it, even if other lines were added, removed or corrected. `task_type` is the type
    of tasks that name none.
    """
    seen: Counter[uuid.UUID] = Counter()
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number, size = number + 1, len(raw)
        if size > MAX_LINE_BYTES and not raw.endswith(b"\n"):
            while rest := file.readline(MAX_LINE_BYTES):
                size += len(rest)
                if rest.endswith(b"\n"):
                    break
            yield Line(number, size, None, f"longer than {MAX_LINE_BYTES:,} bytes")
        elif text := raw.strip():
            task = _task(text, task_type)
            if isinstance(task, str):
                yield Line(number, size, None, task)
                continue
            same = uuid.uuid5(NAMESPACE, f"{key}\n{text.decode()}")
            seen[same] += 1
            yield Line(number, size, {"id": str(uuid.uuid5(same, str(seen[same]))), **task})


def _task(text: bytes, task_type: str | None) -> dict[str, Any] | str:
    """Return the task of a line, or why it is none. The database checks the fields."""
    try:
        found = json.loads(text, parse_constant=no_constant)
    except RecursionError:
        return "not JSON: nested too deeply"
    except ValueError as error:
        return f"not JSON: {error}"
    if not isinstance(found, dict):
        return f"not a JSON object, but {type(found).__name__}"
    if task_type is not None:
        found.setdefault("task_type", task_type)
    if "task_type" not in found:
        return "it has no task_type, and --type names none"
    if any(str(one).startswith("#") for one in found.get("depends_on") or () if isinstance(found["depends_on"], list)):
        return 'depends_on names "#…", which only task_submit() knows: give the other line an "id" and name that'
    return found
