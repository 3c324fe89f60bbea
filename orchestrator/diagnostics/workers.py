"""`explain <worker>`: whom it waits for, since when, until when, what then, what it cost, the proof and the fix.

Reads what fleet_explain() answers and nothing else; times stay the database's ISO 8601.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.fitness import DISK_FULL_S
from orchestrator.core.meanings import LOGS, MORE
from orchestrator.core.model import LOGS_LATE, Policy
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import Stage, State, WaitingOn
from orchestrator.diagnostics import causes, heartbeat_loss
from orchestrator.diagnostics.early_warnings import amiss, silent_leader, stalled, unfit
from orchestrator.diagnostics.evidence import proof
from orchestrator.pods.bringup_stages import PAUSES_S
from orchestrator.ports import HostKeyChanged

Row = Mapping[str, Any]
NO_LEADER = "nothing: no orchestrator leads"
LEAD = "python -m orchestrator run"
# What a stage waits for while nothing has gone wrong in it.
WANTED: Mapping[str, str] = {
    Stage.INTENT: "its pod to be asked for",
    Stage.POD_CREATED: "an answer to the create call",
    Stage.POD_RUNNING: "the pod to be RUNNING with a runtime",
    Stage.SSH_DETAILS: "a public address for SSH",
    Stage.TCP: "the pod's sshd to answer",
    Stage.SSH_AUTH: "the pod to accept our SSH key",
    Stage.EXEC: "a command to run on the pod",
    Stage.IDENTITY: "the pod to say who it is",
    "platform": "the pod's disk, limits and clock to be good enough",
    "gpu_inventory": "the GPUs to be those that were rented",
    "gpu_health": "the GPUs to be healthy",
    "gpu_fabric": "the NVLinks between the GPUs to be up",
    Stage.DEPLOY: "the code to lie on the pod, by its hash",
    Stage.PROCESS: "its process to be seen alive",
    Stage.HEARTBEAT: "its first heartbeat",
}
# One attempt until the deadline; every other rung is tried again after each of PAUSES_S.
TRIED_ONCE = frozenset({Stage.INTENT, Stage.POD_RUNNING, Stage.SSH_DETAILS, Stage.TCP})
UNEXPLAINED = "not explained yet"  # what is said of a code that causes.py does not know
STRANGER = HostKeyChanged.__name__  # with it begins what a row says of late logs where another machine answers
WITHOUT_END = frozenset({Stage.POD_CREATED, Stage.DELETING})  # offers and deletes are tried as often as it takes


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a worker is and why."""

    worker_id: str
    state: str
    stage: str | None
    state_since: str
    attempt: int | None  # of the stage
    attempts_possible: int | None  # before the deadline; None: no number bounds it
    who: str  # must act; "nobody" once it has ended
    what: str
    code: str | None
    subcause: str | None
    since: str | None
    deadline: str | None
    then: str
    holding_up: int  # tasks of its pool that could be claimed now
    spent_usd: float
    cost_by_kind: Mapping[str, float]
    proof: str | None
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
    """What the states differ in."""

    who: str
    what: str
    then: str
    fix: str
    code: str | None = None
    subcause: str | None = None
    since: str | None = None
    deadline: str | None = None
    proof: str | None = None  # of what ended it in service, which no attempt has seen
    ended: list[str] = field(default_factory=list)


def explained(found: Row, policy: Policy | None = None) -> Explanation:
    """What to say of a worker that fleet_explain() found; `policy` adds the deadlines that are no columns."""
    row = found["worker"]
    state = State(row["status"])
    now = datetime.fromisoformat(found["now"])
    wait = _WAITS[state](row, found, policy, now)
    if found["leader"] is None and state is not State.TERMINATED:
        wait.who, wait.then, wait.fix = WaitingOn.ORCHESTRATOR.value, NO_LEADER, LEAD
    elif silence := silent_leader(found["leader"], now):
        wait.then = f"{wait.then}; {silence}"
    of_stage = [a for a in found["attempts"] if a["stage"] == row["stage"]]
    leader = found["leader"] or {}
    return Explanation(
        worker_id=row["id"],
        state=state.value,
        stage=row["stage"],
        state_since=row["state_since"],
        attempt=len(of_stage) or None,
        attempts_possible=_possible(row, len(of_stage), now),
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
        proof=wait.proof or proof(found["attempts"], wait.code),
        usual=found["usual"],
        fix=wait.fix.replace("<worker>", row["id"]),
        ended=wait.ended,
        running=found["running"],
        tasks_done=row["tasks_done"],
        tasks_failed=row["tasks_failed"],
        created_at=row["created_at"],
        leader=leader.get("holder"),
    )


