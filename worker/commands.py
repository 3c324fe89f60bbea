"""Handlers that are commands (`cmd:./nightly.sh --fast`), and a user's own worker program."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import threading

from .output import OUT
from .transfer_errors import TransferError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

    from .task import Task

LAST_LINE_BYTES = 1 << 20  # bytes of the last line of stdout, which may be a JSON object of result data
PROGRESS = b"progress:"  # begins a line of stdout that reports progress
PROGRESS_BYTES = 1_000  # bytes of such a line, and of the file `progress`
PROGRESS_FILE_S = 1.0  # seconds between two reads of this file
LINGER_S = 1.0  # seconds for the rest of the output of an ended command whose child still holds the pipe open


def run(command: str, task: Task) -> dict[str, Any]:
    """Run a command on one task: the task is on stdin, ./output/ is uploaded, the last line of stdout is the result."""
    os.makedirs("output", exist_ok=True)
    given = {
        "id": task.id,
        "task_type": task.type,
        "attempt": task.attempt,
        "params": task.params,
        "traceparent": task.traceparent,
        "dependencies": [
            {"id": one.id, "task_type": one.task_type, "output_location": one.output_location,
             "result_data": one.result_data} for one in task.dependencies
        ],
    }  # fmt: skip
    with open("task.json", "w+", encoding="utf-8") as file:
        json.dump(given, file)
        file.seek(0)
        ended = subprocess.Popen(argv(command), stdin=file, stdout=subprocess.PIPE)
    last: list[bytes] = []
    assert ended.stdout is not None  # noqa: S101 for the type checker: stdout=PIPE sets it
    copying = threading.Thread(target=_copy, args=(ended.stdout, last, task), daemon=True)
    copying.start()
    over = threading.Event()
    threading.Thread(target=_read_progress, args=(task, over), daemon=True).start()
    status = ended.wait()  # no timeout: the agent ends this process when the task's time is up
    over.set()
    copying.join(LINGER_S)
    if status != 0:
        return {"op": "failed", "status": status, "type": "CommandFailed", "message": f"status {status}"}
    if os.path.islink("output"):
        raise TransferError("output is a link that leaves the task's folder: copy the files instead")
    task.upload_folder("output")
    return task.ended(_result(last))


def program(request: dict[str, Any], terminate: threading.Event) -> dict[str, Any]:
    """Run the user's own worker program until it ends."""
    ended = subprocess.Popen(
        ["/bin/sh", "-c", request["command"]], env={**os.environ, **request["env"]}, stdin=subprocess.DEVNULL
    )
    while True:
        if terminate.is_set():
            ended.terminate()
            terminate.clear()
        try:
            return {"op": "ended", "status": ended.wait(0.2)}
        except subprocess.TimeoutExpired:
            continue


def argv(command: str) -> list[str]:
    """Split the command into words. A word ./NAME becomes the path of NAME in the user's code, if the file exists."""
    code_dir = os.environ.get("PYTHONPATH", "").partition(os.pathsep)[0]
    words = []
    for word in shlex.split(command):
        path = os.path.join(code_dir, word[2:]) if code_dir and word.startswith("./") else ""
        words.append(path if path and os.path.exists(path) else word)
    return words


def _read_progress(task: Task, over: threading.Event) -> None:
    """Report what the command writes to the file `progress`, at each change of the file."""
    path, seen = os.path.join(task.dir, "progress"), None
    while not over.wait(PROGRESS_FILE_S):
        with contextlib.suppress(OSError):  # the file is missing or not a regular file
            changed = os.stat(path).st_mtime_ns
            if changed != seen:
                with open(path, "rb") as file:
                    _report(file.read(PROGRESS_BYTES), task)
            seen = changed


def _report(text: bytes, task: Task) -> None:
    """Report progress: a number from 0 to 1 and a message, both optional."""
    words = text.decode("utf-8", "replace").split(maxsplit=1)
    try:
        fraction = float(words[0])
    except (IndexError, ValueError):
        fraction = -1.0
    known = 0 <= fraction <= 1  # json.dumps would write NaN, which is not JSON
    message = " ".join(words[known:]).strip()
    task.progress(fraction if known else None, message or None)


def _copy(source: IO[bytes], last: list[bytes], task: Task) -> None:
    """Copy standard output line by line into the log, and keep the last line."""
    for line in iter(lambda: source.readline(LAST_LINE_BYTES), b""):
        OUT.write(line)  # never raises: a pipe without a reader would block the command
        if line.startswith(PROGRESS):
            _report(line[len(PROGRESS) :][:PROGRESS_BYTES], task)
        elif line.strip():
            last[:] = [line]


def _result(last: list[bytes]) -> dict[str, Any] | None:
    try:
        found = json.loads(last[0]) if last else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
