"""Silence: what the planner does if a ready worker sends no heartbeat.

The cause may lie between the pods and the gateway (DNS, TLS, the platform's edge), and the worker may be well. So the
orchestrator asks the pod over SSH before it ends the worker: an agent records each call without an answer. A
worker counts as heard if its last contact is recent.

    the agent gets no answer, and most workers are silent    it stays and keeps its tasks; its pod is asked again
    the agent gets no answer, and most others are heard      it has a moment to be heard again, then it ends
    the agent makes no calls                                 it is asked again when it is silent, then it ends
    SSH does not reach the pod for UNREACHED_S               it ends, unless this process may have no network: most
                                                             workers are silent, and RunPod does not answer either

A worker that is silent for `deadman_s` ends without a question, because its agent has ended by itself. If its calls got
no answer until then, the outage is the cause, and the attempts of its tasks do not count. A pod is asked before the
heartbeat timeout is over, so that the leases of the worker's tasks can be renewed in time.
"""

from dataclasses import dataclass

from orchestrator.core.actions import AskPod, Terminate, Wait
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import PodAnswer, Snapshot, Worker
from orchestrator.core.policy import Policy
from orchestrator.core.states import READY, Stage, WaitingOn

ASK_SHARE = 2 / 3  # of the heartbeat timeout without a contact, after which a pod is asked
HEARD_SHARE = 1 / 2  # of the heartbeat timeout: a worker with a contact within it is heard
RETRY_S, UNREACHED_S = 5.0, 10.0  # between two tries to reach a pod, and from the first failed one to the last
AGAIN_S = 60.0  # within which each agent calls again, and is heard if its calls arrive again
CALLS_UNANSWERED = "the gateway: its agent runs, and its calls get no answer"
NO_NETWORK = "the orchestrator's network: it reaches neither the pod nor RunPod"


@dataclass(frozen=True, slots=True)
class NotedAnswer:
    """What the answer of a pod means at once. The next tick decides on the rest."""

    is_new: bool  # it differs from the pod's last answer
    may_be_well: bool  # the worker may work: its agent gets no answer, or this process has no network


