"""Rows that were written or deleted while the triggers were off: the next snapshot knows them."""

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from tests.db.conformance.builders import Fleet

OFF, ON = "set session_replication_role = replica", "set session_replication_role = origin"
WRITE = "insert into tasks (task_type, pool, max_attempts, created_at) select 't', %s, 3, %s from generate_series(1, 3)"


@pytest.fixture
async def fleet(direct: PostgresDb) -> Fleet:
    """A fleet that we lead; over one transport, since this is about what the database does."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    return fleet


async def ready(fleet: Fleet) -> dict[str, int]:
    """How many ready tasks the planner sees in each pool."""
    return {one["pool"]: one["claimable"] for one in (await fleet.snapshot())["demand"] if one["claimable"]}


async def test_tasks_of_a_restore_are_seen_by_the_next_snapshot_and_run(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """In two pools, and again a minute later; older ones than those that run go first."""
    agent = await fleet.agent()
    for number in (1, 2):
        await hand.execute(OFF)
        await hand.execute(WRITE, ("default", fleet.now))
        await hand.execute(WRITE, ("other", fleet.now))
        await hand.execute(ON)
        assert await ready(fleet) == {"default": 3, "other": 3 * number}
        assert [await agent.complete(task) for task in await agent.claim(batch=9)] == ["ok"] * 3
        assert await ready(fleet) == {"other": 3 * number}
        fleet.wait(61)


@pytest.mark.parametrize("statement", ["truncate tasks", "delete from tasks", "update tasks set status = 'Cancelled'"])
async def test_tasks_that_are_gone_rent_no_worker(fleet: Fleet, hand: AsyncConnection[DictRow], statement: str) -> None:
    """Whether or not the triggers saw it; new tasks count again, one by one."""
    for off in (OFF, ON, OFF):
        await fleet.submit(count=4)
        assert await ready(fleet) == {"default": 4}
        await hand.execute(off)
        await hand.execute(statement.encode())
        await hand.execute(ON)
        assert await ready(fleet) == {}
        await fleet.submit(count=1)
        assert await ready(fleet) == {"default": 1}
        await hand.execute("delete from tasks")
        fleet.wait(61)


async def test_counts_that_a_truncate_missed_are_corrected(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """As after one that ran while another transaction rolled the counts up."""
    await hand.execute("insert into task_counts (pool, kind, n) values ('default', 'plain', 5)")
    assert await ready(fleet) == {}
