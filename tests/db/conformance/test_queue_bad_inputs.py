"""The same tasks on other workers decide whether a worker is sick, its release is bad, or only the inputs are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import pytest

from orchestrator.adapters.store import SqlStore
from orchestrator.core import fitness
from orchestrator.core.actions import Spawn, Terminate
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.plan import plan
from orchestrator.core.states import READY, Stage, State
from tests.db.conformance.builders import FLEET, Agent, Fleet
from tests.unit.core.build import policy, said, snapshot

STEP_S, IDLE_S = 5.0, 15.0
ROUNDS = 400  # more than any of these queues needs
FAILURE = {"code": "HANDLER_ERROR", "message": "ValueError: no segments", "exit_class": "exception"}


@dataclass
class Run:
    """Workers that claim one task after the other. `fails` says whether this task fails on this worker."""

    fleet: Fleet
    fails: Callable[[str, str], bool]
    agents: list[Agent]
    most: int = 4  # MAX_ACTIVE_GPUS
    failure: Mapping[str, Any] = field(default_factory=lambda: FAILURE)
    ended: list[Terminate] = field(default_factory=list)

    async def until_done(self, *, replaced: bool = False) -> None:
        """Work until no task waits; `replaced`: the planner ends workers and starts others."""
        for _ in range(ROUNDS):
            if await self.step(replaced=replaced):
                return
        raise AssertionError("tasks wait still")

    async def step(self, *, replaced: bool = False) -> bool:
        """Let each worker claim once, then let the planner look. Return whether no task waits."""
        idle = True
        await self.fleet.maintain(1)
        for agent in self.agents:
            for task in await agent.claim():
                idle = False
                if self.fails(agent.id, task["id"]):
                    await agent.fail(task, **self.failure)
                else:
                    await agent.complete(task)
        self.fleet.wait(IDLE_S if idle else STEP_S)
        half = await SqlStore(self.fleet.db, FLEET).snapshot()
        seen = replace(snapshot(*half.workers), now=self.fleet.now, demand=half.demand)
        rules = policy(pool={"max_active": self.most})
        ready = [one for one in half.workers if one.state in READY]
        ends = [end for one in ready if (end := fitness.end(one, seen, rules))]
        self.ended += ends
        for end in ends if replaced else ():
            await self._end(end)  # its tasks get an attempt back, and some are queued again
        suspects = [one for one in ready if not one.is_fit]
        if replaced and len(self.agents) < self.most and len(suspects) == len(ready):
            self.agents.append(await on_machine(self.fleet, f"m{len(self.ended)}-{len(self.agents)}-{self.fleet.now}"))
        half = await SqlStore(self.fleet.db, FLEET).snapshot()
        return not any(one.queued + one.running for one in half.demand)

    async def _end(self, end: Terminate) -> None:
        fields: dict[str, Any] = {"exit_cause": end.cause, "failure_code": end.code}
        await self.fleet.move(end.worker_id, end.from_state, State.TERMINATING, stage=Stage.DRAINING, **fields)
        self.agents = [one for one in self.agents if one.id != end.worker_id]


async def on_machine(fleet: Fleet, machine_id: str, **intent: Any) -> Agent:
    """A worker on this host."""
    agent = await fleet.agent(**intent)
    await fleet.move(agent.id, State.ACTIVE, machine_id=machine_id)
    return agent


async def statuses(fleet: Fleet, ids: Sequence[str]) -> list[str]:
    return [(await fleet.task(one))["status"] for one in ids]


@pytest.mark.parametrize(
    ("shape", "workers", "attempts"),
    [
        ("gbbbbbbggg", 2, 3),
        ("gbbbbbbggg", 1, 3),
        ("gbbbbbbggg", 1, 1),
        ("bbbbbbbbbbbbggg", 2, 2),
        ("bbbbbbbbbbbbggg", 3, 1),
        ("gbbbbbgbbbbbbbgb", 2, 3),
        ("bbbbbb", 2, 3),
    ],
)
async def test_bad_inputs_end_no_worker(fleet: Fleet, shape: str, workers: int, attempts: int) -> None:
    """Whatever their order, each task ends as its input deserves, and nothing is held against a worker."""
    ids = [(await fleet.submit(max_attempts=attempts))[0] for _ in shape]
    bad = {one for one, letter in zip(ids, shape, strict=True) if letter == "b"}
    run = Run(fleet, lambda _, task: task in bad, [await fleet.agent() for _ in range(workers)])
    await run.until_done()
    assert run.ended == []
    assert await statuses(fleet, ids) == ["Failed" if letter == "b" else "Complete" for letter in shape]


@pytest.mark.parametrize("workers", [1, 2])
async def test_bad_inputs_that_the_handler_calls_permanent_end_no_worker(fleet: Fleet, workers: int) -> None:
    """Although another worker completes such tasks: they had other inputs."""
    shape = "gbbbbbbbgggbbbbbbgg"
    ids = [(await fleet.submit())[0] for _ in shape]
    bad = {one for one, letter in zip(ids, shape, strict=True) if letter == "b"}
    agents = [await fleet.agent() for _ in range(workers)]
    run = Run(fleet, lambda _, task: task in bad, agents, failure=FAILURE | {"retryable": False})
    await run.until_done()
    assert run.ended == []
    assert await statuses(fleet, ids) == ["Failed" if letter == "b" else "Complete" for letter in shape]


async def test_a_worker_on_which_tasks_fail_that_others_complete_ends(fleet: Fleet) -> None:
    """By the same tasks, and only this worker. All tasks are completed."""
    ids = await fleet.submit(count=20)
    sick, well = await on_machine(fleet, "m1"), await on_machine(fleet, "m2")
    run = Run(fleet, lambda worker, _: worker == sick.id, [sick, well])
    await run.until_done(replaced=True)
    assert [(one.worker_id, one.cause, one.code) for one in run.ended] == [
        (sick.id, ExitCause.WORKER_SICK, FailureCode.TASKS_FAIL_HERE)
    ]
    assert set(await statuses(fleet, ids)) == {"Complete"}


@pytest.mark.parametrize("count", [5, 30])
async def test_the_only_worker_ends_once_a_second_one_completes_its_tasks(fleet: Fleet, count: int) -> None:
    """The second one is started because the first is no capacity. No task is lost, however few there are."""
    ids = await fleet.submit(count=count)
    sick = await on_machine(fleet, "m1")
    run = Run(fleet, lambda worker, _: worker == sick.id, [sick])
    await run.until_done(replaced=True)
    assert [(one.worker_id, one.code) for one in run.ended] == [(sick.id, FailureCode.TASKS_FAIL_HERE)]
    assert set(await statuses(fleet, ids)) == {"Complete"}


@pytest.mark.parametrize("count", [5, 30])
async def test_a_sick_worker_without_room_for_a_second_one_is_replaced(fleet: Fleet, count: int) -> None:
    """After it has claimed once more in vain, without a strike; its successor tries the same tasks."""
    ids = await fleet.submit(count=count)
    sick = await on_machine(fleet, "m1")
    run = Run(fleet, lambda worker, _: worker == sick.id, [sick], most=1)
    while not run.ended:
        await run.step(replaced=True)
    assert [(one.worker_id, one.code) for one in run.ended] == [(sick.id, FailureCode.TASKS_FAIL_UNJUDGED)]
    run.agents.append(await on_machine(fleet, "m2"))
    await run.until_done(replaced=True)
    assert set(await statuses(fleet, ids)) == {"Complete"}


async def test_a_bad_release_is_named_and_no_further_worker_is_started(fleet: Fleet) -> None:
    """Its workers try now and then, so that it costs few attempts, and it recovers by itself if the world does."""
    ids = await fleet.submit(count=160, max_attempts=9)
    broken = True
    agents = [await on_machine(fleet, f"m{number}", release="image@") for number in range(2)]
    run = Run(fleet, lambda *_: broken, agents)
    for _ in range(60):
        await run.step()
    tried = sum([(await fleet.task(one))["attempts"] for one in ids])
    assert tried < 150, "ten minutes of two workers that fail a task in seconds"
    half = await SqlStore(fleet.db, FLEET).snapshot()
    for _ in range(240):  # for a while each may have tried tasks that the other one has not tried yet
        if all(one.held_back and not one.held_back.suspect for one in half.workers):
            break
        await run.step()
        half = await SqlStore(fleet.db, FLEET).snapshot()
    seen = replace(snapshot(*half.workers), now=fleet.now, demand=half.demand, promoted_releases=frozenset({"image@"}))
    made = plan(seen, policy())
    assert not [one for one in made.actions if isinstance(one, Spawn)]
    assert any("Release image@ fails its tasks on every worker" in text for text in said(made)), said(made)
    broken = False
    await run.until_done()
    assert not [one for one in run.ended if one.code is not FailureCode.TASKS_FAIL_EVERYWHERE]
    assert len({one.worker_id for one in run.ended}) <= 1, "one of them always stays and tries"


async def test_what_another_release_completes_says_nothing_about_a_host(fleet: Fleet) -> None:
    """A corrected release completes what the earlier one failed: the earlier one's worker is superseded."""
    await fleet.submit(count=12)
    old, new = await on_machine(fleet, "m1", release="image@old"), await fleet.agent(release="image@")
    run = Run(fleet, lambda worker, _: worker == old.id, [old, new])
    await run.until_done(replaced=True)
    assert [(one.worker_id, one.cause) for one in run.ended] == [(old.id, ExitCause.SUPERSEDED)]


