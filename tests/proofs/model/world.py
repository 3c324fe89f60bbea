"""Everybody who calls the rows: agents, orchestrators, a network that loses replies and keeps old copies, and time.

`steps` gives every next state. Nobody is fair: an agent that takes no step is frozen, and goes on later as a zombie; an
orchestrator that takes none comes back with a stale term. What only happens when something goes wrong is a fault, and
the end must be reachable without any.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.proofs.model import rows as sql
from tests.proofs.model.rows import NOBODY, Answer, Rows, Rules

OFF, ASKING, WORKING, TELLING, LEFT, DEAD = range(6)  # DEAD: gone, and its last request is still on the way
WORDS: dict[str, Callable[[Rules, Rows, int, int, int, int], tuple[Rows, Answer]]] = {
    "complete": sql.complete,
    "fail": sql.fail,
    "release": sql.release,
}
ACCEPTED = frozenset({"ok", "requeued", "failed", "cancelled"})


class Agent(NamedTuple):
    """One launch on one worker's pod; it repeats what it asks or tells until it hears an answer."""

    mode: int = OFF
    number: int = 0  # of its present claim
    task: int = NOBODY
    attempt: int = 0
    word: str = ""  # what it tells, or told last


class Brain(NamedTuple):
    """One orchestrator: the term that it believes in, and the pod that it has decided to create, asks for, or got."""

    term: int = 0
    asking: int = NOBODY
    phase: str = ""  # "" | decided | asked | created | refused
    asked_in: int = 0  # the term in which it decided that


class State(NamedTuple):
    """All there is."""

    rows: Rows
    agents: tuple[tuple[Agent, ...], ...]  # by worker, by launch
    brains: tuple[Brain, ...]
    pods: tuple[tuple[int, int], ...]  # by worker: made so far, still there
    accepted: tuple[int, ...]  # completions that were answered with ok, by task


@dataclass(frozen=True)
class Scope:
    """How large the world is, and which faults it knows."""

    tasks: int
    workers: int
    brains: int = 1
    terms: int = 1
    launches: int = 1
    claims: int = 2
    ready: bool = True  # workers begin promoted, with an agent; else there are none yet
    cancels: bool = True
    crashes: bool = True  # of agents; of orchestrators where there are several terms

    def start(self) -> State:
        """Before anything has happened."""
        worker = sql.Worker(sql.ACTIVE, sql.PROMOTED, 1) if self.ready else sql.Worker()
        first = Agent(ASKING, 1) if self.ready else Agent()
        lease = sql.Lease(0, 1, fresh=True) if self.ready else sql.Lease()
        return State(
            Rows((sql.Task(),) * self.tasks, (worker,) * self.workers, lease),
            ((first, *(Agent(),) * (self.launches - 1)),) * self.workers,
            (Brain(lease.term), *(Brain(),) * (self.brains - 1)),
            ((1, 1) if self.ready else (0, 0),) * self.workers,
            (0,) * self.tasks,
        )


class Step(NamedTuple):
    """One thing that may happen next; `call` is the function and its arguments, where it is one of the rows'."""

    label: str
    state: State
    fault: bool = False
    call: tuple[object, ...] | None = None
    answer: Answer | None = None
    wrong: str | None = None  # a rule that the step itself breaks


def steps(rules: Rules, scope: Scope, state: State) -> Iterator[Step]:
    """Every next state."""
    for w, launches in enumerate(state.agents):
        for launch, agent in enumerate(launches, 1):
            if agent.mode not in {OFF, LEFT}:
                yield from _agent(rules, scope, state, w, launch, agent)
    for o, brain in enumerate(state.brains):
        yield from _brain(rules, scope, state, o, brain)
    yield from _nature(rules, scope, state)


# --- agents


def _with(state: State, rows: Rows, w: int, launch: int, agent: Agent) -> State:
    launches = state.agents[w]
    changed = (*launches[: launch - 1], agent, *launches[launch:])
    return state._replace(rows=rows, agents=(*state.agents[:w], changed, *state.agents[w + 1 :]))


def _next(scope: Scope, agent: Agent, *, told: bool = False) -> Agent:
    """On to its next claim; as many as the scope has."""
    number = agent.number + 1
    if number > scope.claims:
        return Agent(LEFT)
    return Agent(ASKING, number, agent.task, agent.attempt, agent.word) if told else Agent(ASKING, number)


