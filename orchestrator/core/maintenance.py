"""Maintenance jobs: what a command may do that holds the lease while no orchestrator runs. It only ends things.

It observes and plans like the loop, and executes the part of the loop's plan that belongs to the job. The next leader
continues from there, as after any change of leader.
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
from orchestrator.core.model import Snapshot
from orchestrator.core.policy import Policy

ORPHAN_GRACE_S = 2.0  # time for a second list; a pod's row always exists before the pod is created
FOLLOWING = (UpdateAddress, Flush, Delete, MarkTerminated, Rescue)  # the remaining steps of an end that has begun


class MaintenanceJob(StrEnum):
    """What the operator asked for."""

    END_ALL = "end every worker and pod"
    DELETE_ORPHANS = "delete the pods that no worker names"
    END_WORKERS_WITHOUT_POD = "end the workers whose pods are gone"


def plan(job: MaintenanceJob, snapshot: Snapshot, policy: Policy) -> Plan:
    """Return the part of the loop's plan that belongs to the job, without decisions on sizes."""
    made = loop.plan(snapshot, replace(policy, orphan_grace_s=ORPHAN_GRACE_S))
    return Plan(tuple(action for action in made.actions if _belongs(job, action)), ())


def _belongs(job: MaintenanceJob, action: Action) -> bool:
    match job:
        case MaintenanceJob.END_ALL:
            asked = isinstance(action, Terminate) and action.cause is ExitCause.MANUAL
            return asked or isinstance(action, (*FOLLOWING, DeleteOrphan))
        case MaintenanceJob.DELETE_ORPHANS:
            return isinstance(action, DeleteOrphan)
        case MaintenanceJob.END_WORKERS_WITHOUT_POD:
            lost = isinstance(action, Terminate) and action.code in POD_GONE
            return lost or isinstance(action, FOLLOWING)
