"""Runtime guards: which findings of an agent end its worker.

    C   the machine is at fault: the worker ends at once, its tasks are queued again and the attempt does not count, and
        its host gets a strike
    H   the agent claims nothing, so the worker is no capacity; if the finding lasts for LASTS_S, the worker finishes
        its tasks and is replaced. If workers of its release on several machines report it, and none of them has ever
        completed a task, the release is bad: the breaker opens
    M I shown only, as are unknown findings

Nothing follows from the findings of a worker whose last heartbeat is older than HEARTBEAT_TIMEOUT_SEC.

A C finding is a *fleet alarm* if more than half of the workers report it, in a fleet of at least ALARM_WORKERS.
Workers that ended because of it within the last WITHIN_S count too. Its cause is then more likely a driver, an image or
a defect of the agent than the machines, so no host gets a strike, and workers are replaced one at a time: the next one
when a worker that was promoted since then has been ready for WITHOUT_FINDING_S without this finding, or after PACE_S.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.core.actions import Terminate
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.findings import UNCHECKED, GuardFinding, Severity
from orchestrator.core.model import Snapshot, Worker
from orchestrator.core.policy import Policy
from orchestrator.core.states import READY, State

LASTS_S = 600.0  # of an H finding
ALARM_WORKERS = 4
WITHIN_S = 600.0
REMEMBERED_S = 3_600.0  # for how long the end of a worker counts against its release
PACE_S, WITHOUT_FINDING_S = 600.0, 60.0  # an agent asks nvidia-smi at least once in 60 s
GPU_ROWS = frozenset({11, 22, 23, 31})


@dataclass(frozen=True, slots=True)
class FleetAlarm:
    """A C finding that most workers of the fleet report."""

    code: str
    reporting: int  # workers that report it, or ended because of it within WITHIN_S
    workers: int  # all ready workers, and those that ended because of it
    last_end: datetime | None  # when a worker last ended because of it

    @property
    def text(self) -> str:
        """Why workers are replaced one at a time."""
        return f"{self.reporting} of {self.workers} workers report {self.code}: they are replaced one at a time"


def end(worker: Worker, snapshot: Snapshot, policy: Policy) -> Terminate | None:
    """Return the end of a ready worker because of its findings."""
    if not _has_recent_heartbeat(worker, snapshot, policy):
        return None
    critical = next((one for one in worker.findings if one.severity is Severity.REPLACE), None)
    if critical is not None:
        alarm = fleet_alarm(critical, snapshot)
        if alarm is None:
            return _fault(worker, critical, critical.text)
        if _is_next(worker, alarm, snapshot):
            return _fault(worker, critical, f"{critical.text}; {alarm.text}", in_alarm=True)
        return None
    ignored = (
        "STORE_UNREACHED" if snapshot.store_outage else None
    )  # no worker reaches it, so another one would not help
    blocking = (one for one in worker.findings if one.severity is Severity.BLOCK and one.code != ignored)
    lasting = (one for one in blocking if _lasts(one, worker, snapshot))
    return next((_sick(worker, one, snapshot) for one in lasting), None)


def fleet_alarm(finding: GuardFinding, snapshot: Snapshot) -> FleetAlarm | None:
    """Return the alarm if most workers of the fleet report this C finding."""
    ready = [one for one in snapshot.workers if one.state in READY]
    reporting = {one.id for one in ready if _reports(one, finding.code)}
    code = finding.guard.code if finding.guard else None
    ends = [one for one in snapshot.faults if one.failure_code == code]
    since = snapshot.now - timedelta(seconds=WITHIN_S)
    gone = {one.worker_id for one in ends if one.at > since} - {one.id for one in ready}
    workers, affected = len(ready) + len(gone), len(reporting) + len(gone)
    if workers < ALARM_WORKERS or 2 * affected <= workers:
        return None
    return FleetAlarm(finding.code, affected, workers, max((one.at for one in ends), default=None))


def _is_next(worker: Worker, alarm: FleetAlarm, snapshot: Snapshot) -> bool:
    """Whether this worker is the next one to be replaced."""
    reporting = (one.id for one in snapshot.workers if one.state in READY and _reports(one, alarm.code))
    if worker.id != min(reporting):
        return False
    last = alarm.last_end
    if last is None or snapshot.now - last >= timedelta(seconds=PACE_S):
        return True
    ready_since = snapshot.now - timedelta(seconds=WITHOUT_FINDING_S)
    return any(
        last <= one.stage_since <= ready_since and not _reports(one, alarm.code)
        for one in snapshot.workers
        if one.state in READY
    )


def _reports(worker: Worker, code: str) -> bool:
    return any(one.code == code and one.severity is Severity.REPLACE for one in worker.findings)


def _has_recent_heartbeat(worker: Worker, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether the findings in its row are recent."""
    last_heartbeat = worker.last_heartbeat
    return last_heartbeat is not None and snapshot.now - last_heartbeat <= timedelta(seconds=policy.heartbeat_timeout_s)


