"""Claims: in order, to one worker each, fenced, and answered the same when the answer was lost."""

import asyncio
import hashlib
from collections import Counter

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.core.states import Stage, State
from orchestrator.ports import BadArgument, PortError, UnknownWorker
from tests.db.conformance.builders import Agent, Fleet, result
from worker import protocol


async def test_a_claim_hands_over_all_that_an_agent_needs(fleet: Fleet) -> None:
    """Every key of the contract, and the fencing token counted up."""
    (task_id,) = await fleet.submit({"task_type": "render", "params": {"n": 1}, "timeout_s": 12.5})
    agent = await fleet.agent()
    answer = await agent.claiming()
    assert (answer["outcome"], answer["wanted"], answer["pool"], answer["state"]) == ("ok", "run", "default", "active")
    (task,) = answer["tasks"]
    assert tuple(sorted(task)) == tuple(sorted(protocol.CLAIMED))
    launch = hashlib.md5(agent.nonce.encode(), usedforsecurity=False).hexdigest()[:11]
    assert task == {
        "id": task_id,
        "task_type": "render",
        "params": {"n": 1},
        "attempt": 1,
        "max_attempts": 3,
        "timeout_s": 12.5,
        "dependencies": [],
        "output_prefix": f"outputs/{task_id}/1-{launch}/",
        "traceparent": None,
    }
    row = await fleet.task(task_id)
    assert (row["status"], row["worker_id"], row["attempts"]) == ("In Progress", agent.id, 1)


async def test_claims_follow_priority_then_age_then_the_order_of_the_batch(fleet: Fleet) -> None:
    """Across batches and within one."""
    old = await fleet.submit(count=2)
    fleet.wait(1)
    urgent = await fleet.submit(count=2, priority=5)
    agent = await fleet.agent()
    assert [task["id"] for task in await agent.claim(batch=100)] == [*urgent, *old]


async def test_a_worker_gets_only_tasks_of_its_pool(fleet: Fleet) -> None:
    """Whatever their priority."""
    await fleet.submit({"pool": "big", "priority": 9})
    (small,) = await fleet.submit({"pool": "small"})
    agent = await fleet.agent(pool="small")
    assert [task["id"] for task in await agent.claim(batch=10)] == [small]


async def test_a_task_for_later_is_not_claimed_before_its_time(fleet: Fleet) -> None:
    """And is when it has come."""
    await fleet.submit({"run_after": fleet.now.isoformat()}, {"run_after": (fleet.now.replace(hour=13)).isoformat()})
    agent = await fleet.agent()
    assert len(await agent.claim(batch=10)) == 1
    fleet.wait(3600)
    assert len(await agent.claim(batch=10)) == 1


async def test_a_repeated_claim_number_gets_the_same_tasks(fleet: Fleet) -> None:
    """The reply was lost; nothing is taken twice and nothing left behind."""
    await fleet.submit(count=4)
    agent = await fleet.agent()
    first = await agent.claim(batch=2, number=1)
    assert await agent.claim(batch=2, number=1) == first
    assert await agent.complete(first[0]) == "ok"
    assert await agent.claim(batch=2, number=1) == first[1:]
    assert len(await agent.claim(batch=4, number=2)) == 2


async def test_a_repeated_claim_number_gets_nothing_of_another_claim(fleet: Fleet) -> None:
    """Its agent works on that already."""
    await fleet.submit(count=2)
    agent = await fleet.agent()
    first, second = await agent.claim(number=1), await agent.claim(number=2)
    assert [await agent.claim(number=1), await agent.claim(number=2)] == [first, second]
    assert await agent.complete(second[0]) == "ok"
    answer = await agent.claiming(number=2)
    assert (answer["tasks"], answer["spent"]) == ([], True)


async def test_a_claim_that_is_held_open_may_be_asked_again_under_its_number(fleet: Fleet) -> None:
    """As the gateway does while it waits for a task."""
    agent = await fleet.agent()
    assert await agent.claim(number=1, wait_s=20) == []
    await fleet.submit()
    assert len(await agent.claim(number=1)) == 1


@pytest.mark.parametrize("state", [State.SPAWNING, State.ACTIVE, State.IDLE])
async def test_a_claim_that_was_answered_with_nothing_is_spent(fleet: Fleet, state: State) -> None:
    """A copy that comes late would take a task of which the agent never hears."""
    agent = await fleet.agent(state)
    assert await agent.claim(number=7) == []
    if state is State.SPAWNING:
        await fleet.move(agent.id, State.SPAWNING, State.ACTIVE, stage=Stage.PROMOTED)
    await fleet.submit()
    assert await agent.claim(number=7, wait_s=20) == []
    assert await agent.claim(number=7) == []
    assert len(await agent.claim(number=8)) == 1


