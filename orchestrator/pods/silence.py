"""Asks the pod of a silent worker whether the worker's agent calls and gets no answer."""

import asyncio
from collections.abc import Callable

import structlog

from orchestrator.core.model import Worker
from orchestrator.pods import agent_control
from orchestrator.ports import PortError, SessionPool

ASK_S = 10.0  # seconds for the question, with the connection
WORDS = {True: "its agent calls and gets no answer", False: "its agent makes no calls", None: "SSH does not reach it"}
log = structlog.get_logger()


async def ask(ssh_pool: SessionPool, note: Callable[[str, bool | None], None], worker: Worker) -> None:
    """Ask within ASK_S, and call `note` with the worker's id and the answer; None if SSH does not reach the pod."""
    calls_in_vain, error = None, ""
    try:
        async with asyncio.timeout(ASK_S), ssh_pool.session(worker, timeout_s=ASK_S) as session:
            calls_in_vain = await agent_control.calls_in_vain(session, worker.nonce or "")
    except (PortError, TimeoutError) as unreached:
        error = f"{type(unreached).__name__}: {unreached}"
    finally:
        note(worker.id, calls_in_vain)
    message = f"silent worker: {WORDS[calls_in_vain]}"
    log.warning("silent_worker_asked", message=message, worker=worker.id, error=error)
