"""What the learned rule of scaling reads: the runs of tasks, and from when a worker could have run each."""

from datetime import datetime, timedelta
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.core.states import State
from tests.db.conformance.builders import FLEET, START, Agent, Fleet

RUNS = "select * from orchestrator.task_runs(%s, %s, %s, %s, %s)"


def at(seconds: float) -> datetime:
    """A moment of the fleet's clock."""
    return START + timedelta(seconds=seconds)


async def runs(
    hand: AsyncConnection[DictRow], pool: str | None = None, since_s: float = -1, limit: int = 100, fleet: str = FLEET
) -> list[dict[str, Any]]:
    """The runs until an hour after the start, the newest first."""
    return await (await hand.execute(RUNS, (fleet, pool, at(since_s), at(3600), limit))).fetchall()


async def complete_one(agent: Agent, run_s: float) -> str:
    """Run the next task for so long; its id."""
    (task,) = await agent.claim()
    agent.fleet.wait(run_s)
    await agent.complete(task)
    return str(task["id"])


async def created(hand: AsyncConnection[DictRow], task_id: str, seconds: float) -> None:
    """Let a task have been created then."""
    await hand.execute("update tasks set created_at = %s where id = %s", (at(seconds), task_id))


async def test_a_run_has_its_arrival_start_end_pool_and_worker(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """The task waited from its creation until the claim."""
    (task,) = await fleet.submit()
    await created(hand, task, 0)
    agent = await fleet.agent()
    fleet.wait(10)
    await complete_one(agent, 5)
    (run,) = await runs(hand)
    assert (run["arrived_at"], run["started_at"], run["ended_at"]) == (at(0), at(10), at(15))
    assert (str(run["task_id"]), run["attempt"], run["outcome"]) == (task, 1, "complete")
    assert (run["pool"], run["worker_id"]) == ("default", agent.id)


async def test_a_task_arrives_when_what_it_needs_has_ended(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """The later one of two."""
    first, second = await fleet.submit(count=2)
    (last,) = await fleet.submit({"depends_on": [first, second]})
    for task in (first, second, last):
        await created(hand, task, 0)
    agent = await fleet.agent()
    await complete_one(agent, 20)
    await complete_one(agent, 30)
    fleet.wait(7)
    assert await complete_one(agent, 1) == last
    newest, *_ = await runs(hand)
    assert (newest["arrived_at"], newest["started_at"]) == (at(50), at(57))


async def test_a_later_attempt_arrives_when_the_one_before_has_ended(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Or after the pause that the failure caused."""
    (task,) = await fleet.submit()
    await created(hand, task, 0)
    agent = await fleet.agent()
    (claimed,) = await agent.claim()
    fleet.wait(10)
    await agent.release(claimed)
    fleet.wait(30)
    await complete_one(agent, 5)
    newest, oldest = await runs(hand)
    assert (oldest["attempt"], oldest["outcome"], oldest["arrived_at"]) == (1, "released", at(0))
    assert (newest["attempt"], newest["arrived_at"], newest["started_at"]) == (2, at(10), at(40))


async def test_the_run_of_a_deleted_task_arrives_at_its_start(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Nothing is known of the time before."""
    (task,) = await fleet.submit()
    await created(hand, task, 0)
    agent = await fleet.agent()
    fleet.wait(10)
    await complete_one(agent, 5)
    await hand.execute("delete from tasks where id = %s", (task,))
    (run,) = await runs(hand)
    assert run["arrived_at"] == run["started_at"] == at(10)


async def test_runs_are_those_of_a_fleet_a_pool_and_a_window(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """The newest ones, if there are more than asked for."""
    default, other = await fleet.agent(), await fleet.agent(pool="other")
    await fleet.submit(count=3)
    await fleet.submit({"pool": "other"})
    for _ in range(3):
        await complete_one(default, 10)  # end at 10, 20 and 30 s
    await complete_one(other, 10)
    ends = [(run["pool"], run["ended_at"]) for run in await runs(hand)]
    assert ends == [("other", at(40)), *(("default", at(seconds)) for seconds in (30, 20, 10))]
    assert [run["ended_at"] for run in await runs(hand, "default", since_s=10)] == [at(30), at(20)]
    assert [run["ended_at"] for run in await runs(hand, "default", limit=1)] == [at(30)]
    assert [run["pool"] for run in await runs(hand, "other")] == ["other"]
    assert await runs(hand, fleet="another") == []
    assert await fleet.status(default.id) == State.ACTIVE