def _spawning(row: Row, found: Row, _: Policy | None, now: datetime) -> _Wait:
    code, subcause, since = _trouble(row, found["attempts"])
    cause = causes.of(code, subcause) if code else None
    rung = STAGE_SPECS.get(Stage(row["stage"]))
    overdue = f"{rung.overdue}: terminate, respawn" if rung else "terminate, respawn"
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
    heard = row["last_heartbeat"] or row["state_since"]
    if policy:
        wait.deadline = _later(heard, policy.heartbeat_timeout_s)
    wait.then = "without a heartbeat by then: heartbeat_lost, its tasks are queued again"
    _unfit(wait, row, policy)
    return _amiss(wait, row, now, busy=bool(tasks))


def _idle(row: Row, found: Row, policy: Policy | None, now: datetime) -> _Wait:
    queued = found["queued"]
    what = f"to claim one of {queued} tasks" if queued else f"nothing: pool {row['pool']} has no task to claim"
    pool = next((p for p in policy.pools if p.name == row["pool"]), None) if policy else None
    wait = _Wait(WaitingOn.WORKER.value, what, "", "none needed; GPU_IDLE_TIMEOUT_SEC says how long it stays")
    wait.since = row["state_since"]
    if pool:
        wait.deadline = _later(row["state_since"], pool.idle_timeout_s)
    wait.then = "idle_timeout: terminate, unless it is kept warm (MIN_ACTIVE_GPUS, MACHINES_TO_KEEP_IDLE)"
    _unfit(wait, row, policy)
    return _amiss(wait, row, now, busy=False)


def _unfit(wait: _Wait, row: Row, policy: Policy | None) -> None:
    """Tell what becomes of a worker that claims nothing, if that is so."""
    why = unfit(row)
    if why is None:
        return
    wait.who, wait.fix = WaitingOn.ORCHESTRATOR.value, LOGS
    if held := row.get("held_back"):
        wait.what = f"a second opinion: it claims no more, {why}"
        wait.then = (
            "worker_sick if another worker completes such a task, release_bad if others fail alike; "
            "otherwise it is replaced by then"
        )
        wait.since = held["since"]
        wait.deadline = _later(held["since"], policy.spawning_timeout_s) if policy else None
    else:
        wait.what = f"room to begin a task: {why}"
        wait.then = f"worker_sick if that lasts for {DISK_FULL_S:g} s: it is replaced"


def _amiss(wait: _Wait, row: Row, now: datetime, *, busy: bool) -> _Wait:
    """The same with what is odd about a ready worker before what is ordinary."""
    wait.what = "; ".join([*amiss(row, now, busy=busy), wait.what])
    if row["waiting_on"] == WaitingOn.PROVIDER:
        wait.who = WaitingOn.PROVIDER.value
    if str(row["metadata"].get(LOGS_LATE)).startswith(STRANGER):
        wait.code = FailureCode.HOST_KEY_CHANGED.value
        wait.then = f"nothing is sent there; the worker goes on while it beats, its logs are lost; {wait.then}"
    return wait


def _terminating(row: Row, found: Row, _: Policy | None, __: datetime) -> _Wait:
    tasks = len(found["running"])
    what, then = {
        Stage.DRAINING: (f"{tasks} task(s) to end", "its tasks are queued again, its logs flushed, its pod deleted"),
        Stage.FLUSHING: (row["waiting_for"] or "the last log", "what is left is declared lost; its pod is deleted"),
        Stage.DELETING: (row["waiting_for"] or "the delete call", "the delete is sent again until absence is proven"),
    }.get(Stage(row["stage"]), (row["waiting_for"] or row["stage"], "its pod is deleted"))
    wait = _Wait(row["waiting_on"], what, then, MORE)
    wait.since, wait.deadline = row["stage_since"], row["deadline_at"]
    _end(wait, row, found)
    return wait