def at_first(flaky: Callable[[str], bool], sick: str = "") -> Callable[[str, str], bool]:
    """These tasks fail the first time that they are tried, wherever that is; all of them fail on the sick worker."""
    tried: set[str] = set()

    def fails(worker: str, task: str) -> bool:
        first = task not in tried
        tried.add(task)
        return worker == sick or (first and flaky(task))

    return fails


@pytest.mark.parametrize("workers", [1, 3])
async def test_tasks_that_fail_only_the_first_time_end_no_worker(fleet: Fleet, workers: int) -> None:
    """Another worker completes them, and that says nothing: their first attempts fail there too."""
    ids = await fleet.submit(count=40)
    run = Run(fleet, at_first(lambda _: True), [await on_machine(fleet, f"m{number}") for number in range(workers)])
    await run.until_done(replaced=True)
    assert run.ended == []
    assert set(await statuses(fleet, ids)) == {"Complete"}


async def test_a_sick_worker_ends_although_many_tasks_fail_the_first_time_elsewhere(fleet: Fleet) -> None:
    """Only it, once chance does not explain its failures. No task is lost.

    The order of the tasks follows their ids, which are always the same here: in few orders, chance does explain it.
    """
    ids = await fleet.submit(*({"id": str(UUID(int=number))} for number in range(120)))
    flaky = set(ids[::3])
    agents = [await on_machine(fleet, f"m{number}") for number in range(4)]
    run = Run(fleet, at_first(flaky.__contains__, agents[0].id), list(agents))
    await run.until_done(replaced=True)
    assert [(one.worker_id, one.code) for one in run.ended] == [(agents[0].id, FailureCode.TASKS_FAIL_HERE)]
    assert set(await statuses(fleet, ids)) == {"Complete"}


