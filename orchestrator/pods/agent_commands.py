"""How the agent is laid on a pod, started there and proven alive: paths, commands, and what their answers mean.

No I/O here. The token travels in the configuration, on stdin; nothing secret is part of a command.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.model import Worker
from orchestrator.core.stages import StageSpec
from orchestrator.pods.bundle import Bundle
from orchestrator.ports import Completed
from worker.protocol import BASE_DIR

CODE_DIR = f"{BASE_DIR}/code"
RUNS_DIR = f"{BASE_DIR}/run"
START_TIME = 19  # index of proc(5) stat field 22 among the fields after the command's closing parenthesis
NONCE = re.compile(r"[A-Za-z0-9_-]{1,64}")  # a launch's name is a directory's name


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """What every agent of this fleet is started with."""

    api_url: str  # how a pod reaches the worker RPC
    api_key: str | None = None  # what a hosted PostgREST wants to see besides the token: public
    python: str = "python3"  # the interpreter on the pod, for the agent and its handlers
    handlers: Mapping[str, str] = field(default_factory=dict)  # task type -> module:function or cmd:command
    setup_command: str | None = None  # once per pod, before the agent
    start_command: str | None = None  # the user's own program instead of handlers
    heartbeat_s: float = 20
    lease_s: float = 60
    deadman_s: float = 900
    claim_wait_s: float = 20
    default_timeout_s: float = 3600  # of a task that names none
    spawning_timeout_s: float = 900  # hard cap on a whole climb, from the row's creation
    deadlines_s: Mapping[str, float] = field(default_factory=dict)  # stage -> instead of the ladder's own
    batches: Mapping[str, int] = field(default_factory=dict)  # pool -> tasks that an agent claims at once; else 1
    images: Mapping[str, str] = field(default_factory=dict)  # pool -> the image of its pods
    env: Mapping[str, str] = field(default_factory=dict)  # for handlers; travels with the configuration
    pool_handlers: Mapping[str, Sequence[str]] = field(default_factory=dict)  # pool -> its task types; else all
    pool_env: Mapping[str, Sequence[str]] = field(default_factory=dict)  # pool -> its names of `env`; else all
    renewal_key_for: Callable[[str, str], str | None] = lambda *_: None  # worker id, jti -> what opens its next token

    def deadline_s(self, rung: StageSpec) -> float:
        """What a stage may take."""
        return self.deadlines_s.get(rung.stage, rung.deadline_s)


@dataclass(frozen=True, slots=True)
class Agent:
    """A process on a pod, named so that no other can be taken for it."""

    pid: int
    start_time: str | None  # /proc/PID/stat field 22; None where there is no /proc
    code_sha: str


def agent_path(sha: str) -> str:
    """Where the agent of this content lies on a pod."""
    return f"{CODE_DIR}/agent-{sha}.pyz"


def files(bundle: Bundle) -> dict[str, tuple[bytes, str]]:
    """Path on the pod -> (content, sha256)."""
    found = {agent_path(bundle.agent_sha): (bundle.agent, bundle.agent_sha)}
    if bundle.code is not None and bundle.code_sha is not None:
        found[f"{CODE_DIR}/user-{bundle.code_sha}.zip"] = (bundle.code, bundle.code_sha)
    return found


def run_dir(nonce: str) -> str:
    """The directory of one launch."""
    if not NONCE.fullmatch(nonce):
        raise ValueError(f"{nonce!r} cannot name a launch")
    return f"{RUNS_DIR}/{nonce}"


def configuration(config: LaunchConfig, worker: Worker, token: str, user_code: str | None) -> bytes:
    """config.json for the launch that the row names."""
    return json.dumps(
        {
            "worker_id": worker.id,
            "nonce": worker.nonce,
            "api_url": config.api_url,
            "api_key": config.api_key,
            "token": token,
            "renewal_key": config.renewal_key_for(worker.id, worker.token_jti or ""),
            "pool": worker.pool,
            "handlers": _part(config.handlers, config.pool_handlers.get(worker.pool)),
            "user_code": user_code,
            "python": config.python,
            "setup_command": config.setup_command,
            "start_command": config.start_command,
            "heartbeat_s": config.heartbeat_s,
            "lease_s": config.lease_s,
            "deadman_s": config.deadman_s,
            "claim_wait_s": config.claim_wait_s,
            "batch": config.batches.get(worker.pool, 1),
            "default_timeout_s": config.default_timeout_s,
            "env": _part(config.env, config.pool_env.get(worker.pool)),
        }
    ).encode()


def _part(all_of_it: Mapping[str, str], names: Sequence[str] | None) -> dict[str, str]:
    """What a pool's workers get."""
    return {name: value for name, value in all_of_it.items() if names is None or name in names}


