"""Tasks In Progress that nobody holds: they end, they count for nothing, and they are explained as what they are."""

from typing import Any, LiteralString

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.diagnostics.tasks import explained
from orchestrator.ports import BadArgument, NotLeader
from tests.db.conformance.builders import FLEET, Ear, Fleet

STUCK_S = 1200
TAKEN = """
    insert into tasks (task_type, status, worker_id) values ('t', 'In Progress', %s) returning id::text
"""


@pytest.fixture
async def fleet(direct: PostgresDb) -> Fleet:
    """A fleet that we lead, whose pools have no programs of their own."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    await declare(fleet)
    return fleet


async def declare(fleet: Fleet, *pools: str) -> None:
    """What the leader says when it begins to lead."""
    await fleet.fleet("declare_programs", p_pools=list(pools), p_stuck_s=STUCK_S)


async def taken(fleet: Fleet, hand: AsyncConnection[DictRow], worker: str | None = None) -> str:
    """A task that somebody set In Progress with a plain statement, now."""
    row = await (await hand.execute(TAKEN, (worker,))).fetchone()
    assert row is not None
    await moved(fleet, hand)
    return str(row["id"])


async def moved(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """A plain statement has the time of the wall clock, and this fleet its own."""
    await hand.execute("update orchestrator.live set progress_at = %s where nonce is null", (fleet.now,))


async def state(fleet: Fleet) -> tuple[int, int]:
    """What the snapshot says: tasks that run, and tasks to rescue."""
    snapshot = await fleet.call("fleet_snapshot", p_fleet=FLEET)
    return sum(one["running"] for one in snapshot["demand"]), snapshot["expired_leases"]


async def rescued(fleet: Fleet) -> list[str]:
    """The ids of the tasks that a rescue brings back."""
    return [task["id"] for task in (await fleet.fleet("rescue_overdue", p_over_s=0))["tasks"]]


@pytest.mark.parametrize("worker", [None, "somebody", "ours"])
async def test_a_stuck_task_without_a_holder_is_queued_again(
    fleet: Fleet, hand: AsyncConnection[DictRow], worker: str | None
) -> None:
    """It never counts as running; a change within the time begins it again."""
    agent = await fleet.agent()
    task_id = await taken(fleet, hand, agent.id if worker == "ours" else worker)
    assert await state(fleet) == (0, 0)
    fleet.wait(STUCK_S - 1)
    assert await rescued(fleet) == []
    await hand.execute("update tasks set progress = '{}'")
    await moved(fleet, hand)
    fleet.wait(STUCK_S - 1)
    assert (await state(fleet), await rescued(fleet)) == ((0, 0), [])
    fleet.wait(2)
    assert (await state(fleet), await rescued(fleet)) == ((0, 1), [task_id])
    row = await fleet.task(task_id)
    assert (row["status"], row["failure_code"], row["worker_id"]) == ("Queued", "NO_HOLDER", None)
    assert await state(fleet) == (0, 0)


async def test_any_write_to_a_task_of_a_users_program_is_a_sign_of_life(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """The statement itself begins the time again."""
    await taken(fleet, hand)
    await hand.execute("update orchestrator.live set progress_at = '2000-01-01'")
    await hand.execute("update tasks set progress = '{}'")
    query = "select now() - progress_at < interval '1 hour' as is_new from orchestrator.live"
    assert await (await hand.execute(query.encode())).fetchall() == [{"is_new": True}]


async def test_programs_that_take_tasks_themselves_keep_them(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """In a pool with WORKER_START_COMMAND such a row runs, for as long as it takes, whoever runs it."""
    await declare(fleet, "default")
    await taken(fleet, hand, "their-name")
    await taken(fleet, hand, None)
    fleet.wait(100 * STUCK_S)
    assert (await state(fleet), await rescued(fleet)) == ((2, 0), [])


async def test_before_a_leader_has_declared_programs_nothing_is_taken_from_them(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """An orchestrator of the version before leads, and a newer one reads."""
    await hand.execute("delete from fleet_settings")
    await taken(fleet, hand)
    fleet.wait(100 * STUCK_S)
    assert (await state(fleet), await rescued(fleet)) == ((1, 0), [])


async def test_a_task_counts_as_running_while_its_lease_is_valid(fleet: Fleet) -> None:
    """And is to be rescued from then on."""
    agent = await fleet.agent()
    (task_id,) = await fleet.submit()
    await agent.claim()
    fleet.wait(59)
    assert await state(fleet) == (1, 0)
    fleet.wait(1)
    assert await state(fleet) == (0, 1)
    assert await rescued(fleet) == [task_id]


async def test_the_explanation_promises_only_a_rescue_that_comes(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Nobody's: by when it is queued again. A program's: that nothing is done to it."""
    task_id = await taken(fleet, hand, "somebody")
    said = explained(await fleet.call("fleet_task_explain", p_fleet=FLEET, p_task_id=task_id))
    assert "no worker holds it" in said.what
    assert said.then == "it is queued again if it does not change by then"
    fleet.wait(STUCK_S)
    assert said.until == fleet.now.isoformat()
    assert await rescued(fleet) == [task_id]

    await declare(fleet, "default")
    task_id = await taken(fleet, hand, "their-name")
    said = explained(await fleet.call("fleet_task_explain", p_fleet=FLEET, p_task_id=task_id))
    assert (said.until, said.then) == (None, "nothing: the orchestrator does not take tasks from such a program")
    assert "WORKER_START_COMMAND" in said.what
    assert "--requeue-held" in said.fix


async def test_a_declaration_of_programs_needs_the_lead_and_a_shape(fleet: Fleet) -> None:
    """Pools by name, and a time."""
    spoilt: tuple[dict[str, Any], ...] = ({"p_pools": None}, {"p_pools": {}}, {"p_stuck_s": None}, {"p_stuck_s": 0})
    for args in spoilt:
        with pytest.raises(BadArgument):
            await fleet.fleet("declare_programs", **({"p_pools": [], "p_stuck_s": 1} | args))
    with pytest.raises(NotLeader):
        await fleet.fleet("declare_programs", p_pools=[], p_stuck_s=1, p_term=fleet.term + 1)


@pytest.mark.parametrize(
    "write",
    [
        "update tasks set status = 'Cancelled'",
        "update tasks set status = 'Queued', worker_id = null",
        "update tasks set worker_id = 'another'",
        "delete from tasks",
    ],
)
async def test_it_is_announced_that_a_user_took_the_task_of_a_worker(
    direct: PostgresDb, fleet: Fleet, hand: AsyncConnection[DictRow], write: LiteralString
) -> None:
    """Its agent stops the handler now, and not at its next heartbeat."""
    ear = Ear(direct)
    await ear.until(("connected", ""))
    agent = await fleet.agent()
    await fleet.submit()
    await agent.claim()
    await ear.forget(hand)
    await hand.execute(write)
    await ear.until(("orchestrator_fleet", agent.id))
    await ear.close()


async def test_the_result_of_a_draining_worker_is_announced(
    direct: PostgresDb, fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """It may have been its last one: the worker ends now, and not at the next tick."""
    fleet.term = (await fleet.lead())["term"]
    ear = Ear(direct)
    await ear.until(("connected", ""))
    agent = await fleet.agent()
    await fleet.submit()
    (task,) = await agent.claim()
    args = {"p_fleet": "default", "p_worker_id": agent.id, "p_reason": "r", "p_now_not_drain": False}
    await fleet.call("fleet_request_termination", **args)
    await ear.forget(hand)
    await agent.complete(task)
    await ear.until(("orchestrator_fleet", agent.id))
    await ear.close()
