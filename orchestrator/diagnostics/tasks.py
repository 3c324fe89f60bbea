"""`explain <task>`: where it is, what it waits for and why, its attempts, and the fix. Reads fleet_task_explain()."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from orchestrator.core import decision_text, moments
from orchestrator.core.blocked import Blocked, from_json, line
from orchestrator.core.meanings import CAPACITY, NOBODY, OPERATOR, ORCHESTRATOR, PROVIDER, RETRY, START_LEADER, WORKER
from orchestrator.core.plurals import counted
from orchestrator.core.policy import Policy
from orchestrator.diagnostics import causes, fact_sources, first_cause
from orchestrator.diagnostics.advice import without
from orchestrator.diagnostics.condition_kinds import ConditionKind
from orchestrator.diagnostics.first_cause import FirstCause
from orchestrator.diagnostics.pool_rules import NO_MORE_WORKERS
from orchestrator.diagnostics.rules import conditions
from orchestrator.diagnostics.scaling import explained_reason
from orchestrator.diagnostics.task_attempts import TaskAttempt, attempt_of
from orchestrator.diagnostics.task_limits import limits

Row = Mapping[str, Any]
PUBLISH = "change the trigger or constraint on tasks that refuses it, or end the transaction that locks its row"
REQUEUE = "python -m orchestrator migrate --requeue-held, to queue it again now if no program works on it"
FEW = 3  # attempts that are enough to call a duration usual
NAMED = 3  # dependencies that are named; the others are counted


@dataclass(frozen=True, slots=True)
class TaskExplanation:
    """Where a task is, and why."""

    task_id: str
    task_type: str
    pool: str
    status: str
    attempts_made: int
    max_attempts: int
    who: str
    what: str
    code: str | None
    since: str
    until: str | None
    then: str
    fix: str
    holding_up: int  # tasks that depend on it
    usd: float | None  # of all attempts whose cost is known
    usual: Row | None = None  # recent durations of its type: n, p50_s, p95_s; None: fewer than FEW are known
    attempts: Sequence[TaskAttempt] = ()
    dependencies: Sequence[Row] = ()
    limits: str = ""  # and where each comes from
    condition: str | None = None  # the kind of the fleet's condition because of which it waits


@dataclass(frozen=True, slots=True)
class _Why:
    who: str
    what: str
    then: str
    fix: str
    code: str | None = None
    until: str | None = None
    condition: str | None = None


def explained(found: Row, policy: Policy | None = None) -> TaskExplanation:
    """Explain a task from the answer of fleet_task_explain()."""
    task = found["task"]
    attempts = list(map(attempt_of, found["attempts"]))
    known = [attempt.usd for attempt in attempts if attempt.usd is not None]
    why = {"Queued": _queued, "In Progress": _running, "Complete": _complete}.get(task["status"], _ended)(found, policy)
    if found.get("publication"):
        why = _unpublished(why, found["publication"], is_over=task["status"] not in {"Queued", "In Progress"})
    return TaskExplanation(
        task_id=task["id"],
        task_type=task["task_type"],
        pool=task["pool"],
        status=task["status"],
        attempts_made=task["attempts"] - task["uncounted"],
        max_attempts=task["max_attempts"],
        who=why.who,
        what=why.what,
        code=why.code,
        since=_since(task),
        until=why.until,
        then=why.then,
        fix=_fix(why, task),
        holding_up=found["dependants"],
        usd=sum(known) if known else None,
        usual=found["usual"] if found["usual"]["n"] >= FEW else None,
        attempts=attempts,
        dependencies=[one for one in found["dependencies"] if one["id"]],
        limits=limits(task, found.get("declared")),
        condition=why.condition,
    )


def _since(task: Row) -> str:
    """Return since when it has its status. A statement that cancels a task need not write updated_at."""
    texts = (task["updated_at"], task["cancel_requested_at"] if task["status"] == "Cancelled" else None)
    known = [(at, text) for text in texts if (at := _moment(text))]
    return str(max(known)[1] if known else task["updated_at"])


def _moment(text: str | None) -> datetime | None:
    """Return a time of a user's row; None if there is none, or none that a calendar has."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def _fix(why: _Why, task: Row) -> str:
    fix = why.fix.replace("<task>", task["id"]).replace("<worker>", task["worker_id"] or "<worker>")
    return without(fix, f"explain {task['id']}", instead=f"python -m orchestrator tasks show {task['id']}")