def echo_command(left: str, right: str) -> str:
    """A command whose answer proves that a shell ran it (the halves are joined there), and tells the pod's id."""
    return (
        "if [ -r /etc/rp_environment ]; then . /etc/rp_environment >/dev/null 2>&1; fi; "
        f"printf '%s%s %s' {shlex.join([left, right])} \"$RUNPOD_POD_ID\""
    )


def digest_command(paths: list[str]) -> str:
    """A command that prints "<sha256>  <path>" for every file that is there."""
    words = shlex.join(paths)
    return f"if command -v sha256sum >/dev/null; then sha256sum {words}; else shasum -a 256 {words}; fi 2>/dev/null"


def digests(stdout: bytes) -> dict[str, str]:
    """Path -> sha256, as `digest_command` prints them."""
    lines = (line.split(maxsplit=1) for line in stdout.decode("utf-8", "replace").splitlines())
    return {words[1].strip(): words[0] for words in lines if len(words) == 2}  # noqa: PLR2004  digest and path


def start_command(python: str, agent_sha: str, nonce: str) -> str:
    """Start the agent of a launch, or get the line of the one that runs."""
    return shlex.join([python, "-I", agent_path(agent_sha), "start", "--run-dir", run_dir(nonce)])


def stop_command(python: str, agent_sha: str, nonce: str, grace_s: float) -> str:
    """Stop a launch's agent and everything that it started."""
    program = [python, "-I", agent_path(agent_sha), "stop"]
    return shlex.join([*program, "--run-dir", run_dir(nonce), "--grace-s", f"{grace_s:g}"])


def cut_command(nonce: str, stream: str, size: int) -> str:
    """Make the first `size` bytes of a log a hole: its length and its offsets stay, its room on the disk is free."""
    path = f"{run_dir(nonce)}/logs/{stream}.log"
    return shlex.join(["fallocate", "--punch-hole", "--offset", "0", "--length", str(size), path])


def answer(done: Completed) -> dict[str, Any] | None:
    """The JSON object on the last line of an agent's answer; None if there is none."""
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def agent(line: Mapping[str, Any]) -> Agent | None:
    """The agent that `start` (or agent.json) tells of; None if the line does not tell of one."""
    pid, start_time, sha = line.get("pid"), line.get("start_time"), line.get("code_sha256")
    if not isinstance(pid, int) or pid <= 1 or not isinstance(sha, str):
        return None
    return Agent(pid, None if start_time is None else str(start_time), sha)


def alive_command(pid: int) -> str:
    """A command that shows a process's stat and command line, with no interpreter; nothing of a dead one."""
    return (
        f"if [ -r /proc/self/stat ]; then cat /proc/{pid}/stat && tr '\\0' ' ' </proc/{pid}/cmdline; "
        f"else ps -o stat= -o command= -p {pid}; fi 2>/dev/null"
    )


def is_alive(shown: bytes, agent: Agent, nonce: str) -> bool:
    """Whether what `alive_command` shows is this agent: same start time, same launch, not a zombie."""
    text = shown.decode("utf-8", "replace")
    if agent.start_time is None:
        return run_dir(nonce) in text and not text.lstrip().startswith("Z")
    stat, _, command = text.partition("\n")
    fields = stat.rpartition(")")[2].split()
    return (
        len(fields) > START_TIME
        and fields[0] not in {"Z", "X"}
        and fields[START_TIME] == agent.start_time
        and run_dir(nonce) in command
    )
