"""What the provider's lists prove about a worker's pod. One list may be wrong, so a single one proves little."""

from datetime import datetime

from orchestrator.core.actions import Terminate
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import POD_GONE, FailureCode
from orchestrator.core.model import Snapshot, Worker
from orchestrator.core.pod_tracking import fresh_for_s
from orchestrator.core.policy import Policy
from orchestrator.core.provider import Pod, PodStatus
from orchestrator.core.states import State

BEAT_SHARE = 0.4  # of the heartbeat timeout: an idle agent sends a heartbeat in each third of it, a busy one more often
DEAD = {
    PodStatus.EXITED: FailureCode.POD_EXITED,
    PodStatus.TERMINATED: FailureCode.POD_EXITED,
    PodStatus.ERROR: FailureCode.POD_ERROR,
}


def lost(worker: Worker, pod: Pod | None, cause: ExitCause, snapshot: Snapshot, policy: Policy) -> Terminate | None:
    """Return the end of a worker whose pod is certainly lost."""
    if pod is not None:
        code = DEAD.get(pod.status)
        if code is None or not has_ended(worker, pod, snapshot, policy):
            return None
        return Terminate(worker.id, worker.state, cause, code, f"the provider says {pod.status}")
    if not is_absent(worker, snapshot, policy.absence_age_s, worker.created_at):
        return None
    gone = snapshot.absent[worker.pod_id or worker.id]
    if _has_later_heartbeat(worker, gone.since, snapshot, policy):
        return None
    why = f"pod {worker.pod_id} is missing from complete lists"
    return Terminate(worker.id, worker.state, cause, FailureCode.POD_MISSING, why, gone.shown or gone.since)


def has_ended(worker: Worker, pod: Pod, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether a pod that a list shows as ended has ended: one list may be wrong about a worker with recent heartbeats.

    For a worker without any heartbeat, one list is enough.
    """
    if worker.last_heartbeat is None:
        return True
    ended = snapshot.exited.get(pod.id)
    if ended is None or ended.lists == 1 or ended.watched_s < policy.absence_age_s:
        return False
    return not _has_later_heartbeat(worker, ended.since, snapshot, policy)


def is_absent(worker: Worker, snapshot: Snapshot, age_s: float, after: datetime) -> bool:
    """Whether complete lists have lacked its pod for long enough since `after`, for example since the delete.

    An old list says nothing about now: then the next one decides.
    """
    gone = snapshot.absent.get(worker.pod_id or worker.id)
    if gone is None or (snapshot.now - gone.until).total_seconds() > fresh_for_s(len(snapshot.pods or ())):
        return False
    seen_s = min(gone.watched_s, (gone.until - max(gone.since, after)).total_seconds())
    return gone.lists > 1 and seen_s >= age_s


def may_run(worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether the pod may still run. A single list that lacks it, or shows it as ended, does not prove the opposite.

    The logs of a pod that cannot run are declared lost.
    """
    if pod is not None and pod.status not in DEAD:
        return pod.status is PodStatus.RUNNING
    if worker.failure_code in POD_GONE:
        return False
    if pod is not None:
        return not has_ended(worker, pod, snapshot, policy)
    if worker.pod_id is None or not is_ours(worker, snapshot):
        return False
    return not is_absent(worker, snapshot, policy.absence_age_s, worker.created_at)


def is_ours(worker: Worker, snapshot: Snapshot) -> bool:
    """Whether the row says that this database's orchestrator created the pod.

    In a copy of another database, rows name that database's pods. A list shows the owner of a pod. Without a list, only
    a row that this database has marked may be used to reach its pod.
    """
    known = snapshot.database_id is not None and worker.metadata.database_id == snapshot.database_id
    return worker.pod_id is None or known


def _has_later_heartbeat(worker: Worker, since: datetime, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether the worker sent a heartbeat after the lists began to show its pod as lost: then the lists are wrong.

    Until the next heartbeat of an idle worker is due, this is unknown. A worker without any heartbeat sends none.
    """
    if worker.last_heartbeat is None:
        return False
    last_contact = max(worker.last_heartbeat, snapshot.unanswered_at.get(worker.id, worker.last_heartbeat))
    if last_contact > since or worker.tasks_running or worker.state is State.TERMINATING:
        return last_contact > since
    due = snapshot.window.back(policy.heartbeat_timeout_s * BEAT_SHARE, snapshot.now)
    return due is None or last_contact >= due