async def test_a_late_copy_of_an_old_claim_takes_nothing(fleet: Fleet) -> None:
    """It would hold tasks that nobody runs."""
    agent = await fleet.agent()
    assert await agent.claim(number=1) == []
    assert await agent.claim(number=2) == []
    await fleet.submit()
    assert await agent.claim(number=1) == []
    assert await agent.claim(number=2) == []
    assert len(await agent.claim(number=3)) == 1


async def test_asking_for_work_moves_between_active_and_idle(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """In the same statement, with a reason; a worker that still holds something is not idle."""
    agent = await fleet.agent()
    assert await agent.claim() == []
    assert await fleet.status(agent.id) == "idle"
    await fleet.submit(count=1)
    (task,) = await agent.claim()
    assert await fleet.status(agent.id) == "active"
    assert await agent.claim() == []
    assert await fleet.status(agent.id) == "active"
    await agent.complete(task)
    assert await agent.claim() == []
    assert await fleet.status(agent.id) == "idle"
    rows = await (
        await hand.execute("select from_state, to_state, reason, actor from worker_events order by id")
    ).fetchall()
    assert [tuple(row.values()) for row in rows[-3:]] == [
        ("active", "idle", "asked for work of pool default and there was none", "worker"),
        ("idle", "active", "claimed 1 of pool default", "worker"),
        ("active", "idle", "asked for work of pool default and there was none", "worker"),
    ]


@pytest.mark.parametrize(("state", "wanted"), [(State.SPAWNING, "run"), (State.TERMINATING, "drain")])
async def test_only_a_verified_worker_gets_tasks(fleet: Fleet, state: State, wanted: str) -> None:
    """One that still starts or already ends gets none, and is told what is wanted."""
    await fleet.submit()
    agent = await fleet.agent(state)
    answer = await agent.claiming()
    assert (answer["tasks"], answer["wanted"]) == ([], wanted)
    assert await fleet.status(agent.id) == state


@pytest.mark.parametrize(("at_once", "wanted"), [(False, "drain"), (True, "stop")])
async def test_a_worker_that_must_end_gets_no_task(fleet: Fleet, at_once: bool, wanted: str) -> None:
    """From the statement of the request on."""
    await fleet.submit()
    agent = await fleet.agent()
    args = {"p_fleet": "default", "p_worker_id": agent.id, "p_reason": "maintenance", "p_now_not_drain": at_once}
    assert (await fleet.call("fleet_request_termination", **args))["outcome"] == "requested"
    answer = await agent.claiming()
    assert (answer["tasks"], answer["wanted"]) == ([], wanted)
    assert (await agent.beat())["wanted"] == wanted
    assert (await fleet.call("fleet_request_termination", **args))["outcome"] == "already"


async def test_another_launch_of_the_agent_is_fenced_everywhere(fleet: Fleet) -> None:
    """The old process is told to stop and can neither claim, renew nor complete."""
    await fleet.submit(count=2)
    old = await fleet.agent()
    (task,) = await old.claim()
    await fleet.move(old.id, State.ACTIVE, nonce="launch-2")
    assert await old.call("register", p_agent={}) == {"outcome": "fenced", "wanted": "stop"}
    answer = await old.claiming()
    assert (answer["outcome"], answer["wanted"], answer["tasks"]) == ("fenced", "stop", [])
    assert (await old.beat(task))["outcome"] == "fenced"
    assert [await old.complete(task), await old.fail(task), await old.release(task)] == ["fenced"] * 3
    assert (await old.call("grants", p_items=[]))["outcome"] == "fenced"
    new = Agent(fleet, old.id, "launch-2")
    assert len(await new.claim(number=1)) == 1  # its claims are counted from one again


async def test_a_launch_ends_no_attempt_that_an_earlier_launch_of_its_worker_began(fleet: Fleet) -> None:
    """It has not run it: what it says of it is a mistake."""
    await fleet.submit(count=2)
    old = await fleet.agent()
    (task,) = await old.claim(number=1)
    await fleet.move(old.id, State.ACTIVE, nonce="launch-2")
    new = Agent(fleet, old.id, "launch-2")
    assert await new.complete_many(result(task)) == ["fenced"]
    answer = await new.complete_and_claim(result(task), number=1)
    assert (answer["outcomes"], len(answer["tasks"])) == (["fenced"], 1)
    assert await new.claim(number=1) == answer["tasks"]
    assert [await new.complete(task), await new.fail(task), await new.release(task)] == ["fenced"] * 3
    before = await fleet.task(task["id"])
    fleet.wait(5)
    assert (await new.beat(task))["fenced"] == [task["id"]]
    row = await fleet.task(task["id"])
    assert (row["status"], row["lease_expires_at"]) == ("In Progress", before["lease_expires_at"])


async def test_a_terminated_worker_is_unknown(fleet: Fleet) -> None:
    """To every call: nothing resurrects it."""
    agent = await fleet.agent(State.TERMINATED)
    with pytest.raises(UnknownWorker):
        await agent.claim()
    with pytest.raises(UnknownWorker):
        await agent.beat()
    assert await fleet.status(agent.id) == "terminated"


@pytest.mark.parametrize(
    "args", [{"p_claim_no": 0}, {"p_claim_no": None}, {"p_batch": 0}, {"p_batch": 101}, {"p_batch": None}]
)
async def test_a_senseless_claim_is_refused(fleet: Fleet, args: dict[str, int | None]) -> None:
    """With what is wrong about it."""
    agent = await fleet.agent()
    with pytest.raises(BadArgument, match="p_claim_no"):
        await agent.call("claim", **({"p_claim_no": 1, "p_batch": 1, "p_wait_s": 0} | args))


async def test_eight_connections_claim_two_hundred_tasks_none_twice(fleet: Fleet, database: str) -> None:
    """Concurrent claims of three, by eight workers on a connection each."""
    submitted = await fleet.submit(count=200)
    agents = [await fleet.agent() for _ in range(8)]
    got: Counter[str] = Counter()

    async def drain(agent: Agent) -> None:
        db = await PostgresDb.open(database, pool_size=1)
        agent.fleet = Fleet(db, now=fleet.now)
        while tasks := await agent.claim(batch=3):
            got.update(task["id"] for task in tasks)
            for task in tasks:
                assert await agent.complete(task) == "ok"
        await db.close()

    await asyncio.gather(*(drain(agent) for agent in agents))
    assert got == Counter(submitted)
    assert (await fleet.snapshot())["queued_total"] == 0


async def test_copies_of_one_claim_at_the_same_moment_agree(fleet: Fleet) -> None:
    """Eight times the same number at once: one set of tasks, taken once."""
    await fleet.submit(count=50)
    agent = await fleet.agent()
    answers = await asyncio.gather(*(agent.claim(batch=5, number=1) for _ in range(8)))
    assert all(answer == answers[0] and len(answer) == 5 for answer in answers)
    (demand,) = (await fleet.snapshot())["demand"]
    assert (demand["running"], demand["claimable"]) == (5, 45)


async def test_a_claim_and_an_end_at_the_same_moment_leave_no_task_behind(fleet: Fleet) -> None:
    """Whichever comes first: what the worker got is rescued with it."""
    await fleet.submit(count=20, max_attempts=100)
    for _ in range(10):
        agent = await fleet.agent()
        await asyncio.gather(agent.claim(batch=2), fleet.end(agent.id, State.ACTIVE), return_exceptions=True)
        await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
    (demand,) = (await fleet.snapshot())["demand"]
    assert (demand["running"], demand["claimable"]) == (0, 20)


async def test_errors_of_the_claim_are_port_errors(fleet: Fleet) -> None:
    """A worker that never was."""
    with pytest.raises(PortError):
        await Agent(fleet, "gpu-nobody", "n").claim()


@pytest.fixture
async def large(direct: PostgresDb, hand: AsyncConnection[DictRow]) -> Fleet:
    """A fleet whose tasks so far, 40 of them, are done, with a mebibyte of results each."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    await fleet.submit(count=40)
    await hand.execute(
        "update tasks set status = 'Complete', result_data = jsonb_build_object('x', repeat('y', 1000000))"
    )
    fleet.wait(1)
    return fleet


async def test_a_task_too_large_for_a_claim_fails_and_delays_no_other(
    large: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Every worker's claim would begin with it, and come to nothing."""
    done = [str(row["id"]) for row in await (await hand.execute("select id from tasks")).fetchall()]
    stitch, waits, small = await large.submit(
        {"task_type": "stitch", "depends_on": done}, {"depends_on": ["#0"]}, {"depends_on": done[:2]}
    )
    agent = await large.agent()
    (task,) = await agent.claim(batch=10)
    assert (task["id"], [len(one["result_data"]["x"]) for one in task["dependencies"]]) == (small, [10**6] * 2)
    await large.maintain(1)
    failed = await large.task(stitch)
    assert (failed["status"], failed["failure_code"], failed["attempts"]) == ("Failed", "INPUTS_TOO_LARGE", 0)
    assert (await large.task(waits))["failure_code"] == "DEPENDENCY_FAILED"
    assert (await large.snapshot())["demand"][0]["claimable"] == 0


async def test_a_claim_of_many_takes_what_an_agent_can_read(large: Fleet) -> None:
    """The others are there for the next one: an answer that cannot be read would cost each of them an attempt."""
    await large.submit(count=40, params={"x": "y" * 1_000_000})
    agent = await large.agent()
    assert [len(await agent.claim(batch=100)) for _ in range(3)] == [33, 7, 0]