class Silences:
    """The silent workers of one snapshot."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._snapshot, self._policy = snapshot, policy
        self._silent_since = snapshot.window.back(policy.heartbeat_timeout_s, snapshot.now)
        self._ask_since = snapshot.window.back(policy.heartbeat_timeout_s * ASK_SHARE, snapshot.now)
        heard_since = snapshot.window.back(policy.heartbeat_timeout_s * HEARD_SHARE, snapshot.now) or snapshot.now
        # Workers that finish their tasks send heartbeats too. They may be all that a fleet has, during a rollout.
        senders = [one for one in snapshot.workers if one.state in READY or _finishes_tasks(one)]
        # Idle workers send fewer heartbeats, so their silence is known later: only a recent contact counts as heard.
        self._most_are_silent = 2 * sum(snapshot.last_contact(one) >= heard_since for one in senders) < len(senders)

    def is_silent(self, worker: Worker) -> bool:
        """Whether the worker could have been heard for HEARTBEAT_TIMEOUT_SEC, and was not.

        A node of a cluster is never silent: its cluster decides by SSH and by Slurm whether it is lost.
        """
        if _is_node(worker) or self._silent_since is None:
            return False
        return self._snapshot.last_contact(worker) < self._silent_since

    def should_ask(self, worker: Worker) -> bool:
        """Whether the worker has had no contact for so long that its pod is asked."""
        if _is_node(worker) or self._ask_since is None:
            return False
        return self._snapshot.last_contact(worker) < self._ask_since

    def next_step(self, worker: Worker) -> Terminate | AskPod | Wait | None:
        """Return what follows for a worker without a recent contact. None: nothing yet, or it has had one."""
        if not self.should_ask(worker):
            return None
        silent_s = (self._snapshot.now - self._snapshot.last_contact(worker)).total_seconds()
        why = f"no heartbeat for {silent_s:.0f} s, HEARTBEAT_TIMEOUT_SEC={self._policy.heartbeat_timeout_s:g}"
        if worker.nonce and worker.ssh_host and silent_s < self._policy.deadman_s:
            answer = self._answer(worker)
            if self._asks(worker, answer):
                return AskPod(worker.id, why, not self._most_are_silent)
            if answer is not None and self._may_be_well(answer):
                return self._remark(worker, answer, self._policy.deadman_s - silent_s)
        code = FailureCode.GATEWAY_UNREACHED if self.is_cut_off(worker) else FailureCode.NO_HEARTBEAT
        if not self.is_silent(worker):
            return None
        return Terminate(worker.id, worker.state, ExitCause.HEARTBEAT_LOST, code, why)

    def is_cut_off(self, worker: Worker) -> bool:
        """Whether its agent got no answer until it had to end. Such an agent also asks RunPod to stop its pod."""
        silent_s = (self._snapshot.now - self._snapshot.last_contact(worker)).total_seconds()
        called = (worker.waiting_on, worker.waiting_for) == (WaitingOn.OPERATOR, CALLS_UNANSWERED)
        return called and silent_s >= self._policy.deadman_s

    def keeps_tasks(self) -> bool:
        """Whether nothing may be rescued, because a silent worker may still work on its tasks.

        The end of a worker rescues its tasks. If a pod's answer shows that the worker may be well, its leases are
        renewed.
        """
        holders = (one for one in self._snapshot.workers if one.state in READY or _finishes_tasks(one))
        busy = (one for one in holders if one.tasks_running and self.is_silent(one))
        return any(not self._is_known(one) for one in busy)

    def _is_known(self, worker: Worker) -> bool:
        if worker.id in self._snapshot.in_flight:  # it is being asked; its leases are renewed after the answer
            return False
        answer = self._answer(worker)
        is_kept = answer is not None and (answer.calls_unanswered or not answer.has_network)
        # The leases last for the heartbeat timeout. The next question may wait until many other pods have answered.
        is_renewed = is_kept and answer is not None and self._age_s(answer) < self._policy.heartbeat_timeout_s
        return is_renewed or isinstance(self.next_step(worker), Terminate)

    def _answer(self, worker: Worker) -> PodAnswer | None:
        """Return its pod's answer about this silence. An old answer counts only if the agent got no answer then."""
        answer = self._snapshot.pod_answers.get(worker.id)
        if answer is None or answer.at <= self._snapshot.last_contact(worker):
            return None
        if answer.address != (worker.ssh_host, worker.ssh_port):
            return None
        return answer if answer.calls_unanswered or self._age_s(answer) < AGAIN_S else None

    def _asks(self, worker: Worker, answer: PodAnswer | None) -> bool:
        if answer is None:
            return True
        if answer.calls_unanswered is None:
            return self._age_s(answer) >= RETRY_S and not self._is_unreachable(answer)
        if not answer.calls_unanswered:  # a call that was under way then may have ended without an answer since
            return self._age_s(answer) > self._silent_for_s(worker) > 0
        return self._most_are_silent and self._age_s(answer) >= self._policy.heartbeat_s

    def _may_be_well(self, answer: PodAnswer) -> bool:
        if answer.calls_unanswered is None:
            return not self._is_unreachable(answer)
        return answer.calls_unanswered and self._age_s(answer) < max(self._policy.heartbeat_timeout_s, AGAIN_S)

    @staticmethod
    def _is_unreachable(answer: PodAnswer) -> bool:
        """Whether SSH does not reach the pod although this process has a network."""
        return answer.unreached_s >= UNREACHED_S and answer.has_network

    def _silent_for_s(self, worker: Worker) -> float:
        """Return for how long the worker has counted as silent; 0 or less if it does not yet."""
        since = self._silent_since
        return 0.0 if since is None else (since - self._snapshot.last_contact(worker)).total_seconds()

    def _age_s(self, answer: PodAnswer) -> float:
        return (self._snapshot.now - answer.at).total_seconds()

    def _remark(self, worker: Worker, answer: PodAnswer, left_s: float) -> Wait | None:
        """Record what the worker waits for, if that has changed."""
        if not self.is_silent(worker):
            return None
        waits_for = CALLS_UNANSWERED if answer.calls_unanswered else NO_NETWORK
        if waits_for == NO_NETWORK and answer.has_network:  # it is asked again at once
            return None
        if (worker.waiting_on, worker.waiting_for) == (WaitingOn.OPERATOR, waits_for):
            return None
        return Wait(worker.id, worker.state, WaitingOn.OPERATOR, waits_for, 0, left_s)


def _is_node(worker: Worker) -> bool:
    return worker.cluster is not None and worker.state in READY


def _finishes_tasks(worker: Worker) -> bool:
    return worker.stage is Stage.DRAINING and worker.tasks_running > 0


def has_open_question(snapshot: Snapshot) -> bool:
    """Whether a pod was asked about a silence that lasts: the next tick should come soon."""
    answers = ((one, snapshot.pod_answers.get(one.id)) for one in snapshot.workers if one.state in READY)
    return any(answer is not None and answer.at > snapshot.last_contact(one) for one, answer in answers)
