"""The end of a worker: drain, flush its logs, delete its pod, and wait until the provider confirms that it is gone.

A draining node of a Slurm cluster waits for the jobs on it: its agent does not hold them as tasks
(core/clusters/leaving.py).
"""

from datetime import datetime, timedelta

from orchestrator.core.actions import Action, Delete, Flush, MarkTerminated, Wait
from orchestrator.core.cluster_states import LIVE_MEMBER, ClusterStatus
from orchestrator.core.exit_causes import ABRUPT
from orchestrator.core.failures import NEVER_CREATED, NOT_OUR_POD, FailureCode
from orchestrator.core.model import Snapshot, Worker
from orchestrator.core.pod_evidence import is_absent, is_ours, may_run
from orchestrator.core.pod_tracking import LISTING_LAG_S, created_by
from orchestrator.core.policy import Policy
from orchestrator.core.provider import Pod
from orchestrator.core.states import Stage, State, WaitingOn

LISTED_S = 4.0  # seconds for which a list may lag behind a delete; after that, the row gets a remark
UNDECLARED_S = 600.0  # after this, a flush that cannot even declare the logs lost no longer delays the delete
# After so many failed connections and so many seconds, the pod counts as unreachable, and its logs as lost.
UNREACHED_TRIES, UNREACHED_S = 3, 15.0
# absence after our delete: two lists and this age, or the usual age if a list has been wrong about the pod
DELETED_AGE_S = 2.0
WITH_JOBS = frozenset({ClusterStatus.RUNNING, ClusterStatus.DEGRADED, ClusterStatus.DELETING})
STILL_LISTED = "it is still listed since"  # part of `waiting_for` of a deleting row
# The same, if its pod is not known.
SEARCHED = f"RunPod's confirmation that no pod has its name, over {LISTING_LAG_S:.0f} s"


def next_step(worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy) -> Action | None:
    if worker.stage is Stage.DELETING:
        return _deleting(worker, pod, snapshot, policy)
    here_s = (snapshot.now - worker.state_since).total_seconds()
    failed = worker.exit_cause in ABRUPT or worker.stop_requested_at is not None
    if worker.stage is not Stage.FLUSHING:
        is_busy = worker.tasks_running or serves_jobs(worker, snapshot)
        if is_busy and not failed and here_s < policy.drain_grace_s:
            return None
        why = f"{worker.exit_cause}: nothing to wait for" if failed else f"nothing left to finish after {here_s:.0f} s"
        return _flush(worker, pod, snapshot, policy, why)
    return _flushing(worker, pod, snapshot, policy)


def serves_jobs(worker: Worker, snapshot: Snapshot) -> bool:
    """Whether jobs may run on a draining node of a Slurm cluster, which its cluster has not removed yet.

    The jobs of the controller's own agent are its tasks. It serves other nodes as long as one of them drains.
    """
    need = next((one for one in snapshot.clusters if one.id == worker.cluster), None)
    if need is None or need.status not in WITH_JOBS or need.members.get(worker.id) not in LIVE_MEMBER:
        return False
    if worker.id != need.controller:
        return need.controller is not None
    others = (one for one in snapshot.workers if one.cluster == need.id and one.id != worker.id)
    return any(one.stage is Stage.DRAINING and need.members.get(one.id) in LIVE_MEMBER for one in others)


def _flushing(worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy) -> Flush | None:
    if snapshot.now < worker.next_attempt_at:
        return None
    flushing_s = (snapshot.now - worker.stage_since).total_seconds()
    if flushing_s >= policy.flush_deadline_s:
        final = flushing_s >= UNDECLARED_S
        return Flush(worker.id, False, f"logs still not shipped after {flushing_s:.0f} s", final)
    tries = worker.metadata.unreached
    if tries >= UNREACHED_TRIES and flushing_s >= UNREACHED_S:
        return Flush(worker.id, False, f"{tries} connections to its pod failed within {flushing_s:.0f} s")
    return _flush(worker, pod, snapshot, policy, "flush again")


def _flush(worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy, why: str) -> Flush | None:
    """Return a flush, unless only a pod list can show whether the pod belongs to this database."""
    if snapshot.pods is None:
        return Flush(worker.id, _may_have_logs(worker), why) if is_ours(worker, snapshot) else None
    return Flush(worker.id, _may_have_logs(worker) and may_run(worker, pod, snapshot, policy), why)