def fraction_of(reported: object) -> float | None:
    """Return how much of a task is done, from 0 to 1; None if what is reported has no such number.

    The column `progress` is written by handlers, and by SQL of users: it may be any JSON.
    """
    fraction = reported.get("fraction") if isinstance(reported, Mapping) else None
    is_share = isinstance(fraction, int | float) and not isinstance(fraction, bool) and 0 <= fraction <= 1
    return float(fraction) if is_share and fraction is not None else None


def progress(reported: object) -> str:
    """Return what is reported as progress as text: `61% frame 88 of 144`."""
    fraction = fraction_of(reported)
    message = reported.get("message") if isinstance(reported, Mapping) else None
    share = "" if fraction is None else f"{fraction:.0%}"
    return " ".join(filter(None, (share, message if isinstance(message, str) else ""))) or "some"


def _queued(found: Row, policy: Policy | None) -> _Why:
    task, now = found["task"], datetime.fromisoformat(found["now"])
    if held := _held(found):
        return held
    unmet = [d for d in found["dependencies"] if d["status"] != "Complete"]
    if task["state"] == "waits_for_tasks" and unmet:
        counts = found["dependency_counts"]  # of all; the list has the first ones
        known = [d for d in unmet if d["id"]]  # the ids of the others are hidden from this caller
        parts = [_dependency(d) for d in known[:NAMED]]
        hidden = len(unmet) - len(known)
        more = counts["all"] - counts["complete"] - hidden - len(parts)
        parts += [f"and {more} more"] if more > 0 else []
        if hidden:
            parts.append(f"{'and ' if parts else ''}{hidden} of other pools")
        what = f"{counts['all'] - counts['complete']} of {counts['all']} dependencies: {'; '.join(parts)}"
        if any(d["status"] is None for d in unmet):
            fix = "python -m orchestrator tasks cancel <task>; submit it again without the deleted tasks"
            then = "it fails after an hour, unless the missing tasks are inserted"
            return _Why(OPERATOR, what, then, fix)
        fix = f"python -m orchestrator explain {known[0]['id'] if known else '<task>'}"
        return _Why(WORKER, what, "it can be claimed once all of them are Complete; it fails if one fails", fix)
    if task["run_after"] and moments.moment(task["run_after"]) > now:
        cause = causes.of(task["failure_code"]) if task["failure_code"] else None
        if cause and cause.code == "EARLIER_RELEASE":
            what = f"a worker of the present release: {task['error_message']}"
            then = "it can be claimed as soon as the first one is promoted; the attempt does not count"
            return _Why(cause.who, what, then, cause.fix, cause.code, task["run_after"])
        if task["failure_code"]:
            number = task["attempts"] - task["uncounted"] + 1
            error = task["error_message"] or (cause.means if cause else "none is known")
            what = f"attempt {number} of {task['max_attempts']}. Last error: {error}"
        else:
            what = "it was submitted for later"
        fix = cause.fix if cause else "none needed; python -m orchestrator tasks cancel <task>, if it should not run"
        return _Why(NOBODY, what, "a worker can claim it", fix, task["failure_code"], task["run_after"])
    return _claimable(found, policy)


def _held(found: Row) -> _Why | None:
    """Explain a task that waits because a limit is reached."""
    if limit := found.get("limit"):
        change = f"python -m orchestrator limits set --{limit['scope']} NAME NUMBER"
        if not limit["most"]:
            what = f"the limit of the {limit['scope']} {limit['name']!r} is 0: none of its tasks may run"
            return _Why(OPERATOR, what, "nothing until the limit is raised", change)
        what = f"the {limit['scope']} {limit['name']!r}: {limit['running']} of at most {limit['most']} tasks run"
        if limit.get("next"):
            what += f", and {limit['next']} starts before it"
        return _Why(WORKER, what, "it is ready as soon as one of them ends", f"none needed; a higher limit: {change}")
    return None