def _agent(rules: Rules, scope: Scope, state: State, w: int, launch: int, agent: Agent) -> Iterator[Step]:
    name = f"agent {w}.{launch}"
    if agent.mode == DEAD:
        yield from _late(rules, state, w, launch, agent, name)
        return
    if agent.mode == ASKING:
        yield from _claims(rules, scope, state, w, launch, agent, name)
        if agent.number > 1:
            call = ("claim", w, launch, agent.number - 1)
            rows, answer = sql.claim(rules, state.rows, w, launch, agent.number - 1)
            if rows != state.rows:
                label = f"{name}: a late copy of its claim {agent.number - 1} arrives"
                yield Step(label, state._replace(rows=rows), True, call, answer)
        if agent.word:  # of what it told before
            yield from _tell(rules, scope, state, w, launch, agent, name, late=True)
    else:
        yield from _beats(rules, scope, state, w, launch, agent, name)
        if agent.mode == WORKING:
            for word in WORDS:
                telling = agent._replace(mode=TELLING, word=word)
                yield Step(f"{name}: will {word} {_token(agent)}", _with(state, state.rows, w, launch, telling))
        else:
            yield from _tell(rules, scope, state, w, launch, agent, name, late=False)
    if scope.crashes:
        dead = Agent(LEFT) if agent.mode == WORKING else agent._replace(mode=DEAD)
        if dead.mode == DEAD and not agent.word:
            dead = Agent(DEAD, agent.number)
        yield Step(f"{name}: dies", _with(state, state.rows, w, launch, dead), fault=True)


def _claims(rules: Rules, scope: Scope, state: State, w: int, launch: int, agent: Agent, name: str) -> Iterator[Step]:
    call = ("claim", w, launch, agent.number)
    rows, answer = sql.claim(rules, state.rows, w, launch, agent.number)
    said, heard = f"{name}: claims (number {agent.number})", Agent(LEFT)
    if answer[0] == "ok":
        _, wanted, tasks = answer
        if tasks:
            heard = Agent(WORKING, agent.number, *tasks[0])  # type: ignore[index]
        elif wanted == "run":
            heard = _next(scope, agent, told=bool(agent.word))
    yield Step(f"{said}: {answer}", _with(state, rows, w, launch, heard), False, call, answer)
    if rows != state.rows:
        yield Step(f"{said}, the reply is lost", state._replace(rows=rows), True, call, answer)
    if answer[-1] == ():
        rows, answer = sql.claim(rules, state.rows, w, launch, agent.number, 1)
        if rows != state.rows:
            yield Step(f"{said}, and is kept waiting", state._replace(rows=rows), False, (*call, 1), answer)


def _beats(rules: Rules, scope: Scope, state: State, w: int, launch: int, agent: Agent, name: str) -> Iterator[Step]:
    call = ("heartbeat", w, launch, agent.task, agent.attempt)
    rows, answer = sql.heartbeat(rules, state.rows, w, launch, agent.task, agent.attempt)
    heard = agent
    if answer[0] != "ok":
        heard = Agent(LEFT)
    elif answer[1] == "fenced":
        heard = _next(scope, agent)
    elif answer[1] == "cancel" and agent.mode == WORKING:
        heard = agent._replace(mode=TELLING, word="fail")
    if heard != agent or rows != state.rows:
        yield Step(f"{name}: beats: {answer}", _with(state, rows, w, launch, heard), False, call, answer)


def _tell(
    rules: Rules, scope: Scope, state: State, w: int, launch: int, agent: Agent, name: str, *, late: bool
) -> Iterator[Step]:
    call = (agent.word, w, launch, agent.task, agent.attempt)
    wrong, accepted = None, state.accepted
    rows, answer = WORDS[agent.word](rules, state.rows, w, launch, agent.task, agent.attempt)
    before = state.rows.tasks[agent.task]
    outcome = before.attempts[agent.attempt - 1][3] if len(before.attempts) >= agent.attempt else "?"
    if answer[0] in ACCEPTED and (outcome or len(before.attempts) != agent.attempt):
        wrong = f"a word about attempt {agent.attempt} counted, which is not under way ({outcome or 'superseded'})"
    if answer == sql.FENCED and outcome == "complete" and agent.word == "complete" and not late:
        wrong = "an accepted completion was answered with fenced"
    if agent.word == "complete" and answer == ("ok",):
        t = agent.task
        accepted = (*accepted[:t], accepted[t] + 1, *accepted[t + 1 :])
    said = f"{name}: {agent.word} {_token(agent)}"
    lost = state._replace(rows=rows, accepted=accepted)
    if late:
        if lost != state or wrong:
            yield Step(f"{said}: a late copy arrives: {answer}", lost, True, call, answer, wrong)
        return
    heard = Agent(LEFT) if answer == sql.GONE_WORKER or agent.word == "release" else _next(scope, agent, told=True)
    yield Step(f"{said}: {answer}", _with(lost, rows, w, launch, heard), False, call, answer, wrong)
    if lost != state or wrong:
        yield Step(f"{said}, the reply is lost", lost, True, call, answer, wrong)


