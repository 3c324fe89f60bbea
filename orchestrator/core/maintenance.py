"""What a command may do that leads for an operator's errand, while no orchestrator does: ends, never beginnings.

It observes and thinks as the loop does, and carries out the part of the loop's own plan that the errand is about. What
it leaves is there for the next leader, as after any other change of lead.
"""

from dataclasses import replace
from enum import StrEnum

from orchestrator.core import plan as loop
from orchestrator.core.actions import (
    Action,
    Delete,
    DeleteOrphan,
    Flush,
    MarkTerminated,
    Plan,
    Rescue,
    Terminate,
    UpdateAddress,
)
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import POD_GONE
from orchestrator.core.model import Policy, Snapshot

ORPHAN_GRACE_S = 2.0  # a second list; the operator has asked, and a pod's row is there before the pod is asked for
FOLLOWING = (UpdateAddress, Flush, Delete, MarkTerminated, Rescue)  # the rest of an end that has begun


class MaintenanceJob(StrEnum):
    """What an operator wants done."""

    END_ALL = "end every worker and pod"
    REAP = "delete the pods that no worker names"
    FORGET = "end the workers whose pods are gone"


def plan(job: MaintenanceJob, snapshot: Snapshot, policy: Policy) -> Plan:
    """The loop's plan, without what the errand is not about; no decision on sizes is made."""
    made = loop.plan(snapshot, replace(policy, orphan_grace_s=ORPHAN_GRACE_S))
    return Plan(tuple(action for action in made.actions if _belongs(job, action)), ())


def _belongs(job: MaintenanceJob, action: Action) -> bool:
    match job:
        case MaintenanceJob.END_ALL:
            asked = isinstance(action, Terminate) and action.cause is ExitCause.MANUAL
            return asked or isinstance(action, (*FOLLOWING, DeleteOrphan))
        case MaintenanceJob.REAP:
            return isinstance(action, DeleteOrphan)
        case MaintenanceJob.FORGET:
            lost = isinstance(action, Terminate) and action.code in POD_GONE
            return lost or isinstance(action, FOLLOWING)
