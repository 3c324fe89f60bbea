"""The paths, commands and answers with which the agent is installed, started and checked on a pod.

No I/O. The token is a part of the configuration, which goes over stdin. No command contains a secret.
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
from worker.protocol import BASE_DIR, UNANSWERED

CODE_DIR = f"{BASE_DIR}/code"
RUNS_DIR = f"{BASE_DIR}/run"
START_TIME = 19  # index of proc(5) stat field 22 among the fields after the command's closing parenthesis
# While no call is answered, an agent sends a heartbeat every 18 s. An agent of an earlier release sends one later, if
# each of several addresses or the resolver takes its time.
UNANSWERED_S = 60.0
UNANSWERED_BYTES = 64  # that can matter, at the end of the answer of a pod
UNANSWERED_TIMES = re.compile(r"(?:^|\n)([0-9]{1,12})\n([0-9]{1,12})\n\Z")  # after what a login script may print
NONCE = re.compile(r"[A-Za-z0-9_-]{1,64}")  # a launch's nonce is also the name of its directory


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """The common configuration of this fleet's agents."""

    api_url: str  # the URL of the worker RPC for pods
    api_key: str | None = None  # the public key that Supabase requires besides the token
    python: str = "python3"  # the interpreter on the pod, for the agent and its handlers
    handlers: Mapping[str, str] = field(default_factory=dict)  # task type -> module:function or cmd:command
    keep_processes: Sequence[str] = ()  # task types whose handlers' processes may outlive a task
    setup_command: str | None = None  # once per pod, before the agent
    start_command: str | None = None  # the user's own program instead of handlers
    heartbeat_s: float = 20
    lease_s: float = 60
    deadman_s: float = 900
    claim_wait_s: float = 20
    default_timeout_s: float = 3600  # the claims of a task type that names none
    spawning_timeout_s: float = 900  # the limit for a whole bring-up, from the row's creation
    deadlines_s: Mapping[str, float] = field(default_factory=dict)  # stage -> its deadline, if it is not the default
    batches: Mapping[str, int] = field(default_factory=dict)  # pool -> tasks that an agent claims at once; else 1
    images: Mapping[str, str] = field(default_factory=dict)  # pool -> the image of its pods
    env: Mapping[str, str] = field(default_factory=dict)  # for handlers; a part of the configuration
    pool_handlers: Mapping[str, Sequence[str]] = field(default_factory=dict)  # pool -> its task types; else all
    pool_env: Mapping[str, Sequence[str]] = field(default_factory=dict)  # pool -> its names of `env`; else all
    store_probe: Callable[[], Mapping[str, Any]] | None = None  # for the agent's check of the store: worker/reach.py
    # worker id, jti -> the key that decrypts its next token
    renewal_key_for: Callable[[str, str], str | None] = lambda *_: None

    def deadline_s(self, stage_spec: StageSpec) -> float:
        """Return the deadline of a stage."""
        return self.deadlines_s.get(stage_spec.stage, stage_spec.deadline_s)


@dataclass(frozen=True, slots=True)
class LaunchedAgent:
    """The identity of an agent's process on a pod."""

    pid: int
    start_time: str | None  # /proc/PID/stat field 22; None where there is no /proc
    code_sha: str


def agent_path(sha: str) -> str:
    """Return the path of the agent with this hash on a pod."""
    return f"{CODE_DIR}/agent-{sha}.pyz"


def files(bundle: Bundle) -> dict[str, tuple[bytes, str]]:
    """Path on the pod -> (content, sha256)."""
    found = {agent_path(bundle.agent_sha): (bundle.agent, bundle.agent_sha)}
    if bundle.code is not None and bundle.code_sha is not None:
        found[f"{CODE_DIR}/user-{bundle.code_sha}.zip"] = (bundle.code, bundle.code_sha)
    return found


def run_dir(nonce: str) -> str:
    """Return the directory of one launch."""
    if not NONCE.fullmatch(nonce):
        raise ValueError(f"{nonce!r} cannot name a launch")
    return f"{RUNS_DIR}/{nonce}"


