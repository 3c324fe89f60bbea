"""Handlers for end-to-end tests: they take as long as they are told, and say who did it."""

import os
import sys
import time
from typing import Any


def work(params: dict[str, Any], task: Any) -> dict[str, Any]:
    """Print a line per tenth of a second, so that there is a log to ship; then say which process did it."""
    deadline = time.monotonic() + params.get("seconds", 0.2)
    number = 0
    while time.monotonic() < deadline:
        number += 1
        sys.stdout.write(f"task {task.id} attempt {task.attempt} line {number}\n")
        sys.stdout.flush()
        task.progress(None, f"line {number}")
        time.sleep(0.1)
    return {"pid": os.getpid(), "sum": sum(d.result_data["sum"] for d in task.dependencies) + params.get("value", 0)}


def stand(params: dict[str, Any], task: Any) -> None:
    """Stand still, without a word of progress."""
    time.sleep(params["seconds"])


def leave(params: dict[str, Any], task: Any) -> str:
    """Leave a file behind."""
    path = task.dir / "left.txt"
    path.write_text(params["text"])
    location: str = task.upload(path)
    return location