def _late(rules: Rules, state: State, w: int, launch: int, agent: Agent, name: str) -> Iterator[Step]:
    """What it asked last, after its death; or never."""
    if agent.word:
        for step in _tell(rules, Scope(0, 0), state, w, launch, agent, name, late=True):
            yield step._replace(state=_with(step.state, step.state.rows, w, launch, Agent(LEFT)))
        return
    rows, answer = sql.claim(rules, state.rows, w, launch, agent.number)
    call = ("claim", w, launch, agent.number)
    gone = _with(state, rows, w, launch, Agent(LEFT))
    yield Step(f"{name}: its last claim ({agent.number}) arrives after its death", gone, True, call, answer)


def _token(agent: Agent) -> str:
    return f"task {agent.task} attempt {agent.attempt}"


# --- orchestrators


def _brain(rules: Rules, scope: Scope, state: State, o: int, brain: Brain) -> Iterator[Step]:
    rows, name = state.rows, f"orchestrator {o}"
    if rows.lease.fresh or rows.lease.term < scope.terms:
        led, answer = sql.lead(rules, rows, o)
        term = answer[1] if answer[0] == "leads" else 0
        assert isinstance(term, int)
        if led != rows or term != brain.term:
            call, knows = ("lead", o), _thinks(state, led, o, brain._replace(term=term))
            yield Step(f"{name}: lead: {answer}", knows, False, call, answer)
            if led != rows:
                yield Step(f"{name}: lead, the reply is lost", state._replace(rows=led), True, call, answer)
    if scope.crashes and brain != Brain() and not (rows.lease.holder == o and rows.lease.term >= scope.terms):
        lease = rows.lease._replace(holder=sql.FORMER) if rows.lease.holder == o else rows.lease
        crashed = _thinks(state, rows._replace(lease=lease), o, Brain())
        yield Step(f"{name}: is killed and restarted", crashed, True, ("crash", o))
    if brain.asking != NOBODY:
        yield from _renting(rules, state, o, brain, name)
    if brain.term:
        for w in range(scope.workers):
            yield from _worker(rules, scope, state, o, w, name)
        if rules.rescue and any(t.lease == sql.OVER or not rules.lease for t in rows.tasks):
            saved, answer = sql.rescue(rules, rows, brain.term, NOBODY)
            taken = [a for a, b in zip(rows.tasks, saved.tasks, strict=True) if a != b and a.lease == sql.FRESH]
            wrong = "a task was taken away under a lease that was not over" if taken else None
            rescued = state._replace(rows=saved)
            yield Step(f"{name}: rescue: {answer}", rescued, False, ("rescue", brain.term, NOBODY), answer, wrong)


def _thinks(state: State, rows: Rows, o: int, brain: Brain) -> State:
    return state._replace(rows=rows, brains=(*state.brains[:o], brain, *state.brains[o + 1 :]))


def _pod(state: State, w: int, made: int, there: int) -> State:
    was = state.pods[w]
    return state._replace(pods=(*state.pods[:w], (was[0] + made, was[1] + there), *state.pods[w + 1 :]))


def _renting(rules: Rules, state: State, o: int, brain: Brain, name: str) -> Iterator[Step]:
    """The create call, whose three answers are a pod, a refusal and silence; then writing down what came."""
    w, free = brain.asking, brain._replace(asking=NOBODY, phase="", asked_in=0)
    if brain.phase == "decided":
        rows, answer = sql.move(rules, state.rows, brain.asked_in, w, "ask")
        after = _thinks(state, rows, o, brain._replace(phase="asked") if answer == ("moved",) else free)
        call = ("move", brain.asked_in, w, "ask")
        yield Step(f"{name}: writes down that it asks for {w}: {answer}", after, False, call, answer)
        return
    if brain.phase == "asked":
        made = _pod(state, w, 1, 1)
        yield Step(f"{name}: creates a pod for {w}", _thinks(made, state.rows, o, brain._replace(phase="created")))
        yield Step(f"{name}: creates a pod for {w}, the reply is lost", _thinks(made, state.rows, o, free), True)
        yield Step(f"{name}: no capacity for {w}", _thinks(state, state.rows, o, brain._replace(phase="refused")), True)
        yield Step(f"{name}: asks for {w}, the request is lost", _thinks(state, state.rows, o, free), True)
        return
    rows, answer = sql.move(rules, state.rows, brain.asked_in, w, brain.phase)
    call = ("move", brain.asked_in, w, brain.phase)
    after = _thinks(state, rows, o, free)
    yield Step(f"{name}: writes down {brain.phase} for {w}: {answer}", after, False, call, answer)


