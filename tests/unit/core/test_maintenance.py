"""The actions of a command that leads for one maintenance job."""

from dataclasses import replace

from orchestrator.core import maintenance
from orchestrator.core.actions import Delete, DeleteOrphan, Flush, Spawn, Terminate
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.maintenance import MaintenanceJob
from orchestrator.core.plan import plan
from orchestrator.core.states import Stage
from tests.unit.core.build import absent, ago, idle, pod_of, policy, snapshot, spawning, terminating, worker

STRAY = replace(pod_of(worker("gpu-9")), id="stray")


def _kinds(job: MaintenanceJob, *workers: object, **changes: object) -> list[type]:
    seen = snapshot(*workers, **changes)  # type: ignore[arg-type]
    return [type(action) for action in maintenance.plan(job, seen, policy()).actions]


def test_no_maintenance_job_spawns_brings_up_or_sizes_the_fleet() -> None:
    """Where the loop itself would spawn and bring up."""
    seen = snapshot(spawning("gpu-1"), claimable=20)
    assert any(isinstance(action, Spawn) for action in plan(seen, policy()).actions)
    for job in MaintenanceJob:
        made = maintenance.plan(job, seen, policy())
        assert (made.actions, made.decisions) == ((), ())


def test_ending_all_ends_what_was_asked_to_end_and_no_other() -> None:
    """A silent worker, or one idle for too long, is the next leader's business."""
    asked = worker("gpu-1", drain_requested_at=ago(1), stop_requested_at=ago(1))
    seen = snapshot(asked, worker("gpu-2", last_heartbeat=ago(500)), idle("gpu-3", 9_000))
    [action] = maintenance.plan(MaintenanceJob.END_ALL, seen, policy()).actions
    assert isinstance(action, Terminate)
    assert (action.worker_id, action.cause) == ("gpu-1", ExitCause.MANUAL)


def test_a_started_termination_continues() -> None:
    """Through flush and delete, as in the loop."""
    begun = terminating("gpu-1", stop_requested_at=ago(1))
    assert _kinds(MaintenanceJob.END_ALL, begun) == [Flush]
    deleting = terminating("gpu-1", stage=Stage.DELETING, waiting_on="orchestrator")
    assert _kinds(MaintenanceJob.END_ALL, deleting) == [Delete]
    assert _kinds(MaintenanceJob.DELETE_ORPHANS, begun) == []


def test_orphans_are_deleted_after_a_short_grace() -> None:
    """The operator has asked; a pod of a live worker is never one."""
    pods = (pod_of(worker("gpu-1")), STRAY)
    seen = {"pods": pods, "orphan_since": {"stray": ago(maintenance.ORPHAN_GRACE_S)}}
    assert _kinds(MaintenanceJob.DELETE_ORPHANS, worker("gpu-1"), **seen) == [DeleteOrphan]
    assert _kinds(MaintenanceJob.END_WORKERS_WITHOUT_POD, worker("gpu-1"), **seen) == []
    seen["orphan_since"] = {"stray": ago(maintenance.ORPHAN_GRACE_S - 1)}
    assert _kinds(MaintenanceJob.DELETE_ORPHANS, worker("gpu-1"), **seen) == []


def test_only_workers_whose_pods_are_confirmed_absent_end() -> None:
    """Two complete lists and an age, as in the loop."""
    lost = worker("gpu-1", last_heartbeat=ago(60))
    seen = snapshot(lost, worker("gpu-2", last_heartbeat=ago(500)), pods=(), absent={"pod-gpu-1": absent(30)})
    [action] = maintenance.plan(MaintenanceJob.END_WORKERS_WITHOUT_POD, seen, policy()).actions
    assert isinstance(action, Terminate)
    assert (action.worker_id, action.code) == ("gpu-1", FailureCode.POD_MISSING)
    gone = snapshot(lost, pods=(), absent={"pod-gpu-1": absent(5)})
    assert maintenance.plan(MaintenanceJob.END_WORKERS_WITHOUT_POD, gone, policy()).actions == ()
