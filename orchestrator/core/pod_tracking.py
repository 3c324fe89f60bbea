"""What successive complete pod lists show. A pod counts as absent after two lists and an age, as orphan after an age.

A single list is not enough: RunPod's lists lag behind creates by seconds, and a pod can be missing from one list.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import ceil

from orchestrator.core.failures import FailureCode
from orchestrator.core.model import Absence, Worker
from orchestrator.core.provider import Pod, PodStatus
from orchestrator.core.states import Stage, State

PAGE_PODS = 100  # RunPod's page size
FRESH_S = 10.0  # per page
ENDED = frozenset({PodStatus.EXITED, PodStatus.TERMINATED, PodStatus.ERROR})
LISTING_LAG_S = 60.0  # a pod that was never listed may still appear for this long after the create call
UNLISTED_ORPHAN_S = 900.0  # an orphan that some lists do not show is the same one for this long
FRESH = frozenset({Stage.INTENT, Stage.POD_CREATED, Stage.POD_RUNNING})  # a pod in a later stage was listed before


@dataclass(frozen=True, slots=True)
class PodTracker:
    """The memory between ticks. It is empty after a restart; then absence needs two more lists."""

    absent: Mapping[str, Absence] = field(default_factory=dict)
    orphan_since: Mapping[str, datetime] = field(default_factory=dict)
    seen: Mapping[str, datetime] = field(default_factory=dict)  # pod id of a live row -> the last list with the pod
    ended: Mapping[str, Absence] = field(default_factory=dict)  # pod id -> for how long lists have shown it as ended
    unlisted_orphans: Mapping[str, datetime] = field(default_factory=dict)  # not shown as such by the last list


def fresh_for_s(pods: int) -> float:
    """Return the greatest age of a list with so many pods that can still show an absence."""
    return FRESH_S * max(1, ceil(pods / PAGE_PODS))


def fold(
    before: PodTracker, pods: Iterable[Pod], workers: Iterable[Worker], fleet_id: str, now: datetime
) -> PodTracker:
    """Update `before` with one more complete list."""
    listed = tuple(pods)
    rows = tuple(workers)
    fresh_s = fresh_for_s(len(listed))
    present = {pod.id for pod in listed}
    names = {pod.worker_id for pod in listed if pod.fleet_id == fleet_id}
    names |= {pod.name for pod in listed if pod.owner_unknown}  # possibly the pod of a lost reply
    seen = {w.pod_id: now if w.pod_id in present else before.seen.get(w.pod_id) for w in rows if w.pod_id}
    shown = {pod_id: at for pod_id, at in seen.items() if at is not None}
    absent: dict[str, Absence] = {}
    for worker in rows:
        missing = worker.pod_id not in present if worker.pod_id else worker.id not in names
        counts = worker.pod_id in shown if worker.pod_id else True
        born = created_by(worker)
        if missing and (counts or now - born > timedelta(seconds=LISTING_LAG_S)):
            key = worker.pod_id or worker.id
            absent[key] = replace(_longer(before.absent.get(key), now, fresh_s), shown=shown.get(key))
    owned = {worker.pod_id or worker.id for worker in rows}
    known = {**before.unlisted_orphans, **before.orphan_since}
    orphans = {
        pod.id: known.get(pod.id, now)
        for pod in listed
        if pod.fleet_id == fleet_id and pod.id not in owned and pod.worker_id not in owned
    }
    recent = now - timedelta(seconds=UNLISTED_ORPHAN_S)
    unlisted = {pod_id: since for pod_id, since in known.items() if pod_id not in present and since > recent}
    unread = {pod.id for pod in listed if pod.owner_unknown and pod.id not in owned}  # present, possibly still orphans
    unlisted |= {pod_id: since for pod_id, since in known.items() if pod_id in unread}
    ended = {pod.id: _longer(before.ended.get(pod.id), now, fresh_s) for pod in listed if pod.status in ENDED}
    return PodTracker(absent, orphans, shown, ended, unlisted)


def created_by(worker: Worker) -> datetime:
    """Return the latest time at which its pod can have been created. The intent may have waited for minutes before.

    A worker that ends without an SSH address may have ended right after the create call. If the call got no clear
    answer, bring-up has already looked for the pod.
    """
    if worker.stage in FRESH:
        return worker.stage_since
    if worker.state is State.TERMINATING and worker.ssh_host is None:
        looked_s = LISTING_LAG_S if worker.failure_code is FailureCode.CREATE_UNKNOWN else 0
        return worker.state_since - timedelta(seconds=looked_s)
    return worker.created_at


def _longer(earlier: Absence | None, now: datetime, fresh_s: float) -> Absence:
    """Extend `earlier` by one more list."""
    if earlier is None:
        return Absence(1, now, now, 0)
    watched_s = earlier.watched_s + min((now - earlier.until).total_seconds(), fresh_s)
    return Absence(earlier.lists + 1, earlier.since, now, watched_s)
