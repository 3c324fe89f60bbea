"""The planner's queue depth equals a count of the rows, after any change of the queue."""

from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from tests.db.conformance.builders import Fleet

COUNTED = """
select pool, count(*) filter (where not blocked and (run_after is null or run_after <= %s)) as claimable,
       count(*) filter (where blocked) as dependencies,
       count(*) filter (where not blocked and run_after > %s) as scheduled,
       min(created_at) filter (where not blocked and (run_after is null or run_after <= %s)) as oldest
  from tasks where status = 'Queued' group by pool order by pool
"""
BY_HAND = (
    "update tasks set pool = 'b' where priority = 1",
    "update tasks set status = 'In Progress', attempts = 1 where priority = 2",
    "update tasks set status = 'Queued' where status = 'In Progress'",
    "update tasks set run_after = now() + interval '100 years' where priority = 3",
    "update tasks set status = 'Cancelled' where priority in (3, 4)",
    "delete from tasks where priority = 5",
    "update tasks set status = 'Complete' where priority = 6",
    "insert into tasks (task_type, status) values ('t', 'Complete'), ('t', 'Queued')",
    "truncate tasks",
)


async def agrees(fleet: Fleet, hand: AsyncConnection[DictRow]) -> list[Any]:
    """The snapshot's demand, which must be what counting says."""
    snapshot = await fleet.snapshot()
    counted = await (await hand.execute(COUNTED, (fleet.now,) * 3)).fetchall()
    told = [
        (d["pool"], d["claimable"], d["blocked"]["dependencies"], d["blocked"]["scheduled"], d["oldest_claimable_at"])
        for d in snapshot["demand"]
        if d["claimable"] or any(d["blocked"].values())
    ]
    assert [row[:-1] for row in told] == [
        (c["pool"], c["claimable"], c["dependencies"], c["scheduled"]) for c in counted
    ]
    assert [bool(row[-1]) for row in told] == [bool(c["oldest"]) for c in counted]
    assert snapshot["queued_total"] == sum(c["claimable"] + c["dependencies"] + c["scheduled"] for c in counted)
    return told


@pytest.mark.parametrize("rolled_up", [False, True])
async def test_the_depth_is_what_counting_says_through_a_tasks_whole_life(
    fleet: Fleet, hand: AsyncConnection[DictRow], rolled_up: bool
) -> None:
    """Submitted, waiting, scheduled, due, claimed, failed into a delay, given back, rescued, completed, cancelled."""

    async def look() -> list[Any]:
        if rolled_up:
            await hand.execute("select internal_roll_up(false)")
        return await agrees(fleet, hand)

    agent = await fleet.agent()
    later = (fleet.now.replace(hour=23)).isoformat()
    ids = await fleet.submit({}, {"depends_on": ["#0"]}, {"run_after": later}, {"pool": "b"}, {}, {}, {}, {})
    assert (await look())[-1][:4] == ("default", 5, 1, 1)
    first, second, third, fourth = await agent.claim(batch=4)
    await look()
    assert await agent.complete(first) == "ok"  # frees the dependant
    await agent.fail(second, code="X")
    await agent.release(third)
    await fleet.call("task_cancel", p_id=ids[3])
    await look()
    fleet.now = fleet.now.replace(hour=23, minute=30)
    assert (await look())[-1][:4] == ("default", 5, 0, 0)
    await fleet.lead("another")
    fleet.term += 1
    await fleet.fleet("rescue", p_worker_id=None)
    await look()
    assert len(await agent.claim(batch=10)) == 6
    assert await look() == []
    assert fourth["id"] in ids


async def test_rows_changed_by_a_user_count_too_and_are_claimed(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """`tasks` is the truth: no row of it is lost to a claim, no ghost of one is counted."""
    agent = await fleet.agent()
    await fleet.submit(*({"priority": number % 8} for number in range(40)))
    for statement in BY_HAND[:-1]:
        await hand.execute(statement.encode())
        told = await agrees(fleet, hand)
    claimable = {pool: n for pool, n, *_ in told}
    assert len(await agent.claim(batch=100)) == claimable["default"]
    await hand.execute(BY_HAND[-1].encode())
    assert await agrees(fleet, hand) == []


async def test_a_wrong_count_is_repaired(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """A dump was loaded with the triggers off; the hourly retention counts again."""
    await hand.execute("alter table tasks disable trigger user")
    await hand.execute("insert into tasks (task_type, pool, max_attempts) values ('t', 'default', 3), ('t', 'b', 3)")
    await hand.execute("alter table tasks enable trigger user")
    await fleet.lead()
    await fleet.fleet("retention")
    assert [row[:2] for row in await agrees(fleet, hand)] == [("b", 1), ("default", 1)]


async def test_many_differences_become_few(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """By the observation that finds them."""
    up_and_down = "select 'default', 'plain', d from generate_series(1, 600), (values (1), (-1)) v (d)"
    await hand.execute(f"insert into task_counts {up_and_down}".encode())
    await fleet.submit(count=3)
    await agrees(fleet, hand)
    rows = await (await hand.execute("select count(*) as n from task_counts")).fetchone()
    assert rows is not None
    assert rows["n"] == 1
