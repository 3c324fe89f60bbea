"""Asks the pod of a silent worker whether the worker's agent calls and gets no answer."""

from collections.abc import Callable

import structlog

from orchestrator.core.model import Worker
from orchestrator.core.silence import NotedAnswer
from orchestrator.pods import agent_control
from orchestrator.ports import PortError, SessionPool, Store

TRIES_S = (4.0, 4.0)  # the second one makes a new connection: the first may have gone with the network's state
WORDS = {True: "its agent calls and gets no answer", False: "its agent makes no calls", None: "SSH does not reach it"}
log = structlog.get_logger()


NoteAnswer = Callable[[Worker, bool | None, bool], NotedAnswer]  # worker, its calls get no answer, others are heard


async def ask_pod(
    ssh_pool: SessionPool,
    store: Store,
    note: NoteAnswer,
    term: int,
    worker: Worker,
    others_are_heard: bool,
) -> None:
    """Ask, and call `note` with the answer; None if SSH does not reach the pod. Return within 20 s.

    If the worker may be well, the leases of its tasks are renewed, as its heartbeat would do it.
    """
    calls_unanswered, error = None, ""
    for limit_s in TRIES_S:
        try:
            async with ssh_pool.session(worker, timeout_s=limit_s) as session:
                calls_unanswered = await agent_control.calls_unanswered(session, worker.nonce or "", timeout_s=limit_s)
            break
        except PortError as unreached:
            error = f"{type(unreached).__name__}: {unreached}"
    noted = note(worker, calls_unanswered, others_are_heard)
    write = log.warning if noted.is_new else log.debug
    write("silent_worker_asked", message=f"silent worker: {WORDS[calls_unanswered]}", worker=worker.id, error=error)
    if noted.may_be_well:
        await store.keep_tasks(term, worker.id)
