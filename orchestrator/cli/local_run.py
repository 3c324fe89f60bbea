"""One task on this machine, in the real agent: the same archive, child process, limits and reports as on a pod."""

import codecs
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cli.local_gateway import LocalGateway
from orchestrator.diagnostics.tasks import progress as text_of
from orchestrator.errors import NOT_STARTED, Failure
from orchestrator.pods.bundle import Bundle

CLAIM_WITHIN_S = 30.0  # an agent that claims nothing by then has a reason: the disk, or this machine
LOOK_S = 0.1
READ_BYTES = 1 << 20  # of the log, at each look while the task runs
LINE_CHARS = 4_000  # of a line that is shown: a terminal takes minutes for one of megabytes
STOP_GRACE_S = 2.0
CALL_S = 60.0  # for `start` and `stop`
DEADMAN_S = 10.0  # if this program is killed, the agent ends after this time
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "VIRTUAL_ENV", "PYTHONPATH", "CUDA_VISIBLE_DEVICES")
Show = Callable[[str, str], None]  # kind of line (log, progress), text


@dataclass(frozen=True, slots=True)
class LocalTask:
    """What to run, with the settings that a pod would get."""

    task_type: str
    handler: str  # module:function or cmd:command
    params: Any
    timeout_s: float
    python: str
    env: Mapping[str, str]  # what WORKER_ENV names


@dataclass(frozen=True, slots=True)
class Ended:
    """What the agent reported. `failure` is p_failure of worker_fail; None for a completed task."""

    location: str | None
    result: Any
    failure: Mapping[str, Any] | None
    outputs: tuple[Path, ...]
    seconds: float


def run_here(task: LocalTask, bundle: Bundle, outputs: Path, show: Show) -> Ended:
    """Run the task to its end. `show` gets the handler's log and progress while it runs. Raises Failure."""
    task_id = str(uuid.uuid4())
    claimed = {
        "id": task_id, "task_type": task.task_type, "params": task.params, "attempt": 1, "max_attempts": 1,
        "timeout_s": task.timeout_s, "dependencies": [], "output_prefix": f"outputs/{task_id}/1/",
        "traceparent": None,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="handler-") as home, LocalGateway(claimed, outputs) as gateway:
        config = _config(task, bundle, gateway)
        with _agent(Path(home), bundle, config) as run_dir:
            began_s = time.monotonic()
            _follow(gateway, run_dir, show)
            seconds = time.monotonic() - began_s
        end = gateway.ended or {}
        failure = end.get("p_failure")
        if "p_reason" in end:  # the agent gave the task back
            failure = {"code": "RELEASED", "message": end["p_reason"], "exit_class": "lost", "retryable": True}
        location, result = end.get("p_output_location"), end.get("p_result_data")
        return Ended(location, result, failure, tuple(gateway.stored), seconds)


def _config(task: LocalTask, bundle: Bundle, gateway: LocalGateway) -> dict[str, Any]:
    """Return the agent's config.json. The set-up command is left out: it would change this machine."""
    return {
        "worker_id": "local", "nonce": secrets.token_hex(8), "api_url": gateway.url, "token": gateway.token,
        "pool": "local", "handlers": {task.task_type: task.handler}, "user_code": bundle.code_sha,
        "python": task.python, "heartbeat_s": 0.2, "lease_s": 60, "deadman_s": DEADMAN_S, "claim_wait_s": 0,
        "batch": 1, "default_timeout_s": task.timeout_s, "env": dict(task.env),
    }  # fmt: skip


@contextmanager
def _agent(home: Path, bundle: Bundle, config: Mapping[str, Any]) -> Iterator[Path]:
    """Start the agent with the environment of a pod, without this process's secrets. Stop it at the end."""
    pyz, run_dir = home / f"agent-{bundle.agent_sha}.pyz", home / "run"
    pyz.write_bytes(bundle.agent)
    if bundle.code is not None:
        (home / f"user-{bundle.code_sha}.zip").write_bytes(bundle.code)
    env = {name: os.environ[name] for name in INHERITED if name in os.environ}

    def call(command: str, *options: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-I", str(pyz), command, "--run-dir", str(run_dir), *options]
        return subprocess.run(
            words, input=stdin, capture_output=True, text=True, env=env, cwd=home, timeout=CALL_S, check=False
        )

    try:
        started = call("start", stdin=json.dumps(config))
        if started.returncode:
            raise Failure(NOT_STARTED, why=started.stdout.strip() or started.stderr.strip() or "it said nothing")
        yield run_dir
    finally:
        call("stop", "--grace-s", f"{STOP_GRACE_S:g}")


def _follow(gateway: LocalGateway, run_dir: Path, show: Show) -> None:
    """Show log and progress until the agent has reported the end."""
    log, shown = Tail(run_dir / "logs" / "handler.log"), None
    until_s = time.monotonic() + CLAIM_WITHIN_S
    while True:
        with gateway.changed:
            gateway.changed.wait_for(lambda: gateway.ended is not None, LOOK_S)
            ended, progress, claimed, health = gateway.ended, gateway.progress, gateway.claimed, gateway.health
        for line in log.lines(is_last=ended is not None):
            show("log", line)
        if progress is not None and progress != shown:
            shown = progress
            show("progress", text_of(progress))
        if ended is not None:
            return
        if not claimed and time.monotonic() > until_s:
            raise Failure(NOT_STARTED, why=f"the agent claims no task on this machine: {json.dumps(health)[:500]}")


class Tail:
    """The lines that were added to a file. Of a long line, only the beginning is kept."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self._open, self._left_out = "", 0  # of the line that has not ended: its beginning, and characters after it
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def lines(self, *, is_last: bool) -> list[str]:
        """Return new complete lines, of up to READ_BYTES. With `is_last` return all, also an open one."""
        lines: list[str] = []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while added := file.read(READ_BYTES):
                self._offset += len(added)
                first, *others = self._decoder.decode(added).split("\n")
                self._add(first)
                for text in others:
                    lines.append(self._ended())
                    self._add(text)
                if not is_last:
                    break
        if is_last and self._open:
            lines.append(self._ended())
        return lines

    def _add(self, text: str) -> None:
        kept = text[: LINE_CHARS - len(self._open)]
        self._open += kept
        self._left_out += len(text) - len(kept)

    def _ended(self) -> str:
        cut = f"[… {self._left_out} characters left out …]" if self._left_out else ""
        line, self._open, self._left_out = self._open + cut, "", 0
        return line
