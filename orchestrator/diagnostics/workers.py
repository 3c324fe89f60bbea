"""`explain <worker>`: what it waits for, since and until when, what happens then, its cost, the evidence and the fix.

Reads only the answer of fleet_explain(). Times stay the database's ISO 8601.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from orchestrator.core import moments
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.findings import GuardFinding, findings_of
from orchestrator.core.fitness import DISK_FULL_S, UNTRIED_S
from orchestrator.core.meanings import LOGS, MORE, NOBODY, START_LEADER
from orchestrator.core.plurals import counted
from orchestrator.core.policy import Policy
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import Stage, State, WaitingOn
from orchestrator.core.worker_metadata import WorkerMetadata
from orchestrator.diagnostics import causes, heartbeat_loss
from orchestrator.diagnostics.advice import without
from orchestrator.diagnostics.condition_kinds import ConditionKind
from orchestrator.diagnostics.early_warnings import irregularities, silent_leader, stalled, unfit
from orchestrator.diagnostics.evidence import evidence_line
from orchestrator.diagnostics.stage_attempts import current_failure, possible_attempts, subcause_of
from orchestrator.ports import HostKeyChanged

Row = Mapping[str, Any]
NO_LEADER = "nothing: no orchestrator leads"
# What a stage waits for while it has no failure.
WANTED: Mapping[Stage, str] = {
    Stage.INTENT: "the request for its pod",
    Stage.POD_CREATED: "an answer to the create call",
    Stage.POD_RUNNING: "the pod to be RUNNING with a runtime",
    Stage.SSH_DETAILS: "a public address for SSH",
    Stage.TCP: "the pod's sshd to answer",
    Stage.SSH_AUTH: "the pod to accept our SSH key",
    Stage.EXEC: "a command to run on the pod",
    Stage.IDENTITY: "the pod to show its id",
    Stage.PLATFORM: "the pod's disk, limits and clock to be good enough",
    Stage.GPU_INVENTORY: "the GPUs to be those that were rented",
    Stage.GPU_HEALTH: "the GPUs to be healthy",
    Stage.GPU_FABRIC: "the NVLinks between the GPUs to be up",
    Stage.DEPLOY: "the code on the pod, verified by its hash",
    Stage.PROCESS: "its process to run",
    Stage.HEARTBEAT: "its first heartbeat",
}
DELETED, SEARCHED = "the delete is repeated until its pod is gone", "a pod of its name that appears is deleted"
UNEXPLAINED = "not explained yet"  # the text for a code that causes.py does not know
HOST_KEY_CHANGED = HostKeyChanged.__name__  # a row's text about late logs begins with it if another machine answers


@dataclass(frozen=True, slots=True)
class WorkerExplanation:
    """Where a worker is, and why."""

    worker_id: str
    state: str
    stage: str | None
    state_since: str
    attempt: int | None  # of the stage
    attempts_possible: int | None  # before the deadline; None: no number bounds it
    who: str  # the party that must act; NOBODY once the worker has ended
    what: str
    code: str | None
    subcause: str | None
    since: str | None
    deadline: str | None
    then: str
    holding_up: int  # tasks of its pool that are ready to run
    spent_usd: float
    cost_by_kind: Mapping[str, float]
    evidence: str | None
    usual: Row
    fix: str
    ended: Sequence[str] = ()  # why it ends or ended, in sentences
    running: Sequence[Row] = ()
    tasks_done: int = 0
    tasks_failed: int = 0
    created_at: str = ""
    leader: str | None = None


@dataclass(slots=True)
class _Wait:
    """The facts in which the states differ."""

    who: str
    what: str
    then: str
    fix: str
    code: str | None = None
    subcause: str | None = None
    since: str | None = None
    deadline: str | None = None
    evidence: str | None = None  # why it ended in service, if no attempt shows that
    ended: list[str] = field(default_factory=list)


def explained(found: Row, policy: Policy | None = None) -> WorkerExplanation:
    """Explain a worker from the answer of fleet_explain(). `policy` adds the deadlines that are not columns."""
    row = found["worker"]
    state = State(row["status"])
    now = moments.moment(found["now"])
    wait = _WAITS[state](row, found, policy, now)
    if found["leader"] is None and state is not State.TERMINATED:
        wait.who, wait.then, wait.fix = WaitingOn.ORCHESTRATOR.value, NO_LEADER, START_LEADER
    elif silence := silent_leader(found["leader"], now):
        wait.then = f"{wait.then}; {silence}"
    of_stage = [a for a in found["attempts"] if a["stage"] == row["stage"]]
    leader = found["leader"] or {}
    return WorkerExplanation(
        worker_id=row["id"],
        state=state.value,
        stage=row["stage"],
        state_since=row["state_since"],
        attempt=len(of_stage) or None,
        attempts_possible=possible_attempts(row, len(of_stage), now),
        who=wait.who,
        what=wait.what,
        code=wait.code,
        subcause=wait.subcause,
        since=wait.since,
        deadline=wait.deadline,
        then=wait.then,
        holding_up=found["queued"] if state is State.SPAWNING else 0,
        spent_usd=float(row["cost_usd"]),
        cost_by_kind={kind: float(usd) for kind, usd in row["cost_by_kind"].items()},
        evidence=wait.evidence or evidence_line(found["attempts"], wait.code),
        usual=found["usual"],
        fix=without(wait.fix, "explain <worker>", instead=MORE).replace("<worker>", row["id"]),
        ended=wait.ended,
        running=found["running"],
        tasks_done=row["tasks_done"],
        tasks_failed=row["tasks_failed"],
        created_at=row["created_at"],
        leader=leader.get("holder"),
    )


def _spawning(row: Row, found: Row, _: Policy | None, now: datetime) -> _Wait:
    code, subcause, since = current_failure(row, found["attempts"])
    cause = causes.of(code, subcause) if code else None
    stage_spec = STAGE_SPECS.get(Stage(row["stage"]))
    overdue = f"{stage_spec.overdue}: terminate, respawn" if stage_spec else "terminate, respawn"
    wanted = WANTED.get(Stage(row["stage"])) or row["waiting_for"] or row["stage"]
    wanted += stalled(row, found["attempts"], now)
    wait = _Wait(row["waiting_on"], wanted, overdue, MORE)
    wait.since, wait.deadline = since or row["stage_since"], row["deadline_at"]
    if row["waiting_on"] in {WaitingOn.CAPACITY, WaitingOn.BUDGET}:
        named = causes.waiting(row["waiting_on"])
        wait.what = row["waiting_for"] or wait.what
        if named:
            wait.then, wait.fix = f"{named.then}; at the deadline: terminate", named.fix
    if cause:
        wait.code, wait.subcause, wait.fix = code, subcause, cause.fix
        wait.what, wait.then = _clause(cause.means), cause.then
        if row["waiting_on"] not in {WaitingOn.CAPACITY, WaitingOn.BUDGET}:
            wait.who = cause.who
    elif code:
        wait.code, wait.what = code, row["waiting_for"] or code
    if row["drain_requested_at"]:
        wait.ended.append("its end was asked for")
    return wait


def _active(row: Row, found: Row, policy: Policy | None, now: datetime) -> _Wait:
    tasks = found["running"]
    what = "; ".join(
        f"to finish {t['task_type']} {t['id']} (attempt {t['attempt']} of {t['max_attempts']})" for t in tasks[:3]
    ) + (f"; and {len(tasks) - 3} more" if len(tasks) > 3 else "")  # noqa: PLR2004
    wait = _Wait(WaitingOn.WORKER.value, what or "to ask for work", "", f"python -m orchestrator logs {row['id']}")
    wait.since = tasks[0]["started_at"] if tasks else row["state_since"]
    last_sign_at = row["last_heartbeat"] or row["state_since"]
    if policy:
        wait.deadline = _later(last_sign_at, policy.heartbeat_timeout_s)
    wait.then = "if its heartbeats stop, it ends (heartbeat_lost), and its tasks are queued again"
    _unfit(wait, row)
    return _with_irregularities(wait, row, now, busy=bool(tasks))


def _idle(row: Row, found: Row, policy: Policy | None, now: datetime) -> _Wait:
    queued = found["queued"]
    what = f"to claim one of {queued} tasks" if queued else f"tasks: pool {row['pool']} has none that is ready"
    pool = next((p for p in policy.pools if p.name == row["pool"]), None) if policy else None
    wait = _Wait(WaitingOn.WORKER.value, what, "", "none needed; GPU_IDLE_TIMEOUT_SEC says how long it stays")
    wait.since = row["state_since"]
    if pool:
        wait.deadline = _later(row["state_since"], pool.idle_timeout_s)
    wait.then = "idle_timeout: terminate, unless it is kept warm (MIN_ACTIVE_GPUS, MACHINES_TO_KEEP_IDLE)"
    _unfit(wait, row)
    return _with_irregularities(wait, row, now, busy=False)


def _held_back(wait: _Wait, held: Mapping[str, Any], why: str) -> None:
    """Say what decides about a worker whose last tasks all failed."""
    wait.since = held["since"]
    wait.deadline = held.get("until") or _later(held["since"], UNTRIED_S)
    if held.get("suspect") is False:
        wait.what = f"its pause to end: {why}, on other workers too, so the inputs or the release may be bad"
        wait.then = "it claims tasks again; its next success ends this"
        return
    wait.what = f"another worker to try its tasks: {why}"
    wait.then = "worker_sick if they succeed there; if they fail there too, they say nothing and it claims again"


def _unfit(wait: _Wait, row: Row) -> None:
    """Say what happens next to a worker that claims nothing, if it claims nothing."""
    why = unfit(row)
    if why is None:
        return
    wait.who, wait.fix = WaitingOn.ORCHESTRATOR.value, LOGS
    if held := row.get("held_back"):
        _held_back(wait, held, why)
    elif blocking := [one for one in findings_of(row.get("health")) if one.guard and one.severity.blocks]:
        _blocked(wait, blocking[0])
    else:
        wait.what = f"room to begin a task: {why}"
        wait.then = f"worker_sick if that lasts for {DISK_FULL_S:g} s: it is replaced"


def _blocked(wait: _Wait, finding: GuardFinding) -> None:
    """Say what happens next to a worker whose machine has a finding that stops its claims."""
    wait.what, wait.code = f"its machine, which is not fit to begin a task: {finding.text}", finding.code
    if finding.guard:
        wait.then, wait.fix = finding.guard.meaning.then, finding.guard.meaning.fix
    wait.since = finding.since.isoformat() if finding.since else wait.since


def _with_irregularities(wait: _Wait, row: Row, now: datetime, *, busy: bool) -> _Wait:
    """Put the irregularities of a ready worker before what it waits for. Its evidence is its last heartbeat."""
    wait.what = "; ".join([*irregularities(row, now, busy=busy), wait.what])
    if row["waiting_on"] == WaitingOn.PROVIDER:
        wait.who = WaitingOn.PROVIDER.value
    if row["waiting_on"] == WaitingOn.OPERATOR:
        wait.who, wait.fix = WaitingOn.OPERATOR.value, ConditionKind.GATEWAY_UNREACHED.row.fix
        wait.then, wait.deadline = "if that lasts for DEADMAN_TIMEOUT_SEC, it ends (heartbeat_lost)", row["deadline_at"]
    if (WorkerMetadata.of(row["metadata"]).logs_late or "").startswith(HOST_KEY_CHANGED):
        wait.code = FailureCode.HOST_KEY_CHANGED.value
        wait.then = (
            f"nothing is sent there; the worker continues while its heartbeats arrive, its logs are lost; {wait.then}"
        )
    if wait.code is None and row["last_heartbeat"]:
        wait.evidence = f"last heartbeat {row['last_heartbeat']}"
    return wait


def _terminating(row: Row, found: Row, _: Policy | None, __: datetime) -> _Wait:
    tasks = counted(len(found["running"]), "task")
    what, then = {
        Stage.DRAINING: (f"{tasks} to end", "its tasks are queued again, its logs flushed, its pod deleted"),
        Stage.FLUSHING: (row["waiting_for"] or "the last log", "what is left is declared lost; its pod is deleted"),
        Stage.DELETING: (row["waiting_for"] or "the delete call", DELETED if row["pod_id"] else SEARCHED),
    }.get(Stage(row["stage"]), (row["waiting_for"] or row["stage"], "its pod is deleted"))
    wait = _Wait(row["waiting_on"], what, then, MORE)
    wait.since, wait.deadline = row["stage_since"], row["deadline_at"]
    _end(wait, row, found)
    if row["waiting_on"] == WaitingOn.OPERATOR and row["stage"] == Stage.DRAINING:  # its agent gets no answer
        wait.what, wait.fix = f"{row['waiting_for']}; {what}", ConditionKind.GATEWAY_UNREACHED.row.fix
    return wait


def _terminated(row: Row, found: Row, _: Policy | None, __: datetime) -> _Wait:
    wait = _Wait(NOBODY, "it has ended", "nothing", MORE)
    wait.since = row["terminated_at"]
    _end(wait, row, found)
    return wait


_WAITS = {
    State.SPAWNING: _spawning,
    State.ACTIVE: _active,
    State.IDLE: _idle,
    State.TERMINATING: _terminating,
    State.TERMINATED: _terminated,
}


def _end(wait: _Wait, row: Row, found: Row) -> None:
    """Say why it ends: the exit cause, the failure code, and the recorded reason."""
    wait.code = row["failure_code"]
    ends = (e for e in reversed(found["events"]) if e["to_state"] == State.TERMINATING != e["from_state"])
    begun = next(ends, None)
    reason = begun["reason"] if begun else None
    exit_cause = causes.ending(row["exit_cause"] or "")
    wait.ended.append(f"{row['exit_cause']}: {exit_cause.means}" if exit_cause else str(row["exit_cause"]))
    cause = None
    if wait.code == FailureCode.NO_HEARTBEAT and row["exit_cause"] == ExitCause.HEARTBEAT_LOST:
        look = WorkerMetadata.of(row["metadata"]).last_snapshot
        wait.subcause = heartbeat_loss.subcause(look)
        wait.evidence = heartbeat_loss.evidence_line(look) or reason
        cause = causes.silence(wait.subcause)
    elif wait.code:
        wait.subcause = subcause_of(wait.code, found["attempts"])
        wait.evidence = reason if begun and begun["from_state"] != State.SPAWNING else None
        cause = causes.of(wait.code, wait.subcause)
    if wait.code:
        wait.ended.append(f"{causes.named(wait.code, wait.subcause)}: {cause.means if cause else UNEXPLAINED}")
    if reason:
        wait.ended.append(f"recorded reason: {reason}")
    best = cause or exit_cause
    if best:
        wait.fix = best.fix
        if row["status"] == State.TERMINATED:
            wait.then = best.then


def _clause(sentence: str) -> str:
    return sentence.rstrip(".")


def _later(moment: str, seconds: float) -> str:
    return (moments.moment(moment) + timedelta(seconds=seconds)).isoformat()