def configuration(config: LaunchConfig, worker: Worker, token: str, user_code: str | None) -> bytes:
    """Return config.json for the launch in the row."""
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
            "keep_processes": sorted(config.keep_processes),
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
            "store_probe": config.store_probe and config.store_probe(),
            "env": _part(config.env, config.pool_env.get(worker.pool)),
        }
    ).encode()


def _part(all_of_it: Mapping[str, str], names: Sequence[str] | None) -> dict[str, str]:
    """Return the part of a mapping that a pool's workers get."""
    return {name: value for name, value in all_of_it.items() if names is None or name in names}


def echo_command(left: str, right: str) -> str:
    """Return a command that proves that a shell runs: it joins two halves and prints the pod's id."""
    return (
        "if [ -r /etc/rp_environment ]; then . /etc/rp_environment >/dev/null 2>&1; fi; "
        f"printf '%s%s %s' {shlex.join([left, right])} \"$RUNPOD_POD_ID\""
    )


def digest_command(paths: list[str]) -> str:
    """Return a command that prints "<sha256>  <path>" for every existing file."""
    words = shlex.join(paths)
    return f"if command -v sha256sum >/dev/null; then sha256sum {words}; else shasum -a 256 {words}; fi 2>/dev/null"


def digests(stdout: bytes) -> dict[str, str]:
    """Parse the output of `digest_command`: path -> sha256."""
    lines = (line.split(maxsplit=1) for line in stdout.decode("utf-8", "replace").splitlines())
    return {words[1].strip(): words[0] for words in lines if len(words) == 2}  # noqa: PLR2004  digest and path


def start_command(python: str, agent_sha: str, nonce: str) -> str:
    """Return the command that starts the agent of a launch, or prints the identity of the running one."""
    return shlex.join([python, "-I", agent_path(agent_sha), "start", "--run-dir", run_dir(nonce)])


def stop_command(python: str, agent_sha: str, nonce: str, grace_s: float) -> str:
    """Return the command that stops a launch's agent and all its processes."""
    program = [python, "-I", agent_path(agent_sha), "stop"]
    return shlex.join([*program, "--run-dir", run_dir(nonce), "--grace-s", f"{grace_s:g}"])


def cut_command(nonce: str, stream: str, size: int) -> str:
    """Return the command that frees the disk space of a log's first `size` bytes. Length and offsets stay."""
    path = f"{run_dir(nonce)}/logs/{stream}.log"
    return shlex.join(["fallocate", "--punch-hole", "--offset", "0", "--length", str(size), path])


def answer(done: Completed) -> dict[str, Any] | None:
    """Parse the JSON object on the last line of an agent's answer. None if there is none."""
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def agent(line: Mapping[str, Any]) -> LaunchedAgent | None:
    """Parse the agent's identity from `start` or agent.json. None if it is incomplete."""
    pid, start_time, sha = line.get("pid"), line.get("start_time"), line.get("code_sha256")
    if not isinstance(pid, int) or pid <= 1 or not isinstance(sha, str):
        return None
    return LaunchedAgent(pid, None if start_time is None else str(start_time), sha)


def alive_command(pid: int) -> str:
    """Return a command that prints a process's stat and command line, without an interpreter.

    Nothing if it has ended.
    """
    return (
        f"if [ -r /proc/self/stat ]; then cat /proc/{pid}/stat && tr '\\0' ' ' </proc/{pid}/cmdline; "
        f"else ps -o stat= -o command= -p {pid}; fi 2>/dev/null"
    )


def unanswered_command(nonce: str) -> str:
    """Return a command that prints when a call of the agent last got no answer, and the time now, in seconds."""
    return f"head -c 20 {run_dir(nonce)}/{UNANSWERED} 2>/dev/null; echo; date +%s"


def is_unanswered(shown: bytes) -> bool:
    """Whether `unanswered_command` shows such a call within UNANSWERED_S. Both times are of the pod's clock."""
    times = UNANSWERED_TIMES.search(shown[-UNANSWERED_BYTES:].decode("utf-8", "replace"))
    return times is not None and abs(int(times[2]) - int(times[1])) <= UNANSWERED_S


def is_alive(shown: bytes, agent: LaunchedAgent, nonce: str) -> bool:
    """Whether `alive_command` shows this agent: the same start time, the same launch, not a zombie."""
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
