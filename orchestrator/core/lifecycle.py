"""What each live worker needs next, by its state and stage and by what the provider's list shows of its pod.

The bring-up of a spawning worker goes on until its deadline. A ready worker is watched (pod, heartbeat, an operator's
request). A terminating worker goes through draining, flushing and deleting, and ends when RunPod confirms that its pod
is gone. In each state, the SSH address is updated when the list shows another one.
"""

from datetime import datetime, timedelta

from orchestrator.core import fitness, rollout
from orchestrator.core.actions import (
    Action,
    Adopt,
    ContinueBringUp,
    Delete,
    Flush,
    MarkTerminated,
    SetActivity,
    Terminate,
    UpdateAddress,
    Wait,
)
from orchestrator.core.exit_causes import FAILURES, ExitCause
from orchestrator.core.failures import NEVER_CREATED, NOT_OUR_POD, POD_GONE, FailureCode
from orchestrator.core.model import DATABASE, DELETES, UNREACHED, Pod, PodStatus, Policy, Snapshot, Worker
from orchestrator.core.pod_tracking import LISTING_LAG_S, fresh_for_s
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import Stage, State, WaitingOn

WATCHDOG_SLACK_S = 5.0  # bring-up ends a stage at its deadline; the watchdog catches one that does not
LISTED_S = 4.0  # after a delete a list may lag; from then on it is worth a remark
UNDECLARED_S = 600.0  # a flush that cannot even declare its logs lost holds up the delete no longer
UNREACHED_TRIES, UNREACHED_S = 3, 15.0  # nobody at the pod so often, for so long: its end is not kept waiting
BEAT_SHARE = 0.4  # of the heartbeat timeout: an idle agent beats in each third of it, one with a task far oftener
UNASKED_S = 120.0  # an agent without a task asks for one at once, and again within its long poll
DELETED_AGE_S = 2.0  # absence after our own delete needs two lists and this age; if it outlived one, that of any pod
STILL_LISTED = "it is still listed since"  # in what a deleting row waits for
DEAD = {
    PodStatus.EXITED: FailureCode.POD_EXITED,
    PodStatus.TERMINATED: FailureCode.POD_EXITED,
    PodStatus.ERROR: FailureCode.POD_ERROR,
}
ENDS = (
    Terminate,
    Delete,
    MarkTerminated,
)  # nobody speaks to the pod: a list with another address each time holds none up


def plan(snapshot: Snapshot, policy: Policy) -> list[Action]:
    """At most one action a worker."""
    pods = {pod.id: pod for pod in snapshot.pods or ()}
    named = {p.worker_id: p for p in reversed(snapshot.pods or ()) if p.fleet_id == policy.fleet_id and p.worker_id}
    actions: list[Action] = []
    for worker in snapshot.workers:
        if worker.id in snapshot.in_flight:
            continue
        pod = pods.get(worker.pod_id) if worker.pod_id else named.get(worker.id)
        action = _STEPS[worker.state](worker, pod, snapshot, policy)
        if not (isinstance(action, ENDS) or (isinstance(action, Flush) and action.final)):
            action = _moved(worker, pod) or action
        if action is not None:
            actions.append(action)
    return actions


def _moved(worker: Worker, pod: Pod | None) -> UpdateAddress | None:
    """Its new address, where the list shows another than the row: whatever speaks to the pod must find it there."""
    if worker.ssh_host is None or pod is None or pod.ssh_host is None or pod.ssh_port is None:
        return None
    if (worker.ssh_host, worker.ssh_port) == (pod.ssh_host, pod.ssh_port):
        return None
    before, now = f"{worker.ssh_host}:{worker.ssh_port}", f"{pod.ssh_host}:{pod.ssh_port}"
    why = f"SSH moved from {before} to {now}, as RunPod's list shows"
    return UpdateAddress(worker.id, worker.state, pod.ssh_host, pod.ssh_port, why)


def _spawning(worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy) -> Action | None:
    if pod and worker.pod_id is None:  # whatever becomes of it then: what it has cost is booked only once it is known
        why = f"pod {pod.id} bears its id; the reply to the create call was lost"
        billed_s = (snapshot.now - worker.stage_since).total_seconds()
        return Adopt(worker.id, pod.id, why, pod.price_usd_per_hour, billed_s)
    end = _operators_wish(worker) or _overdue(worker, snapshot, policy)
    if end:
        return end
    if worker.pod_id is None:
        return None
    fate = _fate(worker, pod, ExitCause.SPAWN_FAILED, snapshot, policy)
    if fate:
        return fate
    avoided_until = snapshot.avoid.get(f"machine:{pod.machine_id}") if pod else None
    if pod and avoided_until and avoided_until > snapshot.now:
        why = f"it landed on machine {pod.machine_id}, which failed and is avoided until {avoided_until:%H:%M:%S}"
        return Terminate(worker.id, State.SPAWNING, ExitCause.HOST_FAULT, FailureCode.HOST_AVOIDED, why)
    return None if worker.id in snapshot.bringing_up else ContinueBringUp(worker.id)


