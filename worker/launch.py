"""`start`: read a configuration from stdin and start one detached agent.

The agent holds an exclusive lock on <run dir>/agent.lock from the fork until its end. So one agent runs, however many
`start` calls of a launch run at the same time. A `start` that finds the lock taken prints the running agent's identity.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import sys
import time

from . import processes
from .cgroup import Cgroup, boot_id
from .config import AGENT_FILE, BIRTH_FILE, DONE_FILE, LOCK_FILE, STOPPED_FILE, BadConfig, Config, RunDir, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .output_log import OutputLog

SETUP_TIMEOUT_S = 1_800.0
START_WAIT_S = 60.0  # for another `start` of the same launch to start its agent
SETUP_POLL_S = 0.2  # seconds between checks whether the set-up command has ended
TAIL_BYTES = 2_000  # of system.log, in an error
# The pod is used for this fleet alone, so pip may change its system Python (PEP 668). Without pip's notice about its
# version, its last line is the reason of a failure. The image's environment and WORKER_ENV take precedence.
PIP_ON_A_POD = {
    "PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore",
}  # fmt: skip


class StartError(Exception):
    """The agent was not started. `code` is one of the orchestrator's failure codes."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def start(run_dir: str) -> int:
    """Start the agent unless it runs. Print its identity, or the error."""
    try:
        identity = _start(RunDir(run_dir), os.path.abspath(sys.argv[0]))
    except StartError as error:
        print(json.dumps({"error": str(error), "code": error.code}))
        return 1
    except BadConfig as error:
        print(json.dumps({"error": str(error), "code": "BAD_CONFIG"}))
        return 1
    except OSError as error:  # no space, a read-only file system, or no permission
        print(json.dumps({"error": f"{error.strerror}: {error.filename}", "code": "EXEC_FAILED"}))
        return 1
    print(json.dumps(identity), flush=True)
    return 0


def running(run: RunDir) -> dict[str, Any] | None:
    """Return the identity of the launch's agent, or None if it does not run."""
    try:
        with open(run.at(AGENT_FILE), encoding="utf-8") as file:
            identity: dict[str, Any] = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return identity if processes.alive(identity["pid"], identity["start_time"]) else None


def _start(run: RunDir, pyz: str) -> dict[str, Any]:
    text = sys.stdin.read()
    os.makedirs(run.at("logs"), mode=0o700, exist_ok=True)
    lock = _lock(run)
    if lock is None:
        identity = running(run)
        if identity is None:
            raise StartError("NO_PROCESS", f"another start of this launch started no agent within {START_WAIT_S:.0f} s")
        return identity
    if os.path.exists(run.at(STOPPED_FILE)):
        raise StartError("NO_PROCESS", "this launch was stopped for good: a new launch needs a new nonce")
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
    left = _set_up(config, run, os.path.dirname(pyz)) if config.setup_command else None
    return _fork(config, run, pyz, code_sha, lock, left)


def _lock(run: RunDir) -> int | None:
    """Return the locked descriptor; None if an agent of this launch runs, or after START_WAIT_S."""
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
    """Return the file's SHA-256, which must equal the one in its name."""
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


def _fork(config: Config, run: RunDir, pyz: str, code_sha: str, lock: int, left: OutputLog | None) -> dict[str, Any]:
    """Fork the agent into its own session and wait for its identity."""
    readable, writable = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(readable)
        _become_agent(config, run, pyz, code_sha, writable, left)
    os.close(writable)
    os.close(lock)  # the agent's copy keeps the lock
    with os.fdopen(readable, encoding="utf-8") as pipe:
        text = pipe.read()
    if not text:
        raise StartError("NO_PROCESS", f"the agent ended at once: {tail(run.log('system'))}")
    identity: dict[str, Any] = json.loads(text)
    return identity