def _terminated(row: Row, found: Row, _: Policy | None, __: datetime) -> _Wait:
    wait = _Wait("nobody", "it has ended", "nothing", MORE)
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
    """Why it ends: the exit cause, the failure code, and what was said when it began to end."""
    wait.code = row["failure_code"]
    ends = (e for e in reversed(found["events"]) if e["to_state"] == State.TERMINATING != e["from_state"])
    begun = next(ends, None)
    said = begun["reason"] if begun else None
    told = causes.ending(row["exit_cause"] or "")
    wait.ended.append(f"{row['exit_cause']}: {told.means}" if told else str(row["exit_cause"]))
    cause = None
    if wait.code and row["exit_cause"] == ExitCause.HEARTBEAT_LOST:
        look = row["metadata"].get("last_snapshot")
        wait.subcause = heartbeat_loss.subcause(look)
        wait.proof = heartbeat_loss.proof(look) or said
        cause = causes.silence(wait.subcause)
    elif wait.code:
        wait.subcause = _subcause(wait.code, found["attempts"])
        wait.proof = said if begun and begun["from_state"] != State.SPAWNING else None
        cause = causes.of(wait.code, wait.subcause)
    if wait.code:
        wait.ended.append(f"{named(wait.code, wait.subcause)}: {cause.means if cause else UNEXPLAINED}")
    if said:
        wait.ended.append(f"said then: {said}")
    best = cause or told
    if best:
        wait.fix = best.fix
        if row["status"] == State.TERMINATED:
            wait.then = best.then


def named(code: str, subcause: str | None) -> str:
    """`AUTH_FAILED/REFUSED`."""
    return f"{code}/{subcause}" if subcause else code


def _trouble(row: Row, attempts: Sequence[Row]) -> tuple[str | None, str | None, str | None]:
    """(code, sub-cause, since when) of what stands in a climb's way now."""
    if row["failure_code"]:
        first = next((a for a in attempts if a["failure_code"] == row["failure_code"]), None)
        code = row["failure_code"]
        return code, _subcause(code, attempts), (first["ended_at"] if first else None) or row["stage_since"]
    here = {row["stage"], Stage.POD_CREATED.value if row["stage"] == Stage.INTENT else row["stage"]}
    since = None
    code = None
    for attempt in reversed(attempts):  # the newest run of failures; one that is under way does not end it
        if attempt["outcome"] == "ok" or (code and attempt["failure_code"] not in {code, None}):
            break
        if attempt["failure_code"] and attempt["stage"] in here:
            code, since = attempt["failure_code"], attempt["ended_at"] or attempt["started_at"]
    return code, _subcause(code, attempts), since


def _subcause(code: str | None, attempts: Sequence[Row]) -> str | None:
    for attempt in reversed(attempts):
        if code and attempt["failure_code"] == code:
            cause = (attempt["evidence"] or {}).get("cause")
            return str(cause).upper() if cause else None
    return None


def _possible(row: Row, made: int, now: datetime) -> int | None:
    """How many attempts at the stage there can be by its deadline, those made included."""
    stage = Stage(row["stage"]) if row["stage"] else None
    if stage not in STAGE_SPECS or stage in WITHOUT_END or row["status"] != State.SPAWNING:
        return None
    possible = max(made, 1)
    if stage in TRIED_ONCE:
        return possible
    left_s = (datetime.fromisoformat(row["deadline_at"]) - now).total_seconds()
    while True:
        left_s -= PAUSES_S[min(possible, len(PAUSES_S)) - 1]
        if left_s <= 0:
            return possible
        possible += 1


def _clause(sentence: str) -> str:
    return sentence.rstrip(".")


def _later(moment: str, seconds: float) -> str:
    return (datetime.fromisoformat(moment) + timedelta(seconds=seconds)).isoformat()
