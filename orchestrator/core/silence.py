"""Silence: what follows if a ready worker sends no heartbeat for HEARTBEAT_TIMEOUT_SEC.

A worker that is silent while most others are heard has failed, and it ends. If most are silent, the cause may lie
between the pods and the gateway (DNS, TLS, the host's edge), and the workers may be well. So the pod of each of them is
asked over SSH: an agent records each heartbeat without an answer. While a worker's agent calls in vain, the worker does
not end, and its tasks stay with it, for `deadman_s` at most: then its agent ends by itself.
"""

import math
from datetime import datetime

from orchestrator.core.actions import AskPod, Terminate, Wait
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import Policy, Snapshot, Worker
from orchestrator.core.states import READY, WaitingOn

AGAIN_S = 30.0  # within which each agent calls again, and is heard if its calls arrive again
HEARD_SHARE = 0.5  # of the heartbeat timeout: a worker with a contact within it is heard
CALLS_IN_VAIN = "the gateway: its agent runs, and its calls get no answer"
NO_NETWORK = "the orchestrator's network: it reaches neither the pod nor RunPod"


def last_contact(worker: Worker, snapshot: Snapshot) -> datetime:
    """Return when this orchestrator last heard of a worker: its heartbeat, or a call that got no answer."""
    beat = worker.last_heartbeat or worker.state_since
    return max(beat, snapshot.unanswered_at.get(worker.id, beat))


def is_silent(worker: Worker, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether the worker could have been heard for HEARTBEAT_TIMEOUT_SEC, and was not."""
    observed_since = snapshot.window.back(policy.heartbeat_timeout_s, snapshot.now)
    return observed_since is not None and last_contact(worker, snapshot) < observed_since


def next_step(worker: Worker, snapshot: Snapshot, policy: Policy) -> Terminate | AskPod | Wait | None:
    """Return what follows for a silent ready worker. None: its agent calls in vain, and nothing follows."""
    silent_s = (snapshot.now - last_contact(worker, snapshot)).total_seconds()
    why = f"no heartbeat for {silent_s:.0f} s, HEARTBEAT_TIMEOUT_SEC={policy.heartbeat_timeout_s:g}"
    answered_s, may_be_well = _pod_answer(worker, snapshot)
    if may_be_well and worker.nonce and worker.ssh_host and silent_s < policy.deadman_s:
        if answered_s >= policy.heartbeat_s and _most_are_silent(snapshot, policy):
            return AskPod(worker.id, why)
        if answered_s < max(policy.heartbeat_timeout_s, AGAIN_S):  # also while most others are heard again
            return _remark(worker, snapshot, policy.deadman_s - silent_s)
    return Terminate(worker.id, worker.state, ExitCause.HEARTBEAT_LOST, FailureCode.NO_HEARTBEAT, why)


def _pod_answer(worker: Worker, snapshot: Snapshot) -> tuple[float, bool]:
    """Return how long ago its pod answered about this silence, and whether the worker may be well."""
    answer = snapshot.pod_answers.get(worker.id)
    if answer is None or answer.at <= last_contact(worker, snapshot):
        return math.inf, True
    # If RunPod does not answer either, this process may have no network: that SSH fails proves nothing then.
    may_be_well = snapshot.unlisted is not None if answer.calls_in_vain is None else answer.calls_in_vain
    return (snapshot.now - answer.at).total_seconds(), may_be_well


def _remark(worker: Worker, snapshot: Snapshot, left_s: float) -> Wait | None:
    """Record once what the worker waits for."""
    if worker.waiting_on is WaitingOn.OPERATOR:
        return None
    waits_for = CALLS_IN_VAIN if snapshot.pod_answers[worker.id].calls_in_vain else NO_NETWORK
    return Wait(worker.id, worker.state, WaitingOn.OPERATOR, waits_for, 0, left_s)


def keeps_tasks(snapshot: Snapshot, policy: Policy) -> bool:
    """Whether a silent worker may still work on its tasks: then nothing is rescued. An end rescues its own tasks."""
    busy = (worker for worker in snapshot.workers if worker.state in READY and worker.tasks_running)
    silent = (worker for worker in busy if is_silent(worker, snapshot, policy))
    return any(not isinstance(next_step(worker, snapshot, policy), Terminate) for worker in silent)


def _most_are_silent(snapshot: Snapshot, policy: Policy) -> bool:
    """Whether fewer than half of the ready workers were heard lately.

    Idle workers send fewer heartbeats, so their silence is known later: only a recent contact counts as heard.
    """
    since = snapshot.window.back(policy.heartbeat_timeout_s * HEARD_SHARE, snapshot.now) or snapshot.now
    ready = [worker for worker in snapshot.workers if worker.state in READY]
    heard = sum(last_contact(worker, snapshot) >= since for worker in ready)
    return 2 * heard < len(ready)
