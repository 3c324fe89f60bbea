"""Controls the agent on a pod over one SSH session: run, start, find, read the logs, stop.

A command with an unknown exit status raises Unavailable: the caller must check again.
"""

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.core.failures import FailureCode
from orchestrator.pods import agent_commands
from orchestrator.ports import Completed, PortError, Session, Unavailable

READ_TIMEOUT_S = 10.0  # for short commands: is the agent alive, what are its last log lines
STOP_MARGIN_S = 10.0  # in addition to the grace period of a stop
TAIL_BYTES = 16 * 1024
TAIL_LINES = 50
EXITS = ("REBOOT", "OOM", "MANUAL", "UNKNOWN")  # how an agent ended that wrote no record of its end
ERROR_CHARS = 2_500  # of the agent's error: its end, which has the end of a set-up command's output


class StageFailed(Exception):
    """A stage check failed: the worker ends with this code."""

    def __init__(self, code: FailureCode, message: str, evidence: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.evidence = dict(evidence or {})


async def run(session: Session, command: str, *, stdin: bytes = b"", timeout_s: float) -> Completed:
    """Run a command and return its result. Raises Unavailable if the exit status is unknown."""
    done = await session.run(command, stdin=stdin, timeout_s=timeout_s)
    if done.exit_status is None:
        raise Unavailable("the connection was lost, or a signal ended the command: its result is unknown")
    return done


async def start(
    session: Session, *, python: str, agent_sha: str, nonce: str, config: bytes, timeout_s: float
) -> agent_commands.LaunchedAgent:
    """Start the launch's agent, or find the running one. Raises StageFailed with the agent's own code."""
    done = await run(session, agent_commands.start_command(python, agent_sha, nonce), stdin=config, timeout_s=timeout_s)
    line = agent_commands.answer(done) or {}
    if done.exit_status != 0 or "error" in line:
        code = str(line.get("code"))
        known = FailureCode(code) if code in set(FailureCode) else FailureCode.NO_PROCESS
        raise StageFailed(known, "the agent did not start", _refusal(line) | shown(done) | {"code": code})
    agent = agent_commands.agent(line)
    if agent is None:
        raise StageFailed(FailureCode.NO_PROCESS, "the agent's answer names no process", shown(done))
    if agent.code_sha != agent_sha:
        raise StageFailed(
            FailureCode.STALE_CODE, "the running agent is not the one that was sent", {"runs": agent.code_sha}
        )
    return agent


def _refusal(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the agent's own error as evidence."""
    return {"error": str(line["error"])[-ERROR_CHARS:]} if "error" in line else {}


async def recorded(session: Session, nonce: str) -> agent_commands.LaunchedAgent | None:
    """Return the agent that a launch started, alive or not. None if it started none."""
    text = await session.read(f"{agent_commands.run_dir(nonce)}/agent.json", 0, TAIL_BYTES, timeout_s=READ_TIMEOUT_S)
    try:
        line = json.loads(text or b"null")
    except (ValueError, RecursionError):
        return None
    return agent_commands.agent(line) if isinstance(line, dict) else None


async def lives(session: Session, agent: agent_commands.LaunchedAgent, nonce: str) -> bool:
    """Whether the process runs, by pid, start time and command line."""
    done = await run(session, agent_commands.alive_command(agent.pid), timeout_s=READ_TIMEOUT_S)
    return agent_commands.is_alive(done.stdout, agent, nonce)


async def calls_unanswered(session: Session, nonce: str, *, timeout_s: float) -> bool:
    """Whether the launch's agent recorded a call without an answer within UNANSWERED_S."""
    done = await run(session, agent_commands.unanswered_command(nonce), timeout_s=timeout_s)
    return agent_commands.is_unanswered(done.stdout)


async def log_tails(session: Session, nonce: str) -> dict[str, Any]:
    """Return the last lines of the launch's logs, as far as they are readable."""
    lines: list[str] = []
    try:
        sizes = await session.list(f"{agent_commands.run_dir(nonce)}/logs", timeout_s=READ_TIMEOUT_S) or {}
        for name in ("system.log", "agent.log"):
            path, offset = f"{agent_commands.run_dir(nonce)}/logs/{name}", max(0, sizes.get(name, 0) - TAIL_BYTES)
            text = await session.read(path, offset, TAIL_BYTES, timeout_s=READ_TIMEOUT_S) or b""
            lines += text.decode("utf-8", "replace").splitlines()
    except PortError as error:
        return {"log": lines[-TAIL_LINES:], "log_error": str(error)[:300]}
    return {"log": lines[-TAIL_LINES:]}


async def stop(session: Session, *, python: str, agent_sha: str, nonce: str, grace_s: float) -> str | None:
    """Stop the launch's agent and all its processes. Raises Unavailable unless the answer confirms it.

    Returns how an agent ended that wrote no record of its end: REBOOT, OOM, MANUAL or UNKNOWN.
    """
    command = agent_commands.stop_command(python, agent_sha, nonce, grace_s)
    done = await run(session, command, timeout_s=grace_s + STOP_MARGIN_S)
    answer = agent_commands.answer(done) or {}
    if done.exit_status != 0 or answer.get("stopped") is not True:
        raise Unavailable(f"the agent of {nonce} was not stopped: {shown(done)}")
    return next((how for how in EXITS if how == answer.get("exit")), None)


def shown(done: Completed) -> dict[str, Any]:
    """Return a command's result as evidence, without its stdin, which may contain a secret."""
    tail = {"stdout": done.stdout[-2000:], "stderr": done.stderr[-2000:]}
    return {"exit_status": done.exit_status} | {name: text.decode("utf-8", "replace") for name, text in tail.items()}
