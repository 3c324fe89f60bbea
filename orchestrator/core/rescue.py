"""Tasks of workers that fell silent: their lease ends, and they are queued again with the attempt counted."""

from orchestrator.core.actions import Rescue
from orchestrator.core.model import Policy, Snapshot


def plan(snapshot: Snapshot, policy: Policy) -> list[Rescue]:
    """A rescue when leases are over: of those that somebody has had all the time of a lease to renew, and did not."""
    heard = snapshot.window.back(policy.heartbeat_timeout_s, snapshot.now)
    if not snapshot.expired_leases or heard is None:
        return []
    deaf_s = (snapshot.now - heard).total_seconds() - policy.heartbeat_timeout_s
    return [Rescue(f"{snapshot.expired_leases} task lease(s) over for want of a heartbeat", deaf_s)]