def _overdue(worker: Worker, snapshot: Snapshot, policy: Policy) -> Terminate | None:
    """The end of a bring-up that cannot succeed, or took too long: as a whole, or in its stage."""
    bringup_s = (snapshot.now - worker.created_at).total_seconds()
    code = STAGE_SPECS[worker.stage].overdue
    if worker.waiting_on is WaitingOn.CAPACITY:
        code = FailureCode.NO_CAPACITY
    cause = ExitCause.BUDGET if worker.waiting_on is WaitingOn.BUDGET else ExitCause.SPAWN_FAILED
    if worker.pod_id is None and worker.failure_code in NEVER_CREATED:
        code, why = worker.failure_code, f"the provider will not rent: {worker.waiting_for}"
    elif bringup_s >= policy.spawning_timeout_s + (WATCHDOG_SLACK_S if worker.id in snapshot.bringing_up else 0):
        why = f"still {worker.stage} after {bringup_s:.0f} s, SPAWNING_TIMEOUT_SEC={policy.spawning_timeout_s:g}"
    elif snapshot.now >= worker.deadline_at + timedelta(seconds=WATCHDOG_SLACK_S):
        why = f"stage {worker.stage} passed its deadline {worker.deadline_at:%H:%M:%S}"
    else:
        return None
    return Terminate(worker.id, State.SPAWNING, cause, code, why)


def _ready(worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy) -> Action | None:
    wish = rollout.end(worker, snapshot, policy) or _operators_wish(worker)
    if wish:
        return wish
    fate = _fate(worker, pod, ExitCause.POD_LOST, snapshot, policy)
    if fate:
        return fate
    beat = worker.last_heartbeat or worker.state_since
    heard = max(beat, snapshot.knocked.get(worker.id, beat))
    patient = snapshot.window.back(policy.heartbeat_timeout_s, snapshot.now)
    if patient and heard < patient:
        silent_s = (snapshot.now - heard).total_seconds()
        why = f"no heartbeat for {silent_s:.0f} s, HEARTBEAT_TIMEOUT_SEC={policy.heartbeat_timeout_s:g}"
        if pod is not None and pod.status in DEAD:  # silence confirms what even a single list says
            why = f"the provider says {pod.status}; {why}"
            return Terminate(worker.id, worker.state, ExitCause.POD_LOST, DEAD[pod.status], why)
        return Terminate(worker.id, worker.state, ExitCause.HEARTBEAT_LOST, FailureCode.NO_HEARTBEAT, why)
    unfit = fitness.end(worker, snapshot, policy)
    if unfit:
        return unfit
    settled = _settled(worker, snapshot, policy)
    return _stuck(worker, snapshot, policy) or settled or _oddly_listed(worker, pod, snapshot, policy)


def _oddly_listed(worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy) -> Wait | None:
    """A remark in the row while the lists show less than they should, and its end: nothing is done about either."""
    gone = snapshot.absent.get(worker.pod_id or worker.id)
    odd = None
    if pod is None and gone is not None:
        odd = (
            f"its pod, which the lists of RunPod have not shown since {gone.since:%H:%M:%S}: "
            f"declared missing after {policy.absence_age_s:g} s of such lists"
        )
    elif pod is not None and not pod.has_runtime:
        odd = f"its pod's runtime, which the list of RunPod does not show: {pod.status}"
    if odd and worker.waiting_on is not WaitingOn.PROVIDER:
        return Wait(worker.id, worker.state, WaitingOn.PROVIDER, odd, 0, policy.heartbeat_timeout_s)
    if not odd and pod is not None and worker.waiting_on is WaitingOn.PROVIDER:
        return Wait(worker.id, worker.state, WaitingOn.WORKER, "tasks", 0, policy.heartbeat_timeout_s)
    return None


def _stuck(worker: Worker, snapshot: Snapshot, policy: Policy) -> Terminate | None:
    """The end of a worker whose task stands still although its heartbeat lives; progress comes through our own door."""
    if worker.progress_at is None or not worker.tasks_running:
        return None
    patient = snapshot.window.back(policy.task_stuck_s, snapshot.now)
    if patient is None or worker.progress_at > patient:
        return None
    still_s = (snapshot.now - worker.progress_at).total_seconds()
    why = (
        f"task {worker.slowest_task} made no progress for {still_s:.0f} s, "
        f"TASK_STUCK_TIMEOUT_SEC={policy.task_stuck_s:g}"
    )
    return Terminate(worker.id, worker.state, ExitCause.TASK_STUCK, None, why)