def _lasts(finding: GuardFinding, worker: Worker, snapshot: Snapshot) -> bool:
    since = reported_since(finding.since, worker, snapshot)
    if finding.code == UNCHECKED:  # the agent checks the driver as soon as no task runs, and reports the result
        since = worker.state_since if worker.state is State.IDLE and not worker.tasks_running else None
    return since is not None and snapshot.now - since >= timedelta(seconds=LASTS_S)


def reported_since(reported_at: datetime | None, worker: Worker, snapshot: Snapshot) -> datetime | None:
    """Return since when a worker is blocked, by its pod's clock; None if only a wrong clock says so.

    A time that is missing or in the future does not count. Such a worker claims nothing, so it was idle at least since
    it became idle: otherwise nothing would ever end it.
    """
    if reported_at is not None and reported_at <= snapshot.now:
        return max(reported_at, worker.created_at)
    return worker.state_since if worker.state is State.IDLE else None


def _fault(worker: Worker, finding: GuardFinding, why: str, *, in_alarm: bool = False) -> Terminate | None:
    if finding.guard is None or finding.guard.code is None:
        return None
    cause = ExitCause.GPU_FAULT if finding.guard.u in GPU_ROWS else ExitCause.HOST_FAULT
    return Terminate(worker.id, worker.state, cause, finding.guard.code, why, blames_host=not in_alarm)


def _sick(worker: Worker, finding: GuardFinding, snapshot: Snapshot) -> Terminate | None:
    """Return the end of a worker that finishes its tasks first."""
    if finding.guard is None or finding.guard.code is None:
        return None
    if _is_of_release(worker, finding.code, finding.guard.code, snapshot):
        why = f"{finding.text}; as on other machines, and no worker of its release works"
        return Terminate(worker.id, worker.state, ExitCause.RELEASE_BAD, finding.guard.code, why)
    cause = ExitCause.STALE_CODE if finding.guard.code is FailureCode.CODE_CHANGED else ExitCause.WORKER_SICK
    return Terminate(worker.id, worker.state, cause, finding.guard.code, f"{finding.text}; for {LASTS_S / 60:g} min")


def _is_of_release(worker: Worker, finding: str, code: FailureCode, snapshot: Snapshot) -> bool:
    """Whether no worker of the release has completed a task, and one on another machine has or had the same finding.

    A worker that holds a task could begin one, so its own machine is the cause, and it finishes the task.
    """
    release, since = (worker.pool, worker.release), snapshot.now - timedelta(seconds=REMEMBERED_S)
    known = {one.worker_id: one for one in snapshot.ended if (one.pool, one.release) == release and one.promoted}
    recent = [one for one in known.values() if (one.ending_since or snapshot.now) > since]
    if worker.tasks_running or worker.id not in known or any(one.worked for one in recent):
        return False
    if any(one.failure_code == code and one.ending_since for one in recent):
        return True
    others = [one for one in snapshot.workers if one.id != worker.id and (one.pool, one.release) == release]
    return any(_blocks(one, finding) and (one.machine_id or one.id) != worker.machine_id for one in others)


def _blocks(worker: Worker, code: str) -> bool:
    """Whether a ready worker without a task reports a finding that keeps it from one."""
    if worker.state not in READY or worker.tasks_running:
        return False
    return any(one.code == code and one.severity is Severity.BLOCK for one in worker.findings)