def _worker(rules: Rules, scope: Scope, state: State, o: int, w: int, name: str) -> Iterator[Step]:
    """What the planner has in mind for one worker."""
    worker, brain, there = state.rows.workers[w], state.brains[o], state.pods[w][1]
    if worker.status == sql.ABSENT:
        rows, answer = sql.spawn(rules, state.rows, brain.term, w)
        yield Step(f"{name}: spawn {w}: {answer}", state._replace(rows=rows), False, ("spawn", brain.term, w), answer)
    may_ask = worker.stage == sql.INTENT or (worker.stage == sql.ASKED and not rules.ask_once)
    if worker.status == sql.SPAWNING and brain.asking == NOBODY and may_ask:
        decided = _thinks(state, state.rows, o, Brain(brain.term, w, "decided", brain.term))
        yield Step(f"{name}: decides to ask for {w}", decided)
    for move in _moves(scope, worker, there):
        rows, answer = sql.move(rules, state.rows, brain.term, w, move)
        after = state._replace(rows=rows)
        if answer == ("moved",) and move == "launch":
            after = _with(after, rows, w, rows.workers[w].launch, Agent(ASKING, 1))
        if after != state:
            yield Step(f"{name}: {move} {w}", after, False, ("move", brain.term, w, move), answer)
    if worker.status in sql.LIVE:
        rows, answer = sql.terminate(rules, state.rows, brain.term, w, worker.status)
        if rows != state.rows:
            call = ("terminate", brain.term, w, worker.status)
            yield Step(f"{name}: terminate {w}", state._replace(rows=rows), False, call, answer)
    elif there and worker.stage != sql.DRAINING:  # the provider knows no terms
        yield Step(f"{name}: deletes the pods of {w}", _pod(state, w, 0, -there))


def _moves(scope: Scope, worker: sql.Worker, there: int) -> list[str]:
    if worker.status == sql.SPAWNING and worker.stage == sql.ASKED and there:
        return ["created"]  # adopted
    if worker.status == sql.SPAWNING and worker.stage == sql.POD:
        return ["launch"] * (worker.launch < scope.launches) + ["promote"] * (worker.launch > 0)
    if worker.status == sql.TERMINATING and worker.stage == sql.DRAINING:
        return ["flush"]
    return ["bury"] if worker.status == sql.TERMINATING and not there else []


# --- time, operators, and workers that this small world has no room for


def _nature(rules: Rules, scope: Scope, state: State) -> Iterator[Step]:
    rows = state.rows
    for t, task in enumerate(rows.tasks):
        if task.lease == sql.FRESH:
            over = state._replace(rows=sql.lapse(rows, t))
            yield Step(f"time: the lease of task {t} ends", over, False, ("lapse", t))
        if not task.due:
            due = state._replace(rows=sql.come_due(rows, t))
            yield Step(f"time: the back-off of task {t} ends", due, False, ("come_due", t))
        if scope.cancels and not task.cancel:
            after, answer = sql.cancel(rules, rows, t)
            if after != rows:
                yield Step(f"operator: cancel {t}: {answer}", state._replace(rows=after), True, ("cancel", t), answer)
    if rows.lease.fresh and rows.lease.term < scope.terms:
        yield Step("time: the lead ends", state._replace(rows=sql.lapse_lead(rows)), False, ("lapse_lead",))
    if all(worker.status == sql.TERMINATED for worker in rows.workers):
        for t, task in enumerate(rows.tasks):
            if task.status == sql.QUEUED and task.due:
                done = task._replace(status=sql.COMPLETE)
                tasks = (*rows.tasks[:t], done, *rows.tasks[t + 1 :])
                yield Step(f"another worker completes task {t}", state._replace(rows=rows._replace(tasks=tasks)))
