"""The soak's handler: lines and raw bytes into the log, now and then a file into the bucket."""

import sys
import time
from typing import Any


def toil(params: dict[str, Any], task: Any) -> dict[str, Any]:
    """Take `seconds`, write `lines` lines of which some are no UTF-8, and leave a file that names the task if asked."""
    lines = params["lines"]
    for number in range(lines):
        sys.stdout.buffer.write(f"task {task.id} attempt {task.attempt} line {number} ".encode())
        sys.stdout.buffer.write(bytes((number * 37 + byte) % 256 for byte in range(number % 50)) + b"\n")
        sys.stdout.buffer.flush()
        time.sleep(params["seconds"] / lines)
    if not params["leaves_file"]:
        return {"attempt": task.attempt}
    target = task.dir / "out.txt"
    target.write_text(f"{task.id}\n")
    return {"output_location": task.upload(target), "attempt": task.attempt}