def _deleting(worker: Worker, pod: Pod | None, snapshot: Snapshot, policy: Policy) -> Action | None:
    sent = _is_sent(worker)
    unlisted = snapshot.pods is None
    if not sent and worker.pod_id is not None and snapshot.now < worker.next_attempt_at:
        return None
    if pod is not None:
        if sent and snapshot.now < worker.next_attempt_at:
            return _still_listed(worker, snapshot, policy)
        return Delete(worker.id, pod.id, "still listed after the delete" if sent else _ended_by(worker))
    # A row that names a foreign pod was copied from another database.
    is_foreign = any(pod.id == worker.pod_id for pod in snapshot.foreign_pods)
    if worker.pod_id is not None and not sent and not is_foreign and (not unlisted or is_ours(worker, snapshot)):
        because = "RunPod's pod list is unavailable" if unlisted else "RunPod does not list it"
        return Delete(worker.id, worker.pod_id, f"deleted although {because}", listed=unlisted)
    if worker.pod_id is None and worker.failure_code in NEVER_CREATED:
        return MarkTerminated(worker.id, f"no pod was ever created ({worker.failure_code})")
    return _confirmed(worker, snapshot, policy)


def _ended_by(worker: Worker) -> str:
    if worker.failure_code is FailureCode.SETUP_FAILED:
        return "its set-up failed"
    return f"it failed ({worker.failure_code})" if worker.failure_code else "its work is done"


def _confirmed(worker: Worker, snapshot: Snapshot, policy: Policy) -> MarkTerminated | Wait | None:
    """Return the end of a row whose pod is listed no more, or has never been listed."""
    outlived = worker.metadata.deletes or STILL_LISTED in (worker.waiting_for or "")
    deleted_age_s = policy.absence_age_s if outlived else DELETED_AGE_S
    age_s = deleted_age_s if worker.pod_id else LISTING_LAG_S
    asked_at = _delete_answered_at(worker, policy) if _is_sent(worker) else created_by(worker)
    if not is_absent(worker, snapshot, age_s, asked_at):
        return _searched(worker, snapshot)
    return MarkTerminated(worker.id, "RunPod confirms that the pod is gone")


def _is_sent(worker: Worker) -> bool:
    """Whether the provider has accepted the delete."""
    return worker.pod_id is not None and worker.waiting_on is WaitingOn.PROVIDER


def _delete_answered_at(worker: Worker, policy: Policy) -> datetime:
    """Return when the last delete was answered."""
    return worker.next_attempt_at - timedelta(seconds=policy.delete_retry_s)


def _searched(worker: Worker, snapshot: Snapshot) -> Wait | None:
    """Record that a pod whose id is not known may still be listed. A new leader searches again for the whole time."""
    is_recorded = worker.waiting_for == SEARCHED and snapshot.now < worker.deadline_at
    if worker.pod_id is not None or is_recorded:
        return None
    deadline_s = LISTING_LAG_S + DELETED_AGE_S
    return Wait(worker.id, State.TERMINATING, WaitingOn.PROVIDER, SEARCHED, 0, deadline_s)


def _still_listed(worker: Worker, snapshot: Snapshot, policy: Policy) -> Wait | None:
    """Record once after each accepted delete that the pod is still listed."""
    left_s = (worker.next_attempt_at - snapshot.now).total_seconds()
    asked_at = _delete_answered_at(worker, policy)
    if left_s > policy.delete_retry_s - LISTED_S or STILL_LISTED in (worker.waiting_for or ""):
        return None
    waits_for = f"{worker.waiting_for}: the delete was answered, and {STILL_LISTED} {asked_at:%H:%M:%S}"
    return Wait(worker.id, State.TERMINATING, WaitingOn.PROVIDER, waits_for, left_s, policy.drain_grace_s)


def _may_have_logs(worker: Worker) -> bool:
    """Whether the pod may have logs: an agent was launched, or SSH reached the pod before."""
    return bool(worker.nonce or (worker.host_key and worker.failure_code not in NOT_OUR_POD))
