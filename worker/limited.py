"""A short program with a limit on its time and its output. A program that cannot be killed is left behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections import deque

BLOCK_BYTES = 64 << 10
GONE_S = 0.2  # seconds for a killed program to be gone
PROBLEM_CHARS = 100


class Answer:
    """The output of a program. `status` is None if it could not be started or did not end in time."""

    def __init__(self, status: int | None, text: str, problem: str = "") -> None:
        self.status, self.text = status, text
        self._problem = problem

    @property
    def problem(self) -> str:
        """Return why there is no good answer, in one short line."""
        return (self._problem or " ".join(self.text[:500].split()) or f"exit status {self.status}")[:PROBLEM_CHARS]


_stuck: dict[str, subprocess.Popen[bytes]] = {}  # programs that SIGKILL did not end, by name: only one of each
_running: list[subprocess.Popen[bytes]] = []
STARTING = threading.Lock()  # held while a program starts: whoever holds it sees in `own_pids` every one that runs


def own_pids() -> set[int]:
    """Return the pids of the programs that run now or are stuck. They belong to no handler."""
    return {process.pid for process in [*_running.copy(), *_stuck.copy().values()]}


def run_limited(
    argv: list[str], limit_s: float, limit_bytes: int, keep_bytes: int | None = None, env: dict[str, str] | None = None
) -> Answer:
    """Run the program with stdout and stderr in one pipe. Kill it after `limit_s` or `limit_bytes` of output.

    `keep_bytes`: keep only about this much from the end of the output. `env`: further variables.
    """
    stuck = _stuck.get(argv[0])
    if stuck is not None:
        if stuck.poll() is None:  # in uninterruptible sleep: another one would hang as well
            return Answer(None, "", "it hangs and cannot be killed")
        del _stuck[argv[0]]
    try:
        with STARTING:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True, env={**os.environ, **(env or {})},
            )  # fmt: skip
            _running.append(process)
    except OSError as error:
        return Answer(None, "", error.strerror or "cannot be started")
    assert process.stdout is not None  # noqa: S101 for the type checker
    fd = process.stdout.fileno()
    until, taken, size, kept = time.monotonic() + limit_s, deque[bytes](), 0, 0
    try:
        while size < limit_bytes and select.select([fd], [], [], max(0.0, until - time.monotonic()))[0]:
            block = os.read(fd, BLOCK_BYTES)
            if not block:
                break
            taken.append(block)
            size, kept = size + len(block), kept + len(block)
            while keep_bytes is not None and kept - len(taken[0]) >= keep_bytes:
                kept -= len(taken.popleft())
        problem = f"more than {limit_bytes >> 10} KiB of output" if size >= limit_bytes else ""
        problem = problem or _await(process, until, limit_s)
    finally:
        process.stdout.close()
        _kill(argv[0], process)
        _running.remove(process)
    text = b"".join(taken).decode("utf-8", "replace")
    return Answer(None if problem else process.returncode, text, problem)


def kill_running() -> None:
    """Kill the programs that run now: the agent ends, and would leave them behind."""
    for process in _running.copy():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _await(process: subprocess.Popen[bytes], until: float, limit_s: float) -> str:
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"no answer within {limit_s:g} s"
    return ""


def _kill(name: str, process: subprocess.Popen[bytes]) -> None:
    """End the program and its children, if it still runs."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(GONE_S)
    except subprocess.TimeoutExpired:
        _stuck[name] = process
