"""What the SQL functions do to the rows that the protocol lives in, as pure functions over small tuples.

Each function is one call: rows and arguments in, rows and answer out. `Rules` takes one fence away at a time, to show
that the fence is needed. tests/proofs/model/test_replay.py holds all of this to the real functions.
"""

from dataclasses import dataclass
from typing import NamedTuple

MAX_ATTEMPTS = 2
NOBODY = -1
FORMER = -2  # a process that led and has died: its successor has another name

QUEUED, RUNNING, COMPLETE, FAILED, CANCELLED = "Queued", "In Progress", "Complete", "Failed", "Cancelled"
ENDED = frozenset({COMPLETE, FAILED, CANCELLED})
ABSENT, SPAWNING, ACTIVE, IDLE, TERMINATING, TERMINATED = (
    "absent", "spawning", "active", "idle", "terminating", "terminated",
)  # fmt: skip
LIVE = frozenset({SPAWNING, ACTIVE, IDLE})
INTENT, ASKED, POD, PROMOTED, DRAINING, FLUSHING, GONE = (
    "intent", "pod_created", "process", "promoted", "draining", "flushing", "gone",
)  # fmt: skip
NO_LEASE, FRESH, OVER = 0, 1, 2


class Task(NamedTuple):
    """A task with its attempts, each (worker, launch, claim number, how it ended); their number is the fence."""

    status: str = QUEUED
    uncounted: int = 0
    worker: int = NOBODY
    lease: int = NO_LEASE
    cancel: bool = False
    due: bool = True
    attempts: tuple[tuple[int, int, int, str], ...] = ()


class Worker(NamedTuple):
    """A worker's row."""

    status: str = ABSENT
    stage: str = INTENT
    launch: int = 0  # the nonce
    claim_no: int = 0


class Lease(NamedTuple):
    """Who leads."""

    holder: int = FORMER
    term: int = 0
    fresh: bool = False


class Rows(NamedTuple):
    """The database."""

    tasks: tuple[Task, ...]
    workers: tuple[Worker, ...]
    lease: Lease = Lease()


@dataclass(frozen=True)
class Rules:
    """The fences; all of them is the protocol."""

    attempt: bool = True  # a word about a task must name its present attempt
    ended: bool = True  # … and the attempt must not have ended
    launch: bool = True  # a worker's call must come from the present launch
    replay: bool = True  # a repeated claim number gets the same tasks
    order: bool = True  # an old claim number gets nothing new
    spent: bool = True  # … nor does one that was answered with nothing
    already: bool = True  # a repeated word is heard as such
    term: bool = True  # a write must carry the present term
    token_grows: bool = True  # an attempt that was given back keeps its number
    lease: bool = True  # only a lease that is over can be taken away
    final: bool = True  # what has ended is not cancelled
    rescue: bool = True  # what nobody will finish is given up: when a lease is over, and when a worker has ended
    ask_once: bool = True  # a create call without an answer is not repeated (the planner's part)


Answer = tuple[object, ...]
REFUSED_TERM: Answer = ("OR001",)
LOST_RACE: Answer = ("OR002",)
GONE_WORKER: Answer = ("OR005",)
FENCED: Answer = ("fenced",)


def _task(rows: Rows, t: int, task: Task) -> Rows:
    return rows._replace(tasks=(*rows.tasks[:t], task, *rows.tasks[t + 1 :]))


def _worker(rows: Rows, w: int, worker: Worker) -> Rows:
    return rows._replace(workers=(*rows.workers[:w], worker, *rows.workers[w + 1 :]))


def _ending(task: Task, attempt: int, outcome: str) -> tuple[tuple[int, int, int, str], ...]:
    w, launch, claim_no, _ = task.attempts[attempt - 1]
    return (*task.attempts[: attempt - 1], (w, launch, claim_no, outcome), *task.attempts[attempt:])


# --- a worker's calls


def _stranger(rules: Rules, rows: Rows, w: int, launch: int) -> Answer | None:
    worker = rows.workers[w]
    if worker.status in {ABSENT, TERMINATED}:
        return GONE_WORKER
    return FENCED if rules.launch and worker.launch != launch else None


def _claimed(rows: Rows, w: int, launch: int, number: int) -> tuple[tuple[int, int], ...]:
    return tuple(
        (t, len(task.attempts))
        for t, task in enumerate(rows.tasks)
        if task.status == RUNNING and task.worker == w and task.attempts[-1] == (w, launch, number, "")
    )


