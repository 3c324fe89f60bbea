"""Rescue: tasks of silent workers are queued again when their lease expires. The attempt counts."""

from datetime import datetime, timedelta

from orchestrator.core.actions import Rescue
from orchestrator.core.model import Snapshot, Worker
from orchestrator.core.plurals import counted
from orchestrator.core.policy import Policy
from orchestrator.core.silence import Silences


def plan(snapshot: Snapshot, policy: Policy) -> list[Rescue]:
    """Return a rescue of expired leases. Only leases count that the agent could have renewed for a whole lease time.

    While a busy worker calls and gets no answer, nothing is rescued, because its tasks continue. Either its calls do
    not reach the gateway, or the gateway has no connection to the database. The end of a worker rescues its own tasks.
    """
    observed_since = snapshot.window.back(policy.heartbeat_timeout_s, snapshot.now)
    if not snapshot.expired_leases or observed_since is None:
        return []
    if any(_is_unanswered(worker, observed_since, snapshot, policy) for worker in snapshot.workers):
        return []
    if Silences(snapshot, policy).keeps_tasks():
        return []
    gap_s = (snapshot.now - observed_since).total_seconds() - policy.heartbeat_timeout_s
    return [Rescue(f"{counted(snapshot.expired_leases, 'task lease')} expired without a heartbeat", gap_s)]


def _is_unanswered(worker: Worker, observed_since: datetime, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether its tasks' leases are over although it calls. An agent without an answer ends after `deadman_s`."""
    beat, called_at = worker.last_heartbeat, snapshot.unanswered_at.get(worker.id)
    if not worker.tasks_running or beat is None or called_at is None:
        return False
    return snapshot.now - timedelta(seconds=policy.deadman_s) < beat < observed_since <= called_at