def _unpublished(why: _Why, publication: Row, *, is_over: bool) -> _Why:
    """Add that the row of the task still shows an earlier status, because something of the user's keeps it."""
    tries = counted(publication["times"], "time")
    what = f"{why.what}; its row still shows {publication['shown']}: writing it failed {tries}: {publication['reason']}"
    if not is_over:
        return replace(why, what=what, fix=f"{why.fix}; {PUBLISH}")
    then = "nothing is lost; the orchestrator writes its row again then"
    return replace(why, who=OPERATOR, what=what, then=then, until=publication["retry_at"], fix=f"{PUBLISH}; {why.fix}")


def _claimable(found: Row, policy: Policy | None) -> _Why:
    task, workers, ahead = found["task"], found["workers"], found["ahead"]
    ready, coming = workers.get("active", 0) + workers.get("idle", 0), workers.get("spawning", 0)
    of, cause = f"of pool {task['pool']}", _cause(found)
    before = f"{counted(ahead, f'task {of} goes', f'tasks {of} go')} before it" if ahead else "next in line"
    soon = "it is claimed when its turn comes"
    if cause is None and policy and task["pool"] not in {pool.name for pool in policy.pools}:
        known = ", ".join(pool.name for pool in policy.pools)
        what = f"a worker of pool {task['pool']}, which no orchestrator with these settings has: there are {known}"
        return _Why(OPERATOR, what, "nothing", "define it in POOLS_FILE, or submit with --pool")
    if ready and (cause is None or cause.kind in NO_MORE_WORKERS):
        held, fix = _held_back(found), "raise MAX_ACTIVE_GPUS or lower TASKS_PER_GPU_THRESHOLD for more workers"
        if cause:
            held, fix = f"; no more workers are started: {cause.text}", cause.fix
        what = f"a free worker: {before}, {counted(ready, 'worker serves', 'workers serve')} it{held}"
        return _Why(WORKER, what, soon, fix, condition=cause.kind if cause else None)
    if cause:
        evidence = f" ({cause.evidence})" if cause.evidence else ""
        return _Why(cause.who, f"{cause.text}{evidence}", cause.then, cause.fix, None, cause.until, cause.kind)
    if coming:
        first = f"{before[:1].upper()}{before[1:]}."
        what = f"{first} {'A worker is' if coming == 1 else f'{coming} workers are'} starting."
        return _Why(PROVIDER, what, "it is claimed when one is promoted", "python -m orchestrator list")
    return _unserved(found)


def _cause(found: Row) -> FirstCause | None:
    """Return the first cause because of which the task is not claimed, from what the leader has recorded."""
    task, rows = found["task"], first_cause.known(found)
    if found.get("conditions") is None and found["leader"] and not found.get("read_only"):
        rows = [one.as_json() for one in conditions(fact_sources.of_task(found))]
    return first_cause.of_task(rows, task["pool"], task["task_type"])


def _held_back(found: Row) -> str:
    """Explain why no further worker is started although nothing is wrong."""
    held = list(map(line, _blocked(found["decision"])))
    return f"; no more workers are started: {' '.join(held)}" if held else ""


def _blocked(decision: Row | None) -> list[Blocked]:
    return list(map(from_json, (decision or {}).get("blocked", ())))


def _unserved(found: Row) -> _Why:
    """Explain a ready task for which there is no worker yet."""
    decision = found["decision"] or {}
    if reasons := _blocked(decision):
        blocked = explained_reason(reasons[0])
        what = " ".join(map(line, reasons))
        return _Why(blocked.who, what, blocked.then, blocked.fix)
    if decision and decision["target"] == 0:
        what = f"a worker; the last decision did not count this task yet: {decision_text.row_sentence(decision)}"
        return _Why(OPERATOR, what, "the next tick counts it", "python -m orchestrator explain scaling")
    return _Why(CAPACITY if decision else ORCHESTRATOR, "a worker: none yet", "the next tick starts one", START_LEADER)


