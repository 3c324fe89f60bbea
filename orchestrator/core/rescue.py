"""Rescue: tasks of silent workers are queued again when their lease expires. The attempt counts."""

from orchestrator.core.actions import Rescue
from orchestrator.core.model import Policy, Snapshot
from orchestrator.core.plurals import counted


def plan(snapshot: Snapshot, policy: Policy) -> list[Rescue]:
    """Return a rescue of expired leases. Only leases count that the agent could have renewed for a whole lease time."""
    observed_since = snapshot.window.back(policy.heartbeat_timeout_s, snapshot.now)
    if not snapshot.expired_leases or observed_since is None:
        return []
    gap_s = (snapshot.now - observed_since).total_seconds() - policy.heartbeat_timeout_s
    return [Rescue(f"{counted(snapshot.expired_leases, 'task lease')} expired without a heartbeat", gap_s)]
