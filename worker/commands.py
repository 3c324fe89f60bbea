"""Handlers that are commands (`cmd:./nightly.sh --fast`), and a user's own worker program."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import subprocess
import threading
import time

from .output import OUT
from .redaction import own_secrets
from .result_lines import ResultLines
from .transfer_errors import OutputRefused, ResultRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

    from .task import Task

BLOCK_BYTES = 1 << 20  # of standard output that are read at once
PROGRESS_BYTES = 64 << 10  # bytes of the file `progress`; fewer are shown
PROGRESS_FILE_S = 1.0  # seconds between two reads of this file
LINGER_S = 1.0  # seconds for the rest of the output of an ended command whose child still holds the pipe open
MAX_LINGER_S = 60.0  # … if the child prints without end


def run(command: str, task: Task) -> dict[str, Any]:
    """Run a command on one task: the task is on stdin, ./output/ is uploaded, the last object of stdout is the result.

    Raises TransferError.
    """
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
    assert ended.stdout is not None  # noqa: S101 for the type checker: stdout=PIPE sets it
    copying = _Copying(ended.stdout, task)
    copying.start()
    over = threading.Event()
    threading.Thread(target=_read_progress, args=(task, over), daemon=True).start()
    status = ended.wait()  # no timeout: the agent ends this process when the task's time is up
    over.set()
    copying.finish()  # before the end of the attempt is in the log
    if status != 0:
        return {"op": "failed", "status": status, "type": "CommandFailed", "message": f"status {status}"}
    if os.path.islink("output"):
        raise OutputRefused("output is a link that leaves the task's folder: copy the files instead")
    task.upload_folder("output")
    return task.ended(copying.result())


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
    if len(text) >= PROGRESS_BYTES:  # it is cut, and may end with half of a secret
        text = text[: len(text) - own_secrets().open_bytes(text)]
    words = text.decode("utf-8", "replace").split(maxsplit=1)
    try:
        fraction = float(words[0])
    except (IndexError, ValueError):
        fraction = -1.0
    known = 0 <= fraction <= 1  # json.dumps would write NaN, which is not JSON
    message = " ".join(words[known:]).strip()
    task.progress(fraction if known else None, message or None)


class _Copying(threading.Thread):
    """Copies standard output into the log, and looks for the result in it."""

    def __init__(self, source: IO[bytes], task: Task) -> None:
        super().__init__(daemon=True)
        self._source = source
        self._lines = ResultLines(lambda text: _report(text, task))
        self._lock, self._over = threading.Lock(), False

    def run(self) -> None:
        while block := os.read(self._source.fileno(), BLOCK_BYTES):
            OUT.write(block)  # never raises: a pipe without a reader would block the command
            with self._lock:
                if not self._over:
                    self._lines.take(block)

    def finish(self) -> None:
        """Read to its end what the command has printed, which has ended. A child of it may go on."""
        until, unread = time.monotonic() + MAX_LINGER_S, True
        while self.is_alive() and unread and time.monotonic() < until:
            self.join(LINGER_S)
            unread = bool(select.select([self._source], [], [], 0)[0])

    def result(self) -> dict[str, Any] | None:
        """Return the result of the command. What a child of it prints later is no part of it. Raises ResultRefused."""
        with self._lock:
            self._over = True
            result, why = self._lines.result()
        if why:
            raise ResultRefused(why)
        if self._lines.note:
            OUT.write(f"--- {self._lines.note}\n".encode())
        return result