def _settled(worker: Worker, snapshot: Snapshot, policy: Policy) -> SetActivity | None:
    """What it holds tells whether it is idle, of the user's own program, and of an agent that does not say so itself.

    That one beats, and asks for no work, or gets no answer: it must not cost more than an idle one does.
    """
    if worker.own_program and worker.state is State.IDLE and worker.tasks_running:
        return SetActivity(worker.id, State.IDLE, State.ACTIVE, f"holds {worker.tasks_running} task(s)")
    empty_s = (snapshot.now - (worker.empty_since or worker.state_since)).total_seconds()
    grace_s = policy.scale_down_grace_s if worker.own_program else UNASKED_S
    if worker.state is State.ACTIVE and not worker.tasks_running and empty_s >= grace_s:
        return SetActivity(worker.id, State.ACTIVE, State.IDLE, f"held no task for {empty_s:.0f} s")
    return None


def _terminating(worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy) -> Action | None:
    if worker.stage is Stage.DELETING:
        return _deleting(worker, pod, snapshot, policy)
    here_s = (snapshot.now - worker.state_since).total_seconds()
    failed = worker.exit_cause in FAILURES or worker.stop_requested_at is not None
    if worker.stage is not Stage.FLUSHING:
        if worker.tasks_running and not failed and here_s < policy.drain_grace_s:
            return None
        why = f"{worker.exit_cause}: nothing to wait for" if failed else f"nothing left to finish after {here_s:.0f} s"
        return _flush(worker, pod, snapshot, policy, why)
    return _flushing(worker, pod, snapshot, policy)


def _flushing(worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy) -> Flush | None:
    if snapshot.now < worker.next_attempt_at:
        return None
    flushing_s = (snapshot.now - worker.stage_since).total_seconds()
    if flushing_s >= policy.flush_deadline_s:
        final = flushing_s >= UNDECLARED_S
        return Flush(worker.id, False, f"logs still not shipped after {flushing_s:.0f} s", final)
    tries = int(worker.metadata.get(UNREACHED) or 0)
    if tries >= UNREACHED_TRIES and flushing_s >= UNREACHED_S:
        return Flush(worker.id, False, f"{tries} tries in {flushing_s:.0f} s reached nobody at its pod")
    return _flush(worker, pod, snapshot, policy, "flush again")


def _flush(worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy, why: str) -> Flush | None:
    """Flush, unless only a pod list can tell whether the pod belongs to this database."""
    if snapshot.pods is None:
        return Flush(worker.id, _was_met(worker), why) if _asked_for_here(worker, snapshot) else None
    return Flush(worker.id, _was_met(worker) and _may_run(worker, pod, snapshot, policy), why)


def _deleting(worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy) -> Action | None:
    sent = worker.waiting_on is WaitingOn.PROVIDER
    unlisted = snapshot.pods is None
    if not sent and worker.pod_id is not None and snapshot.now < worker.next_attempt_at:
        return None
    if pod is not None:
        if sent and snapshot.now < worker.next_attempt_at:
            return _still_listed(worker, snapshot, policy)
        return Delete(worker.id, pod.id, "still listed after the delete" if sent else "its work is done")
    strange = any(pod.id == worker.pod_id for pod in snapshot.strangers)  # the row is a copy of another database's
    if worker.pod_id is not None and not sent and not strange and (not unlisted or _asked_for_here(worker, snapshot)):
        why = "no list of pods; deleted all the same" if unlisted else "not listed; deleted all the same"
        return Delete(worker.id, worker.pod_id, why)
    if worker.pod_id is None and worker.failure_code in NEVER_CREATED:
        return MarkTerminated(worker.id, f"no pod was ever created ({worker.failure_code})")
    outlived = worker.metadata.get(DELETES) or STILL_LISTED in (worker.waiting_for or "")
    deleted_age_s = policy.absence_age_s if outlived else DELETED_AGE_S
    age_s = deleted_age_s if worker.pod_id else LISTING_LAG_S
    asked_at = _asked_at(worker, policy) if sent else worker.created_at
    gone = _absent(worker, snapshot, age_s, asked_at)
    return MarkTerminated(worker.id, "two complete lists do not show its pod") if gone else None


def _asked_at(worker: Worker, policy: Policy) -> datetime:
    """When the last delete was answered."""
    return worker.next_attempt_at - timedelta(seconds=policy.delete_retry_s)


