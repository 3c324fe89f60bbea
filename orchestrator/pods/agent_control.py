"""Our programs on a pod, over one session: run, start, find alive, hear last words, stop.

A command whose exit status is unknown raises Unavailable: whoever asked must look again, not guess.
"""

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.core.failures import FailureCode
from orchestrator.pods import agent_commands
from orchestrator.ports import Completed, PortError, Session, Unavailable

LOOK_TIMEOUT_S = 10.0  # for the small questions: is it alive, what did it say
STOP_MARGIN_S = 10.0  # over the grace that a stop was given
TAIL_BYTES = 16 * 1024
TAIL_LINES = 50


class StageFailed(Exception):
    """The answer is no: this worker will not do."""

    def __init__(self, code: FailureCode, message: str, evidence: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.evidence = dict(evidence or {})


async def run(session: Session, command: str, *, stdin: bytes = b"", timeout_s: float) -> Completed:
    """A command's outcome, which is known."""
    done = await session.run(command, stdin=stdin, timeout_s=timeout_s)
    if done.exit_status is None:
        raise Unavailable("the connection went, or a signal ended the command: its outcome is unknown")
    return done


async def start(
    session: Session, *, python: str, agent_sha: str, nonce: str, config: bytes, timeout_s: float
) -> agent_commands.Agent:
    """The launch's agent, started now or running already. Unproven with the agent's own code if there is none."""
    done = await run(session, agent_commands.start_command(python, agent_sha, nonce), stdin=config, timeout_s=timeout_s)
    line = agent_commands.answer(done) or {}
    if done.exit_status != 0 or "error" in line:
        code = str(line.get("code"))
        known = FailureCode(code) if code in set(FailureCode) else FailureCode.NO_PROCESS
        raise StageFailed(known, "the agent did not start", shown(done) | {"code": code})
    agent = agent_commands.agent(line)
    if agent is None:
        raise StageFailed(FailureCode.NO_PROCESS, "the agent's answer names no process", shown(done))
    if agent.code_sha != agent_sha:
        raise StageFailed(FailureCode.STALE_CODE, "another agent than the one sent runs", {"runs": agent.code_sha})
    return agent


async def recorded(session: Session, nonce: str) -> agent_commands.Agent | None:
    """The agent that a launch once started, alive or not; None if it never got that far."""
    text = await session.read(f"{agent_commands.run_dir(nonce)}/agent.json", 0, TAIL_BYTES, timeout_s=LOOK_TIMEOUT_S)
    try:
        line = json.loads(text or b"null")
    except (ValueError, RecursionError):
        return None
    return agent_commands.agent(line) if isinstance(line, dict) else None


async def lives(session: Session, agent: agent_commands.Agent, nonce: str) -> bool:
    """Whether the process is there: by pid, start time and command line."""
    done = await run(session, agent_commands.alive_command(agent.pid), timeout_s=LOOK_TIMEOUT_S)
    return agent_commands.is_alive(done.stdout, agent, nonce)


async def last_words(session: Session, nonce: str) -> dict[str, Any]:
    """The last lines of the launch's own logs, as far as they can be had."""
    said: list[str] = []
    try:
        sizes = await session.list(f"{agent_commands.run_dir(nonce)}/logs", timeout_s=LOOK_TIMEOUT_S) or {}
        for name in ("system.log", "agent.log"):
            path, offset = f"{agent_commands.run_dir(nonce)}/logs/{name}", max(0, sizes.get(name, 0) - TAIL_BYTES)
            text = await session.read(path, offset, TAIL_BYTES, timeout_s=LOOK_TIMEOUT_S) or b""
            said += text.decode("utf-8", "replace").splitlines()
    except PortError as error:
        return {"log": said[-TAIL_LINES:], "log_error": str(error)[:300]}
    return {"log": said[-TAIL_LINES:]}


async def stop(session: Session, *, python: str, agent_sha: str, nonce: str, grace_s: float) -> None:
    """End the launch's agent and all it started. Unavailable unless it says that nothing of it runs."""
    command = agent_commands.stop_command(python, agent_sha, nonce, grace_s)
    done = await run(session, command, timeout_s=grace_s + STOP_MARGIN_S)
    if done.exit_status != 0 or (agent_commands.answer(done) or {}).get("stopped") is not True:
        raise Unavailable(f"the agent of {nonce} was not stopped: {shown(done)}")


def shown(done: Completed) -> dict[str, Any]:
    """A command's outcome as evidence; its stdin, which may hold a secret, is no part of it."""
    tail = {"stdout": done.stdout[-2000:], "stderr": done.stderr[-2000:]}
    return {"exit_status": done.exit_status} | {name: text.decode("utf-8", "replace") for name, text in tail.items()}
