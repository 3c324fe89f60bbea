"""The next action of each live worker, by its state, its stage, and its pod in the provider's list.

A spawning worker's bring-up continues until its deadline. For a ready worker, the pod, the heartbeat and operators'
requests are checked. A terminating worker goes through draining, flushing and deleting, and ends when RunPod confirms
that its pod is gone. In each state, the SSH address is updated if the list shows another one.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial

from orchestrator.core import fitness, guards, pod_evidence, rollout, termination
from orchestrator.core.actions import (
    Action,
    Adopt,
    AskPod,
    ContinueBringUp,
    Delete,
    Flush,
    MarkTerminated,
    SetActivity,
    Terminate,
    UpdateAddress,
    Wait,
)
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import NEVER_CREATED, FailureCode
from orchestrator.core.model import Snapshot, Worker
from orchestrator.core.plurals import counted
from orchestrator.core.policy import Policy
from orchestrator.core.provider import Pod
from orchestrator.core.silence import Silences
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import Stage, State, WaitingOn

DEADLINE_SLACK_S = 5.0  # bring-up ends a stage at its deadline; the planner ends one that does not
ACTIVE_WITHOUT_CLAIM_S = 120.0  # an agent without a task claims at once, and again after each long poll
ENDS = (Terminate, Delete, MarkTerminated)  # these do not use the address, so a new one must not delay them

Step = Callable[[Worker, Pod | None, Snapshot, Policy], Action | None]


def plan(snapshot: Snapshot, policy: Policy) -> list[Action]:
    """Return at most one action per worker."""
    pods = {pod.id: pod for pod in snapshot.pods or ()}
    named = {p.worker_id: p for p in reversed(snapshot.pods or ()) if p.fleet_id == policy.fleet_id and p.worker_id}
    actions: list[Action] = []
    silences = Silences(snapshot, policy)
    ready, ending = partial(_ready, silences), partial(_ending, silences)
    steps: dict[State, Step] = {
        State.SPAWNING: _spawning,
        State.ACTIVE: ready,
        State.IDLE: ready,
        State.TERMINATING: ending,
    }
    for worker in snapshot.workers:
        if worker.id in snapshot.in_flight:
            continue
        pod = pods.get(worker.pod_id) if worker.pod_id else named.get(worker.id)
        action = steps[worker.state](worker, pod, snapshot, policy)
        if not (isinstance(action, ENDS) or (isinstance(action, Flush) and action.final)):
            action = _address_update(worker, pod) or action
        if action is not None:
            actions.append(action)
    return actions


def _address_update(worker: Worker, pod: Pod | None) -> UpdateAddress | None:
    """Return the update of the SSH address if the list shows another one than the row."""
    if worker.ssh_host is None or pod is None or pod.ssh_host is None or pod.ssh_port is None:
        return None
    if (worker.ssh_host, worker.ssh_port) == (pod.ssh_host, pod.ssh_port):
        return None
    before, now = f"{worker.ssh_host}:{worker.ssh_port}", f"{pod.ssh_host}:{pod.ssh_port}"
    why = f"SSH moved from {before} to {now}, as RunPod's list shows"
    return UpdateAddress(worker.id, worker.state, pod.ssh_host, pod.ssh_port, why)


def _spawning(worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy) -> Action | None:
    if pod and worker.pod_id is None:  # adopt it before anything else: its cost is recorded only with its id
        why = f"pod {pod.id} has its id; the reply to the create call was lost"
        billed_s = (snapshot.now - worker.stage_since).total_seconds()
        return Adopt(worker.id, pod.id, why, pod.price_usd_per_hour, billed_s)
    end = _requested_end(worker) or _overdue(worker, snapshot, policy) or rollout.obsolete(worker, snapshot, policy)
    if end:
        return end
    if worker.pod_id is None:
        return None
    lost = pod_evidence.lost(worker, pod, ExitCause.SPAWN_FAILED, snapshot, policy)
    if lost:
        return lost
    avoided_until = snapshot.avoid.get(f"machine:{pod.machine_id}") if pod else None
    if pod and avoided_until and avoided_until > snapshot.now:
        why = f"it landed on machine {pod.machine_id}, which failed and is avoided until {avoided_until:%H:%M:%S}"
        return Terminate(worker.id, State.SPAWNING, ExitCause.HOST_FAULT, FailureCode.HOST_AVOIDED, why)
    return None if worker.id in snapshot.bringing_up else ContinueBringUp(worker.id)


def _overdue(worker: Worker, snapshot: Snapshot, policy: Policy) -> Terminate | None:
    """Return the end of a bring-up that cannot succeed, or that exceeded its deadline or its stage's deadline."""
    bringup_s = (snapshot.now - worker.created_at).total_seconds()
    code = STAGE_SPECS[worker.stage].overdue
    if worker.waiting_on is WaitingOn.CAPACITY:
        code = FailureCode.NO_CAPACITY
    cause = ExitCause.BUDGET if worker.waiting_on is WaitingOn.BUDGET else ExitCause.SPAWN_FAILED
    if worker.pod_id is None and worker.failure_code in NEVER_CREATED:
        code, why = worker.failure_code, f"the provider will not rent: {worker.waiting_for}"
    elif bringup_s >= policy.spawning_timeout_s + (DEADLINE_SLACK_S if worker.id in snapshot.bringing_up else 0):
        why = f"still {worker.stage} after {bringup_s:.0f} s, SPAWNING_TIMEOUT_SEC={policy.spawning_timeout_s:g}"
    elif snapshot.now >= worker.deadline_at + timedelta(seconds=DEADLINE_SLACK_S):
        why = f"stage {worker.stage} passed its deadline {worker.deadline_at:%H:%M:%S}"
    else:
        return None
    return Terminate(worker.id, State.SPAWNING, cause, code, why)


