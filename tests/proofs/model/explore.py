"""A breadth-first search of every state, what must hold in each, and the shortest way to one where it does not."""

from array import array
from dataclasses import dataclass, field
from itertools import pairwise

from tests.proofs.model import rows as sql
from tests.proofs.model.rows import Rules
from tests.proofs.model.world import ASKING, DEAD, LEFT, OFF, Scope, State, steps


@dataclass
class Found:
    """What a search has seen; `wrong` and the way to it, if something does not hold."""

    states: int
    steps: int
    wrong: str | None = None
    way: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.wrong is None:
            return f"{self.states} states, {self.steps} steps: all hold"
        way = "\n".join(f"  {number:2}. {label}" for number, label in enumerate(self.way, 1))
        return f"{self.wrong}; the shortest way there:\n{way}"


def explore(rules: Rules, scope: Scope, *, at_most: int = 2_000_000) -> Found:
    """Every state that can be reached; stops at the first that breaks a rule. Then: each can still reach the end."""
    start = scope.start()
    number: dict[State, int] = {start: 0}
    queue = [start]
    parent, into, backwards, taken = array("l", [-1]), array("l"), array("l"), 0
    for at, state in enumerate(queue):
        for step in steps(rules, scope, state):
            taken += 1
            after = number.get(step.state)
            if after is None:
                after = number[step.state] = len(queue)
                queue.append(step.state)
                parent.append(at)
                wrong = step.wrong or broken(step.state)
            else:
                wrong = step.wrong
            if wrong:
                return Found(len(queue), taken, wrong, [*_way(rules, scope, queue, parent, at), step.label])
            if not step.fault:
                into.append(after)
                backwards.append(at)
        if len(queue) > at_most:
            message = f"more than {at_most} states"
            raise OverflowError(message)
    stuck = _cannot_end(queue, into, backwards)
    if stuck is not None:
        why = "from here, without further faults, the end cannot be reached any more"
        return Found(len(queue), taken, why, _way(rules, scope, queue, parent, stuck))
    return Found(len(queue), taken)


def broken(state: State) -> str | None:
    """A rule that does not hold in this state."""
    if max(state.accepted) > 1:
        return "I3: two completions of one task were accepted"
    if any(made > 1 for made, _ in state.pods):
        return "two pods were created for one intent"
    runs: set[tuple[int, int]] = set()
    for launches in state.agents:
        for agent in launches:
            if agent.mode not in {OFF, LEFT, DEAD, ASKING}:
                if (agent.task, agent.attempt) in runs:
                    return f"two agents run task {agent.task} under one fencing token, attempt {agent.attempt}"
                runs.add((agent.task, agent.attempt))
    wrongs = (_broken_task(state, t, task) for t, task in enumerate(state.rows.tasks))
    return next((wrong for wrong in wrongs if wrong), None)


def _broken_task(state: State, t: int, task: sql.Task) -> str | None:
    if state.accepted[t] and task.status != sql.COMPLETE:
        return f"task {t} had completed, and is now {task.status}"
    if task.status == sql.FAILED and len(task.attempts) - task.uncounted < sql.MAX_ATTEMPTS:
        return f"task {t} failed before its attempts were used up"
    if task.status == sql.RUNNING and _forgotten(state, t, task):
        return f"task {t} is held by an agent that does not know it"
    return None


def _forgotten(state: State, t: int, task: sql.Task) -> bool:
    w, launch, claim_no, _ = task.attempts[-1]
    agent = state.agents[w][launch - 1]
    if agent.mode in {LEFT, DEAD} or state.rows.workers[w].launch != launch:
        return False  # its lease will end
    if agent.mode == ASKING:
        return agent.number != claim_no
    return (agent.task, agent.attempt) != (t, len(task.attempts))


def _is_end(state: State) -> bool:
    rows = state.rows
    return (
        all(task.status in sql.ENDED for task in rows.tasks)
        and all(worker.status in {sql.ABSENT, sql.TERMINATED} for worker in rows.workers)
        and not any(there for _, there in state.pods)
    )


def _cannot_end(queue: list[State], into: "array[int]", backwards: "array[int]") -> int | None:
    """The first state from which no end can be reached, by going back from the ends."""
    begins = array("l", bytes(array("l").itemsize * (len(queue) + 1)))
    for after in into:
        begins[after + 1] += 1
    for at in range(len(queue)):
        begins[at + 1] += begins[at]
    fill, before = array("l", begins), array("l", bytes(into.itemsize * len(into)))
    for after, at in zip(into, backwards, strict=True):
        before[fill[after]] = at
        fill[after] += 1
    reached = bytearray(len(queue))
    todo = [at for at, state in enumerate(queue) if _is_end(state)]
    for at in todo:
        reached[at] = 1
    while todo:
        at = todo.pop()
        for earlier in before[begins[at] : begins[at + 1]]:
            if not reached[earlier]:
                reached[earlier] = 1
                todo.append(earlier)
    first = reached.find(0)
    return None if first < 0 else first


def _way(rules: Rules, scope: Scope, queue: list[State], parent: "array[int]", at: int) -> list[str]:
    ats = [at]
    while parent[ats[-1]] >= 0:
        ats.append(parent[ats[-1]])
    ats.reverse()
    return [
        next(step.label for step in steps(rules, scope, queue[before]) if step.state == queue[after])
        for before, after in pairwise(ats)
    ]
