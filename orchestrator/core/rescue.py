"""Tasks of workers that fell silent: their lease ends, and they are queued again with the attempt counted."""

from datetime import timedelta

from orchestrator.core.actions import Rescue
from orchestrator.core.model import Policy, Snapshot


def plan(snapshot: Snapshot, policy: Policy) -> list[Rescue]:
    """A rescue when leases are over, unless we were away ourselves: agents renew them through our own door."""
    listened_for = snapshot.now - snapshot.steady_since
    if not snapshot.expired_leases or listened_for < timedelta(seconds=policy.heartbeat_timeout_s):
        return []
    return [Rescue(f"{snapshot.expired_leases} task lease(s) over for want of a heartbeat")]