def _still_listed(worker: Worker, snapshot: Snapshot, policy: Policy) -> Wait | None:
    """Once after each delete that was accepted, a remark that the pod is there all the same."""
    left_s = (worker.next_attempt_at - snapshot.now).total_seconds()
    asked_at = _asked_at(worker, policy)
    if left_s > policy.delete_retry_s - LISTED_S or STILL_LISTED in (worker.waiting_for or ""):
        return None
    said = f"{worker.waiting_for}: the delete was answered, and {STILL_LISTED} {asked_at:%H:%M:%S}"
    return Wait(worker.id, State.TERMINATING, WaitingOn.PROVIDER, said, left_s, policy.drain_grace_s)


def _operators_wish(worker: Worker) -> Terminate | None:
    if worker.drain_requested_at is None:
        return None
    no_pod = FailureCode.INTENT_STALE if worker.stage is Stage.INTENT else None
    return Terminate(worker.id, worker.state, ExitCause.MANUAL, no_pod, "an operator asked for it")


def _fate(worker: Worker, pod: Pod | None, cause: ExitCause, snapshot: Snapshot, policy: Policy) -> Terminate | None:
    """The end of a worker whose pod is lost, if it provably is."""
    if pod is not None:
        code = DEAD.get(pod.status)
        if code is None or not _ended(worker, pod, snapshot, policy):
            return None
        return Terminate(worker.id, worker.state, cause, code, f"the provider says {pod.status}")
    if not _absent(worker, snapshot, policy.absence_age_s, worker.created_at):
        return None
    gone = snapshot.absent[worker.pod_id or worker.id]
    if _may_speak(worker, gone.since, snapshot, policy):
        return None
    why = f"pod {worker.pod_id} is missing from complete lists"
    return Terminate(worker.id, worker.state, cause, FailureCode.POD_MISSING, why, gone.shown or gone.since)


def _ended(worker: Worker, pod: Pod, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether a pod that a list shows as ended has ended: one list may be wrong about a worker that is heard.

    A worker that never sent a heartbeat has nothing that speaks against the list.
    """
    if worker.last_heartbeat is None:
        return True
    ended = snapshot.exited.get(pod.id)
    if ended is None or ended.lists == 1 or ended.watched_s < policy.absence_age_s:
        return False
    return not _may_speak(worker, ended.since, snapshot, policy)


def _absent(worker: Worker, snapshot: Snapshot, age_s: float, after: datetime) -> bool:
    """Whether complete lists lack its pod, for so long since `after`: before a delete they prove nothing of it.

    A list that is old proves nothing of now: then the next one decides.
    """
    gone = snapshot.absent.get(worker.pod_id or worker.id)
    if gone is None or (snapshot.now - gone.until).total_seconds() > fresh_for_s(len(snapshot.pods or ())):
        return False
    seen_s = min(gone.watched_s, (gone.until - max(gone.since, after)).total_seconds())
    return gone.lists > 1 and seen_s >= age_s


def _may_speak(worker: Worker, since: datetime, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether it was heard of after the lists began to say that its pod is lost: then they are wrong.

    While the next heartbeat of an idle one is not due yet, nobody knows. One that never sent any has none to send.
    """
    if worker.last_heartbeat is None:
        return False
    heard = max(worker.last_heartbeat, snapshot.knocked.get(worker.id, worker.last_heartbeat))
    if heard > since or worker.tasks_running or worker.state is State.TERMINATING:
        return heard > since
    due = snapshot.window.back(policy.heartbeat_timeout_s * BEAT_SHARE, snapshot.now)
    return due is None or heard >= due


def _was_met(worker: Worker) -> bool:
    """Whether there may be something to fetch: an agent was launched, or SSH once let us in and it was our pod."""
    return bool(worker.nonce or (worker.host_key and worker.failure_code not in NOT_OUR_POD))


def _asked_for_here(worker: Worker, snapshot: Snapshot) -> bool:
    """Whether the row itself says that this database's orchestrator asked for the pod.

    A copy of another database has rows that name the pods of that database. A list shows whose they are; without a
    list, only a row that this database has marked may lead to its pod.
    """
    known = snapshot.database_id is not None and worker.metadata.get(DATABASE) == snapshot.database_id
    return worker.pod_id is None or known


def _may_run(worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether the pod may run: a single list that lacks it, or shows it as ended, proves nothing.

    Its logs are declared lost when two lists agree for a while, or nobody answers at its address.
    """
    if pod is not None and pod.status not in DEAD:
        return pod.status is PodStatus.RUNNING
    if worker.failure_code in POD_GONE:
        return False
    if pod is not None:
        return not _ended(worker, pod, snapshot, policy)
    if worker.pod_id is None or not _asked_for_here(worker, snapshot):
        return False
    return not _absent(worker, snapshot, policy.absence_age_s, worker.created_at)


_STEPS = {State.SPAWNING: _spawning, State.ACTIVE: _ready, State.IDLE: _ready, State.TERMINATING: _terminating}