def claim(rules: Rules, rows: Rows, w: int, launch: int, number: int, held: int = 0) -> tuple[Rows, Answer]:
    """worker_claim with a batch of one: ("ok", wanted, ((task, attempt), …)); `held` open, it is asked again."""
    stranger = _stranger(rules, rows, w, launch)
    if stranger:
        return rows, stranger
    worker = rows.workers[w]
    launch = launch if rules.launch else worker.launch
    wanted = "run" if worker.status != TERMINATING else "drain" if worker.stage == DRAINING else "stop"
    known = any(a[:3] == (w, launch, number) for task in rows.tasks for a in task.attempts)
    fresh = number > worker.claim_no or (number == worker.claim_no and not known)
    if not rules.replay:
        fresh = number >= worker.claim_no
    if not rules.order:
        fresh = not known
    if not fresh or worker.status not in LIVE:
        return rows, ("ok", wanted, _claimed(rows, w, launch, number))
    taken = next((t for t, task in enumerate(rows.tasks) if task.status == QUEUED and task.due), None)
    status = worker.status
    if status == SPAWNING:
        taken = None
    elif taken is not None:
        task, status = rows.tasks[taken], ACTIVE
        attempts = (*task.attempts, (w, launch, number, ""))
        rows = _task(rows, taken, Task(RUNNING, task.uncounted, w, FRESH, task.cancel, True, attempts))
    elif not any(task.status == RUNNING and task.worker == w for task in rows.tasks):
        status = IDLE
    spent = int(rules.spent and taken is None and not held)
    claim_no = max(number, worker.claim_no) if not rules.order else number
    rows = _worker(rows, w, worker._replace(status=status, claim_no=claim_no + spent))
    if taken is not None and not rules.replay:
        return rows, ("ok", wanted, ((taken, len(rows.tasks[taken].attempts)),))
    return rows, ("ok", wanted, _claimed(rows, w, launch, number))


def heartbeat(rules: Rules, rows: Rows, w: int, launch: int, t: int, attempt: int) -> tuple[Rows, Answer]:
    """worker_heartbeat that names one task: ("ok", "held" | "cancel" | "fenced")."""
    stranger = _stranger(rules, rows, w, launch)
    if stranger:
        return rows, stranger
    task = rows.tasks[t]
    if task.status != RUNNING or task.worker != w or len(task.attempts) != attempt:
        return rows, ("ok", "fenced")
    return _task(rows, t, task._replace(lease=FRESH)), ("ok", "cancel" if task.cancel else "held")


def _hold(rules: Rules, rows: Rows, w: int, launch: int, t: int, attempt: int, said: frozenset[str]) -> Answer | None:
    """None if the caller holds the task, else its answer."""
    stranger = _stranger(rules, rows, w, launch)
    if stranger:
        return stranger
    task = rows.tasks[t]
    running = task.status == RUNNING or (not rules.ended and task.status in ENDED)
    if running and (not rules.attempt or (task.worker == w and len(task.attempts) == attempt)):
        return None
    known = len(task.attempts) >= attempt and task.attempts[attempt - 1][0] == w
    return ("already",) if rules.already and known and task.attempts[attempt - 1][3] in said else FENCED


def complete(rules: Rules, rows: Rows, w: int, launch: int, t: int, attempt: int) -> tuple[Rows, Answer]:
    """worker_complete."""
    refused = _hold(rules, rows, w, launch, t, attempt, frozenset({"complete"}))
    if refused:
        return rows, refused
    task = rows.tasks[t]
    ended = task._replace(status=COMPLETE, lease=NO_LEASE, attempts=_ending(task, attempt, "complete"))
    return _task(rows, t, ended), ("ok",)


def _give_up(rules: Rules, rows: Rows, t: int, outcome: str, *, counted: bool, backoff: bool) -> tuple[Rows, str]:
    task, attempt = rows.tasks[t], len(rows.tasks[t].attempts)
    used = attempt - task.uncounted
    backoff = backoff or (outcome == "lost" and used > 1 and any(a[3] == "lost" for a in task.attempts[:-1]))
    status, said = (
        (CANCELLED, "cancelled") if task.cancel
        else (FAILED, "failed") if counted and used >= MAX_ATTEMPTS
        else (QUEUED, "requeued")
    )  # fmt: skip
    attempts = _ending(task, attempt, "cancelled" if said == "cancelled" else outcome)
    if outcome == "released" and not rules.token_grows:
        return _task(rows, t, Task(uncounted=task.uncounted, attempts=attempts[:-1])), said
    given = Task(
        status,
        task.uncounted + (not counted),
        NOBODY if said == "requeued" else task.worker,
        NO_LEASE,
        task.cancel,
        not (backoff and said == "requeued"),
        attempts,
    )
    return _task(rows, t, given), said


def fail(rules: Rules, rows: Rows, w: int, launch: int, t: int, attempt: int) -> tuple[Rows, Answer]:
    """worker_fail, retryable."""
    refused = _hold(rules, rows, w, launch, t, attempt, frozenset({"failed", "cancelled"}))
    if refused:
        return rows, refused
    rows, said = _give_up(rules, rows, t, "failed", counted=True, backoff=True)
    return rows, (said,)