def _running(found: Row, _: Policy | None) -> _Why:
    task, worker, holder = found["task"], found["worker"] or {}, found.get("holder") or {}
    held_by = holder.get("held_by", "lease")  # a database of the previous version does not return it
    if held_by in ("program", "unknown"):
        return _taken(task, declared=held_by == "program")
    if task["lease_expires_at"] == "-infinity":
        what = "you: it was In Progress before the schema was made, and it had not changed for a day"
        return _Why(OPERATOR, what, "it is neither run nor counted", REQUEUE, "NO_HOLDER")
    if held_by == "nobody" and not _leased(task):
        what = "its time: it is In Progress, but no worker holds it (it has no lease)"
        then = "it is queued again if it does not change by then"
        return _Why(ORCHESTRATOR, what, then, REQUEUE, "NO_HOLDER", holder["rescue_at"])
    what = f"worker {task['worker_id']} ({worker.get('status', 'not ours')}) to finish it"
    if task["cancel_requested_at"]:
        what += "; its cancellation was asked for"
    if task["progress"]:
        what += f"; progress: {progress(task['progress'])}"
    if worker.get("waiting_on") == OPERATOR:  # SSH shows that its agent calls, and its lease is renewed
        then = "if that lasts until then, its worker ends"
        what, fix = f"{worker['waiting_for']}; {what}", ConditionKind.GATEWAY_UNREACHED.row.fix
        return _Why(OPERATOR, what, then, fix, None, worker["deadline_at"])
    then = "if no heartbeat arrives by then, it is queued again, and the attempt counts"
    return _Why(WORKER, what, then, "python -m orchestrator logs <worker> -f", None, task["lease_expires_at"])


def _leased(task: Row) -> bool:
    return task["lease_expires_at"] not in (None, "infinity")


def _taken(task: Row, *, declared: bool) -> _Why:
    """Explain a task that a plain statement set In Progress, in a pool where a user's program may run it."""
    if not declared:
        what = "the program that set it In Progress: no lease, and no leader has declared which pools have programs"
        return _Why(OPERATOR, what, "the next leader declares them within a tick", START_LEADER)
    what = f"the program of pool {task['pool']} (WORKER_START_COMMAND), which took it as {task['worker_id']}"
    return _Why(WORKER, what, "nothing: the orchestrator does not take tasks from such a program", REQUEUE)


def _complete(found: Row, _: Policy | None) -> _Why:
    where = found["task"]["output_location"]
    return _Why(
        NOBODY, "it is done" + (f": {where}" if where else ""), "nothing", "python -m orchestrator tasks show <task>"
    )


def _ended(found: Row, _: Policy | None) -> _Why:
    """Explain a task that is Failed or Cancelled."""
    task = found["task"]
    code = task["failure_code"] or ("CANCELLED" if task["status"] == "Cancelled" else None)
    cause = causes.of(code) if code else None
    meaning = (cause.means if cause else "") + (f" Message: {task['error_message']}" if task["error_message"] else "")
    why = _Why(OPERATOR, meaning.strip() or "it failed without a message", "nothing until it is retried", RETRY, code)
    if code == "DEPENDENCY_FAILED":
        broken = next((d for d in found["dependencies"] if d["status"] in {"Failed", "Cancelled"}), None)
        if broken and broken["id"]:
            return replace(why, fix=f"python -m orchestrator tasks retry {broken['id']}")
    return replace(why, fix=f"{cause.fix}; then {RETRY}") if cause and RETRY not in cause.fix else why


def _dependency(row: Row) -> str:
    if row["status"] is None:
        return f"{row['id']} (does not exist)"
    on = f" on {row['worker_id']}" if row["status"] == "In Progress" else ""
    return f"{row['task_type']} {row['id']} is {row['status']}{on}"
