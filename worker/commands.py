"""Handlers that are commands (`cmd:./nightly.sh --fast`), and the worker program of a user's own."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading

from .output import OUT
from .transfers import TransferError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

    from .task import Task

LAST_LINE_BYTES = 1 << 20  # of stdout that may be a JSON object of result data
MAX_OUTPUTS = 2_000  # files that a command leaves; each is a request to the store and a line of the result
LINGER_S = 1.0  # for output of a command that has ended while a child of it keeps the pipe open


def run(command: str, task: Task) -> dict[str, Any]:
    """Run a command on one task: the task on stdin, ./output/ uploaded afterwards, last line of stdout as result."""
    os.makedirs("output", exist_ok=True)
    given = {
        "id": task.id,
        "task_type": task.type,
        "attempt": task.attempt,
        "params": task.params,
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
    assert ended.stdout is not None  # noqa: S101 for the type checker: it was asked for
    copying = threading.Thread(target=_copy, args=(ended.stdout, last), daemon=True)
    copying.start()
    status = ended.wait()  # no timeout: the agent ends this process when the task's time is up
    copying.join(LINGER_S)
    if status != 0:
        return {"op": "failed", "status": status, "type": "CommandFailed", "message": f"status {status}"}
    for path in _outputs(os.path.realpath(task.dir)):
        task.upload(path, os.path.relpath(path, "output"))
    return task.ended(_result(last))


def _outputs(home: str) -> list[str]:
    """The files in ./output/, folder by folder. TransferError for too many, or a link to a place outside `home`."""
    found: list[str] = []
    for folder, folders, names in os.walk("output"):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in (*names, *links):
            path = os.path.join(folder, name)
            if not os.path.realpath(path).startswith(home + os.sep):
                raise TransferError(f"{path} is a link that leaves the task's folder: copy the file instead")
            if len(found) == MAX_OUTPUTS:
                raise TransferError(f"the command left more than {MAX_OUTPUTS} files in output/: pack them into one")
            found.append(path)
    return sorted(found, key=os.path.split)


def program(request: dict[str, Any], terminate: threading.Event) -> dict[str, Any]:
    """Run the user's own worker program to its end."""
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
    """The command's words; one that begins with ./ and is in the user's code means that file, wherever it runs."""
    code_dir = os.environ.get("PYTHONPATH", "").partition(os.pathsep)[0]
    words = []
    for word in shlex.split(command):
        there = os.path.join(code_dir, word[2:]) if code_dir and word.startswith("./") else ""
        words.append(there if there and os.path.exists(there) else word)
    return words


def _copy(source: IO[bytes], last: list[bytes]) -> None:
    """Standard output line by line into the log, remembering the last line."""
    for line in iter(lambda: source.readline(LAST_LINE_BYTES), b""):
        OUT.write(line)  # never raises: a pipe that nobody drains would block the command for good
        if line.strip():
            last[:] = [line]


def _result(last: list[bytes]) -> dict[str, Any] | None:
    try:
        found = json.loads(last[0]) if last else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