def _ready(silences: Silences, worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy) -> Action | None:
    end = rollout.end(worker, snapshot, policy) or _requested_end(worker)
    if end:
        return end
    lost = pod_evidence.lost(worker, pod, ExitCause.POD_LOST, snapshot, policy)
    if lost:
        return lost
    if silences.is_silent(worker):
        return _silent(worker, pod, silences, snapshot)
    if (question := silences.next_step(worker)) is not None:
        return question
    unfit = guards.end(worker, snapshot, policy) or fitness.end(worker, snapshot, policy)
    if unfit:
        return unfit
    activity = _activity_change(worker, snapshot, policy)
    stuck = None if silences.should_ask(worker) else _stuck(worker, snapshot, policy)
    return stuck or activity or _listing_remark(worker, pod, snapshot, policy)


def _silent(worker: Worker, pod: Pod | None, silences: Silences, snapshot: Snapshot) -> Action | None:
    """Return the action for a silent worker. Its silence confirms even a single list that shows its pod as ended."""
    if pod is not None and pod.status in pod_evidence.DEAD and not silences.is_cut_off(worker):
        silent_s = (snapshot.now - snapshot.last_contact(worker)).total_seconds()
        why = f"the provider says {pod.status}; no heartbeat for {silent_s:.0f} s"
        return Terminate(worker.id, worker.state, ExitCause.POD_LOST, pod_evidence.DEAD[pod.status], why)
    return _address_update(worker, pod) or silences.next_step(worker)  # the pod is asked at its present address


def _listing_remark(worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy) -> Wait | None:
    """Record a remark while the lists lack the pod or its runtime, and remove it afterwards. Nothing else is done.

    It also removes the remark of a worker whose agent got no answer, once the worker is heard again.
    `silence.py` cannot do that for a new leader, for which no worker is silent yet.
    """
    gone = snapshot.absent.get(worker.pod_id or worker.id)
    odd = None
    if pod is None and gone is not None:
        odd = (
            f"its pod, missing from RunPod's lists since {gone.since:%H:%M:%S}: "
            f"it counts as gone after {policy.absence_age_s:g} s of such lists"
        )
    elif pod is not None and not pod.has_runtime:
        odd = f"its pod's runtime, missing from RunPod's list: {pod.status}"
    if odd and worker.waiting_on is not WaitingOn.PROVIDER:
        return Wait(worker.id, worker.state, WaitingOn.PROVIDER, odd, 0, policy.heartbeat_timeout_s)
    listed = pod is not None and worker.waiting_on is WaitingOn.PROVIDER
    if not odd and (listed or _is_heard_again(worker, snapshot, policy)):
        return Wait(worker.id, worker.state, WaitingOn.WORKER, "tasks", 0, policy.heartbeat_timeout_s)
    return None


