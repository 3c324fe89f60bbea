"""Orphans: pods of this fleet without a live row, for example after a late reply to a create call.

The fleet id in the pod's environment shows the owner. A pod without this id is never deleted, even if its name is like
ours.
"""

from collections import Counter
from datetime import timedelta

from orchestrator.core.actions import DeleteOrphan
from orchestrator.core.model import Snapshot
from orchestrator.core.policy import Policy


def plan(snapshot: Snapshot, policy: Policy) -> list[DeleteOrphan]:
    """Return the deletes of orphans after their grace period, and at once of a worker's second pod."""
    deletes = []
    pods_of = {w.id: w.pod_id for w in snapshot.workers}
    copies = Counter(pod.worker_id for pod in snapshot.pods or () if pod.fleet_id == policy.fleet_id)
    for pod in snapshot.pods or ():
        if pod.fleet_id != policy.fleet_id or pod.id in snapshot.in_flight:
            continue
        since = snapshot.orphan_since.get(pod.id)
        own = pods_of.get(pod.worker_id or "")
        if since is not None and snapshot.now - since >= timedelta(seconds=policy.orphan_grace_s):
            age_s = (snapshot.now - since).total_seconds()
            why = f"no live worker names it for {age_s:.0f} s (its env says {pod.worker_id})"
            deletes.append(DeleteOrphan(pod.id, why))
        elif own is not None and own != pod.id and copies[pod.worker_id] > 1:
            why = f"worker {pod.worker_id} has pod {own}; this one came from a repeated create"
            deletes.append(DeleteOrphan(pod.id, why))
    return deletes