async def test_tasks_that_a_person_corrects_and_queues_again_end_no_worker(fleet: Fleet) -> None:
    """They are completed elsewhere with other inputs, which says nothing about the worker that failed them before."""
    ids = await fleet.submit(count=40, max_attempts=1)
    agents = [await on_machine(fleet, f"m{number}") for number in range(2)]
    bad: set[str] = set()

    def fails(worker: str, task: str) -> bool:
        if worker == agents[0].id and len(bad) < 5:
            bad.add(task)
            return True
        return False

    run = Run(fleet, fails, agents)
    for _ in range(8):
        await run.step(replaced=True)
    assert len(bad) == 5
    for one in bad:
        await fleet.call("task_retry", p_id=one)
    await run.until_done(replaced=True)
    assert run.ended == []
    assert set(await statuses(fleet, ids)) == {"Complete"}


async def test_bad_inputs_without_a_second_attempt_end_no_worker_although_another_completes_a_few(fleet: Fleet) -> None:
    """The other fails most of its tasks too: that so many fail here is chance."""
    await fleet.submit(count=130, max_attempts=1)
    first, second = await on_machine(fleet, "m1"), await on_machine(fleet, "m2")
    seen: list[str] = []

    def fails(worker_id: str, task_id: str) -> bool:
        if worker_id == second.id:
            seen.append(task_id)
        return worker_id == first.id or len(seen) % 5 > 0

    run = Run(fleet, fails, [first, second])
    await run.until_done()
    assert run.ended == []


async def test_a_release_that_completed_such_tasks_is_not_bad_after_any_number_of_failures(fleet: Fleet) -> None:
    """More than the last attempts that are looked at."""
    await fleet.submit(count=225, max_attempts=1)
    agent = await fleet.agent(metadata={"max_failures": 50})
    [good] = await agent.claim()
    await agent.complete(good)
    fleet.wait(1)
    failed = 0
    while failed < 205:
        tasks = await agent.claim()
        for task in tasks:
            await agent.fail(task, **FAILURE)
        failed += len(tasks)
        if not tasks:
            fleet.wait(100)
    [worker] = (await SqlStore(fleet.db, FLEET).snapshot()).workers
    assert worker.held_back is not None
    assert worker.held_back.release_works