def _is_heard_again(worker: Worker, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether a worker sends heartbeats again, although its row still says that its calls get no answer."""
    silent_s = (snapshot.now - snapshot.last_contact(worker)).total_seconds()
    return worker.waiting_on is WaitingOn.OPERATOR and silent_s < policy.heartbeat_timeout_s


def _stuck(worker: Worker, snapshot: Snapshot, policy: Policy) -> Terminate | None:
    """Return the end of a worker whose agent did not end its stuck task, although the answers to heartbeats name it.

    Its last heartbeat must be recent: the task that an old one names may have ended, and another one begun.
    """
    if worker.progress_at is None or not worker.tasks_running or worker.cluster is not None:
        return None  # a job on a cluster may wait for nodes, and Slurm ends it by its time limit
    observed_since = snapshot.window.back(policy.task_stuck_s + policy.heartbeat_timeout_s, snapshot.now)
    if observed_since is None or worker.progress_at > observed_since:
        return None
    heard_again_at = snapshot.heard_again_at.get(worker.id)
    if heard_again_at and (snapshot.now - heard_again_at).total_seconds() < policy.heartbeat_timeout_s:
        return None  # its agent has just learnt that the task is stuck
    still_s = (snapshot.now - worker.progress_at).total_seconds()
    why = (
        f"task {worker.slowest_task} showed no sign of life for {still_s:.0f} s and was not ended by its agent, "
        f"TASK_STUCK_TIMEOUT_SEC={policy.task_stuck_s:g}"
    )
    return Terminate(worker.id, worker.state, ExitCause.TASK_STUCK, None, why)


def _activity_change(worker: Worker, snapshot: Snapshot, policy: Policy) -> SetActivity | None:
    """Move a worker with its own program, or whose agent claims nothing, between active and idle by its tasks.

    An agent that sends heartbeats but no claims, or gets no answer, must not cost more than an idle worker.
    """
    if worker.own_program and worker.state is State.IDLE and worker.tasks_running:
        return SetActivity(worker.id, State.IDLE, State.ACTIVE, f"holds {counted(worker.tasks_running, 'task')}")
    empty_s = (snapshot.now - (worker.empty_since or worker.state_since)).total_seconds()
    grace_s = policy.scale_down_grace_s if worker.own_program else ACTIVE_WITHOUT_CLAIM_S
    if worker.state is State.ACTIVE and not worker.tasks_running and empty_s >= grace_s:
        return SetActivity(worker.id, State.ACTIVE, State.IDLE, f"held no task for {empty_s:.0f} s")
    return None


def _requested_end(worker: Worker) -> Terminate | None:
    if worker.drain_requested_at is None:
        return None
    no_pod = FailureCode.INTENT_STALE if worker.stage is Stage.INTENT else None
    return Terminate(worker.id, worker.state, ExitCause.MANUAL, no_pod, "an operator asked for it")


def _ending(silences: Silences, worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy) -> Action | None:
    """Return the next step of an ending worker. If it is silent while it finishes its tasks, its pod is asked.

    Its row then says what it waits for. Silence does not end the drain early.
    """
    step = termination.next_step(worker, pod, snapshot, policy)
    if step is not None or worker.stage is not Stage.DRAINING or not worker.tasks_running:
        return step
    left_s = policy.drain_grace_s - (snapshot.now - worker.state_since).total_seconds()
    if _is_heard_again(worker, snapshot, policy):
        return Wait(worker.id, worker.state, WaitingOn.WORKER, "its tasks to end", 0, left_s)
    question = silences.next_step(worker)
    if isinstance(question, Wait):
        return replace(question, deadline_s=left_s)
    return question if isinstance(question, AskPod) else None
