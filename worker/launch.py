"""`start`: turn a configuration on stdin into a detached agent, once.

The agent holds an exclusive lock on <run dir>/agent.lock from before its birth until its end, so that however often
and however concurrently `start` is called for a launch, one agent runs; who finds the lock taken prints its line.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import sys
import time

from . import processes
from .config import AGENT_FILE, DONE_FILE, LOCK_FILE, STOPPED_FILE, BadConfig, Config, RunDir, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SETUP_TIMEOUT_S = 1_800.0
START_WAIT_S = 60.0  # for another `start` of the same launch to get its agent going
TAIL_BYTES = 2_000  # of system.log, in an error


class StartError(Exception):
    """The agent was not started; `code` is one of the orchestrator's failure codes."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def start(run_dir: str) -> int:
    """Start the agent unless it runs; print its line, or why there is none."""
    try:
        line = _start(RunDir(run_dir), os.path.abspath(sys.argv[0]))
    except StartError as error:
        print(json.dumps({"error": str(error), "code": error.code}))
        return 1
    except BadConfig as error:
        print(json.dumps({"error": str(error), "code": "BAD_CONFIG"}))
        return 1
    except OSError as error:  # no space, read-only file system, not our directory
        print(json.dumps({"error": f"{error.strerror}: {error.filename}", "code": "EXEC_FAILED"}))
        return 1
    print(json.dumps(line), flush=True)
    return 0


def running(run: RunDir) -> dict[str, Any] | None:
    """The line of the launch's agent, None unless it is alive."""
    try:
        with open(run.at(AGENT_FILE), encoding="utf-8") as file:
            line: dict[str, Any] = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return line if processes.alive(line["pid"], line["start_time"]) else None


def _start(run: RunDir, pyz: str) -> dict[str, Any]:
    text = sys.stdin.read()
    os.makedirs(run.at("logs"), mode=0o700, exist_ok=True)
    lock = _lock(run)
    if lock is None:
        line = running(run)
        if line is None:
            raise StartError("NO_PROCESS", f"another start of this launch got no agent going in {START_WAIT_S:.0f} s")
        return line
    if os.path.exists(run.at(STOPPED_FILE)):
        raise StartError("NO_PROCESS", "this launch was stopped: another one has another nonce")
    if not text.strip() and os.path.exists(run.at("config.json")):
        with open(run.at("config.json"), encoding="utf-8") as file:
            text = file.read()
    config = parse(text)
    code_sha = _checked(pyz, r"agent-([0-9a-f]{64})\.pyz")
    if config.user_code:
        _checked(os.path.join(os.path.dirname(pyz), f"user-{config.user_code}.zip"), r"user-([0-9a-f]{64})\.zip")
    run.write("config.json", text)
    for name in (DONE_FILE, AGENT_FILE, "agent.pid"):
        if os.path.exists(run.at(name)):
            os.unlink(run.at(name))
    for stream in ("agent", "handler", "system"):
        os.close(os.open(run.log(stream), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644))
    if config.setup_command:
        _set_up(config, run, os.path.dirname(pyz))
    return _fork(config, run, pyz, code_sha, lock)


def _lock(run: RunDir) -> int | None:
    """The locked descriptor; None when an agent of this launch runs already, or START_WAIT_S is over."""
    lock = os.open(run.at(LOCK_FILE), os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + START_WAIT_S
    while _taken(lock):
        if running(run) or time.monotonic() > until:
            os.close(lock)
            return None
        time.sleep(0.05)
    return lock


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _checked(path: str, pattern: str) -> str:
    """The file's sha256, which must be the one in its name."""
    if not os.path.exists(path):
        raise StartError("STALE_CODE", f"{os.path.basename(path)} is not on this pod")
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    named = re.fullmatch(pattern, os.path.basename(path))
    if named and named[1] != digest.hexdigest():
        raise StartError("STALE_CODE", f"{os.path.basename(path)} has the sha256 {digest.hexdigest()}")
    return digest.hexdigest()


def _fork(config: Config, run: RunDir, pyz: str, code_sha: str, lock: int) -> dict[str, Any]:
    """Fork the agent into a session of its own and wait for its line."""
    readable, writable = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(readable)
        _become_agent(config, run, pyz, code_sha, writable)
    os.close(writable)
    os.close(lock)  # the agent's copy keeps it
    with os.fdopen(readable, encoding="utf-8") as pipe:
        text = pipe.read()
    if not text:
        raise StartError("NO_PROCESS", f"the agent ended at once: {tail(run.log('system'))}")
    line: dict[str, Any] = json.loads(text)
    return line


def _become_agent(config: Config, run: RunDir, pyz: str, code_sha: str, writable: int) -> None:
    """The rest of the child's life; never returns."""
    status = 1
    try:
        os.setsid()
        _redirect(run.log("system"))
        line = {
            "pid": os.getpid(),
            "start_time": processes.start_time(os.getpid()),
            "code_sha256": code_sha,
            "python": ".".join(map(str, sys.version_info[:3])),
        }
        run.write(AGENT_FILE, json.dumps(line))
        run.write("agent.pid", f"{os.getpid()}\n")
        if os.path.exists(run.at(STOPPED_FILE)):  # a `stop` since saw no agent yet; one from now on sees this one
            return
        os.write(writable, json.dumps(line).encode())
        os.close(writable)
        from .agent import live  # noqa: PLC0415 `start` is answered while the agent still loads

        status = live(config, run, pyz, line)
    except BaseException:  # noqa: BLE001 the last frame of a process: whatever it was goes to system.log
        import traceback  # noqa: PLC0415

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)  # without the parent's clean-up


def _redirect(log: str) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(out)


def _set_up(config: Config, run: RunDir, code_dir: str) -> None:
    """Run the set-up command once per pod, command and user code; its output goes to system.log."""
    import subprocess  # noqa: PLC0415 most launches have no set-up command

    from .journal import Journal, secret_values  # noqa: PLC0415
    from .usercode import unpack  # noqa: PLC0415

    command = str(config.setup_command)
    sha = hashlib.sha256(f"{command}\0{config.user_code or ''}".encode()).hexdigest()
    done_file = os.path.join(code_dir, f"setup-{sha}.done")
    if os.path.exists(done_file):
        return
    folder = unpack(code_dir, config.user_code) or run.path
    mark = f"{run.path}#setup#"
    env = {**os.environ, **config.env, processes.MARK: mark}
    journal = Journal(run.log("agent"), secret_values(config.token, config.env, command))
    journal.log("setup_started")
    with open(run.log("system"), "ab", buffering=0) as log:
        setup = subprocess.Popen(
            ["/bin/sh", "-c", command], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            status: int | str = setup.wait(SETUP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            processes.end(setup.pid, mark, 2.0)
            status = f"no end within {SETUP_TIMEOUT_S:.0f} s"
    if status != 0:
        why = journal.clean(f"the set-up command ended with {status}: {tail(run.log('system'))}")
        journal.log("setup_failed", why=why)
        raise StartError("SETUP_FAILED", why)
    journal.log("setup_done")
    os.close(os.open(done_file, os.O_WRONLY | os.O_CREAT, 0o600))


def tail(path: str) -> str:
    """The last TAIL_BYTES of a log."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - TAIL_BYTES))
        return file.read().decode("utf-8", "replace").strip()