def _become_agent(config: Config, run: RunDir, pyz: str, code_sha: str, writable: int, left: OutputLog | None) -> None:
    """Run the agent in the forked child. Never returns. `left`: of programs that the set-up command left running."""
    status = 1
    try:
        os.setsid()
        _redirect(run.log("system"))
        identity = {
            "pid": os.getpid(),
            "start_time": processes.start_time(os.getpid()),
            "code_sha256": code_sha,
            "python": ".".join(map(str, sys.version_info[:3])),
        }
        run.write(AGENT_FILE, json.dumps(identity))
        run.write("agent.pid", f"{os.getpid()}\n")
        run.write(BIRTH_FILE, json.dumps(birth_marks(config.system_root)))
        if os.path.exists(run.at(STOPPED_FILE)):  # a `stop` before this line saw no agent; a later one sees it
            return
        os.write(writable, json.dumps(identity).encode())
        os.close(writable)
        if left:
            left.serve()
        from .agent import run_agent  # noqa: PLC0415 `start` answers while the agent still loads

        status = run_agent(config, run, pyz, identity)
    except BaseException:  # noqa: BLE001 the last frame of a process: every error goes to system.log
        import traceback  # noqa: PLC0415

        from .redaction import KnownSecrets  # noqa: PLC0415
        from .secret_values import secrets_of  # noqa: PLC0415

        secrets = [config.token, *secrets_of({**os.environ, **config.env})]
        sys.stderr.write(KnownSecrets(secrets).clean_text(traceback.format_exc()))
    finally:
        sys.stderr.flush()
        os._exit(status)  # without the parent's clean-up


def birth_marks(root: str) -> dict[str, Any]:
    """Return the state of the host from which `stop` can derive how an agent ended without a record (guards U3)."""
    return {"root": root, "boot_id": boot_id(root), "oom_kills": Cgroup(root).oom_kills()}


def _redirect(log: str) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(out)


def _set_up(config: Config, run: RunDir, code_dir: str) -> OutputLog | None:
    """Run the set-up command once per pod, command and user code. Its output goes to system.log, without secrets.

    Return the log if a program that the command started still runs and may print.
    """
    import subprocess  # noqa: PLC0415 most launches have no set-up command

    from .journal import Journal, secret_values  # noqa: PLC0415
    from .output_log import OutputLog  # noqa: PLC0415
    from .usercode import unpack  # noqa: PLC0415

    command = str(config.setup_command)
    sha = hashlib.sha256(f"{command}\0{config.user_code or ''}".encode()).hexdigest()
    done_file = os.path.join(code_dir, f"setup-{sha}.done")
    if os.path.exists(done_file):
        return None
    folder = unpack(code_dir, config.user_code) or run.path
    mark = f"{run.path}#setup#"
    env = {**PIP_ON_A_POD, **os.environ, **config.env, processes.MARK: mark}
    journal = Journal(run.log("agent"), secret_values(config.token, {**os.environ, **config.env}, command))
    journal.log("setup_started")
    log = OutputLog(run.log("system"), journal.secrets)
    setup = subprocess.Popen(
        ["/bin/sh", "-c", command], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log.fd, stderr=log.fd,
        start_new_session=True,
    )  # fmt: skip
    log.end_own_writing()
    until = time.monotonic() + SETUP_TIMEOUT_S
    is_open, status = True, None
    while status is None and time.monotonic() < until:
        is_open = is_open and log.copy(SETUP_POLL_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = setup.wait(0 if is_open else SETUP_POLL_S)
    if status is None:
        processes.end(setup.pid, mark, 2.0)
    log.settle()
    if status != 0:
        how = f"no end within {SETUP_TIMEOUT_S:.0f} s" if status is None else status
        why = journal.clean(f"the set-up command ended with {how}: {tail(run.log('system'))}")
        journal.log("setup_failed", why=why)
        raise StartError("SETUP_FAILED", why)
    journal.log("setup_done")
    os.close(os.open(done_file, os.O_WRONLY | os.O_CREAT, 0o600))
    return log if is_open and log.copy(0) else None


def tail(path: str) -> str:
    """Return the last TAIL_BYTES of a log, and how many bytes are left out before."""
    with open(path, "rb") as file:
        left_out = max(0, os.path.getsize(path) - TAIL_BYTES)
        file.seek(left_out)
        text = file.read().decode("utf-8", "replace").strip()
    return f"[… {left_out} bytes left out …]\n{text}" if left_out else text
