"""The planner's queue depth equals a count of the tasks, after any change of the queue."""

from datetime import datetime
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from tests.db.conformance.builders import FLEET, Fleet

# Of `tasks` alone. A dependency is a task that is there; no task has a limit.
COUNTED = """
select coalesce(pool, 'default') as pool, count(*) filter (where not waits and due) as claimable,
       count(*) filter (where waits) as dependencies, count(*) filter (where not waits and not due) as scheduled,
       min(created_at) filter (where not waits and due) as oldest
  from (select t.*, t.run_after is null or t.run_after <= %s as due,
               exists (select from tasks d where d.id = any (t.depends_on) and d.status <> 'Complete') as waits
          from tasks t where t.status = 'Queued') q group by 1 order by 1
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
UNSEEN = """set session_replication_role = replica; {}; set session_replication_role = origin;
            select orchestrator.audit(1000000), orchestrator.audit(1000000)"""  # to the end, and from the beginning


async def agrees(fleet: Fleet, hand: AsyncConnection[DictRow]) -> list[Any]:
    """The snapshot's demand, which must be what counting says."""
    snapshot = await fleet.snapshot()
    counted = await (await hand.execute(COUNTED, (fleet.now,))).fetchall()
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


async def test_the_depth_is_what_counting_says_through_a_tasks_whole_life(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Submitted, waiting, scheduled, due, claimed, failed into a delay, given back, rescued, completed, cancelled."""
    agent = await fleet.agent()
    later = (fleet.now.replace(hour=23)).isoformat()
    ids = await fleet.submit({}, {"depends_on": ["#0"]}, {"run_after": later}, {"pool": "b"}, {}, {}, {}, {})
    assert (await agrees(fleet, hand))[-1][:4] == ("default", 5, 1, 1)
    first, second, third, fourth = await agent.claim(batch=4)
    await agrees(fleet, hand)
    assert await agent.complete(first) == "ok"  # frees the dependant
    await agent.fail(second, code="X")
    await agent.release(third)
    await fleet.call("task_cancel", p_id=ids[3])
    await agrees(fleet, hand)
    fleet.now = fleet.now.replace(hour=23, minute=30)
    assert (await agrees(fleet, hand))[-1][:4] == ("default", 5, 0, 0)
    await fleet.lead("another")
    fleet.term += 1
    await fleet.fleet("rescue", p_worker_id=None)
    await agrees(fleet, hand)
    assert len(await agent.claim(batch=10)) == 6
    assert await agrees(fleet, hand) == []
    assert fourth["id"] in ids


@pytest.mark.parametrize("form", ["{}", UNSEEN], ids=["triggers on", "triggers off"])
async def test_rows_changed_by_a_user_count_too_and_are_claimed(
    fleet: Fleet, hand: AsyncConnection[DictRow], form: str
) -> None:
    """`tasks` is the truth, also after a restore: no row of it is lost to a claim, no ghost of one is counted."""
    agent = await fleet.agent()
    await fleet.submit(*({"priority": number % 8} for number in range(40)))
    for statement in BY_HAND[:-1]:
        await hand.execute(form.format(statement).encode())
        told = await agrees(fleet, hand)
    claimable = {pool: n for pool, n, *_ in told}
    assert len(await agent.claim(batch=100)) == claimable["default"]
    await hand.execute(form.format(BY_HAND[-1]).encode())
    assert await agrees(fleet, hand) == []


async def test_a_task_that_has_become_due_is_as_old_as_it_is(fleet: Fleet) -> None:
    """Before the leader has looked at it, and if no other task is ready."""
    await fleet.submit({"run_after": fleet.now.replace(minute=1).isoformat()})
    await fleet.submit({"run_after": fleet.now.replace(minute=2).isoformat()})
    submitted = fleet.now
    fleet.wait(90)
    (row,) = (await fleet.call("fleet_observe", p_fleet=FLEET))["demand"]
    assert (row["claimable"], datetime.fromisoformat(row["oldest_claimable_at"])) == (1, submitted)