def release(rules: Rules, rows: Rows, w: int, launch: int, t: int, attempt: int) -> tuple[Rows, Answer]:
    """worker_release."""
    refused = _hold(rules, rows, w, launch, t, attempt, frozenset({"released", "cancelled"}))
    if refused:
        return rows, refused
    return _give_up(rules, rows, t, "released", counted=False, backoff=False)[0], ("ok",)


# --- an orchestrator's calls


def lead(rules: Rules, rows: Rows, o: int) -> tuple[Rows, Answer]:
    """fleet_lead: ("leads", term) or ("waits",)."""
    lease = rows.lease
    if not lease.fresh:
        lease = Lease(o, lease.term + 1, fresh=True)
    return rows._replace(lease=lease), ("leads", lease.term) if lease.holder == o else ("waits",)


def spawn(rules: Rules, rows: Rows, term: int, w: int) -> tuple[Rows, Answer]:
    """fleet_spawn: the intent."""
    if rules.term and term != rows.lease.term:
        return rows, REFUSED_TERM
    if rows.workers[w].status != ABSENT:
        return rows, ("exists",)
    return _worker(rows, w, Worker(SPAWNING)), ("created",)


MOVES: dict[str, tuple[frozenset[str], str | None, str]] = {  # from, to, stage
    "ask": (frozenset({SPAWNING}), None, ASKED),
    "created": (frozenset({SPAWNING}), None, POD),
    "refused": (frozenset({SPAWNING}), None, INTENT),
    "launch": (frozenset({SPAWNING}), None, POD),
    "promote": (frozenset({SPAWNING}), ACTIVE, PROMOTED),
    "flush": (frozenset({TERMINATING}), None, FLUSHING),
    "bury": (frozenset({TERMINATING}), TERMINATED, GONE),
}


def move(rules: Rules, rows: Rows, term: int, w: int, name: str) -> tuple[Rows, Answer]:
    """fleet_move, by the name of what it is for; the next launch with "launch", the tasks given up with "bury"."""
    if rules.term and term != rows.lease.term:
        return rows, REFUSED_TERM
    worker, (froms, to, stage) = rows.workers[w], MOVES[name]
    if worker.status == ABSENT:
        return rows, GONE_WORKER
    if worker.status not in froms:
        return rows, LOST_RACE
    if name == "launch":
        moved = Worker(SPAWNING, stage, worker.launch + 1, 0)
    else:
        moved = worker._replace(status=to or worker.status, stage=stage)
    rows = _worker(rows, w, moved)
    if name == "bury" and rules.rescue:
        rows, _ = _rescue_of(rules, rows, w)
    return rows, ("moved",)


def terminate(rules: Rules, rows: Rows, term: int, w: int, seen: str) -> tuple[Rows, Answer]:
    """fleet_move from the state that the planner saw to terminating."""
    if rules.term and term != rows.lease.term:
        return rows, REFUSED_TERM
    worker = rows.workers[w]
    if worker.status != seen or seen not in LIVE:
        return rows, GONE_WORKER if worker.status == ABSENT else LOST_RACE
    return _worker(rows, w, worker._replace(status=TERMINATING, stage=DRAINING)), ("moved",)


def rescue(rules: Rules, rows: Rows, term: int, w: int) -> tuple[Rows, Answer]:
    """fleet_rescue: of one worker, or (NOBODY) of every lease that is over: ("rescued", how many)."""
    if rules.term and term != rows.lease.term:
        return rows, REFUSED_TERM
    rows, number = _rescue_of(rules, rows, w)
    return rows, ("rescued", number)


def _rescue_of(rules: Rules, rows: Rows, w: int) -> tuple[Rows, int]:
    number = 0
    for t, task in enumerate(rows.tasks):
        over = task.lease == OVER or not rules.lease
        if task.status == RUNNING and (over if w == NOBODY else task.worker == w):
            rows, _ = _give_up(rules, rows, t, "lost", counted=True, backoff=False)
            number += 1
    return rows, number


def cancel(rules: Rules, rows: Rows, t: int) -> tuple[Rows, Answer]:
    """task_cancel."""
    task = rows.tasks[t]
    if task.status == QUEUED or not rules.final:
        return _task(rows, t, task._replace(status=CANCELLED, cancel=True)), ("cancelled",)
    if task.status == RUNNING:
        return _task(rows, t, task._replace(cancel=True)), ("cancelling",)
    return rows, ("already",)


# --- time


def lapse(rows: Rows, t: int) -> Rows:
    """A task's lease ends."""
    return _task(rows, t, rows.tasks[t]._replace(lease=OVER))


def come_due(rows: Rows, t: int) -> Rows:
    """A task's back-off ends."""
    return _task(rows, t, rows.tasks[t]._replace(due=True))


def lapse_lead(rows: Rows) -> Rows:
    """The lease of the fleet ends."""
    return rows._replace(lease=rows.lease._replace(fresh=False))
