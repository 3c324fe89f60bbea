"""After users' writes, every task that may run can be claimed, and no other, with all that it needs."""

import random
import uuid
from typing import LiteralString

import pytest
from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from tests.db.conformance.walk import KEYS, POOLS, TYPES, Live, Walk

Hand = AsyncConnection[DictRow]
STEPS = 300


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, 6))])
async def test_after_each_write_what_may_run_can_be_claimed_with_the_results_that_it_needs(
    direct: PostgresDb, hand: Hand, seed: int
) -> None:
    """No task is left, no limit is exceeded, no result is lost, and attempts count as the documentation says."""
    fleet = Live(direct)
    fleet.term = (await fleet.lead())["term"]
    for kind, limits in (("key", KEYS), ("type", TYPES)):
        for name, most in limits.items():
            await fleet.call("task_limit_set", p_kind=kind, p_name=name, p_most=most)
    dice = random.Random(f"walk {seed}")
    agents = [await fleet.agent(pool=pool) for pool in (*POOLS, "default")]
    walk = Walk(fleet, hand, dice, agents, [await fleet.agent(pool=pool) for pool in POOLS])
    await walk.submit()
    for number in range(STEPS):
        step = dice.choice(walk.steps())
        await step()
        walk.done[step.__name__] += 1
        try:
            await walk.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {number}, after {step.__name__}: {error}") from error
    assert walk.results
    assert min(walk.done.values()) > 0


@pytest.mark.parametrize("state", ["Queued", "In Progress", "Failed", "Cancelled"])
async def test_the_result_of_a_deleted_task_is_kept_for_a_dependant_in_any_state(
    direct: PostgresDb, hand: Hand, state: str
) -> None:
    """A dependant that is queued again later still gets the result that it needs, also the second time."""
    fleet = Live(direct)
    fleet.term = (await fleet.lead())["term"]
    agent = await fleet.agent()
    first, dependant = await fleet.submit({}, {"depends_on": ["#0"]})
    (task,) = await agent.claim()
    assert await agent.complete(task, p_result_data={"n": 1}) == "ok"
    if state != "Queued":
        (task,) = await agent.claim()
    if state == "Failed":
        await agent.fail(task, code="BROKEN", message="no", retryable=False)
    elif state == "Cancelled":
        await hand.execute(b"update tasks set status = 'Cancelled' where depends_on <> '{}'")
    await hand.execute("delete from tasks where id = %s", (first,))
    if state in {"Failed", "Cancelled"}:
        await fleet.call("task_retry", p_id=dependant)
    elif state == "In Progress":
        await agent.release(task)
    for _ in range(2):
        (task,) = await agent.claim()
        assert [(d["id"], d["result_data"]) for d in task["dependencies"]] == [(first, {"n": 1})]
        await agent.release(task)


@pytest.mark.parametrize(
    "change",
    [
        "pool = 'big'",
        "pool = 'big', priority = 1",
        "priority = 1",
        "tenant = 'best'",
        "status = 'Queued'",
        "status = 'Queued', attempts = 0",
        "run_after = null",
    ],
)
async def test_after_a_users_write_a_task_has_the_place_of_a_new_one(
    direct: PostgresDb, hand: Hand, change: LiteralString
) -> None:
    """A task that a user moves alone is claimed when one that is inserted in its place would be."""
    fleet = Live(direct)
    fleet.term = (await fleet.lead())["term"]
    for tenant, count in (("acme", 6), ("best", 3)):
        for more, (pool, priority) in enumerate((("default", 0), ("default", 1), ("big", 0), ("big", 1))):
            await fleet.submit(count=count + 2 * more, tenant=tenant, pool=pool, priority=priority)
    (moved,) = await fleet.submit(tenant="acme")
    before: dict[str, LiteralString] = {
        "status = 'Queued'": "status = 'Cancelled'",
        "status = 'Queued', attempts = 0": "status = 'Failed'",
        "run_after = null": "run_after = now() + interval '1 hour'",
    }
    moving: LiteralString = "update tasks set {change} where id = {id}"
    inserting: LiteralString = """
        create temp table copy on commit drop as select * from tasks where id = {id};
        update copy set {change};
        delete from tasks where id = {id};
        insert into tasks (id, task_type, tenant, pool, priority, created_at)
        select id, task_type, tenant, pool, priority, created_at from copy"""
    if change in before:
        await hand.execute(sql.SQL(moving).format(change=sql.SQL(before[change]), id=moved))
    place = {}
    for statement in (moving, inserting):
        async with hand.transaction(force_rollback=True):
            await hand.execute(sql.SQL(statement).format(change=sql.SQL(change), id=moved))
            place[statement] = await _order(hand, moved)
    assert place[moving] == place[inserting]


async def _order(hand: Hand, task: str) -> tuple[str, int]:
    """The pool of a queued task, and how many are claimed before it."""
    query = """
        select pool, (select count(*) from tasks o where o.status = 'Queued' and o.pool = t.pool and not o.blocked
            and (~o.priority, o.queue_turn, o.created_at, o.id) < (~t.priority, t.queue_turn, t.created_at, t.id)) as n
          from tasks t where id = %s"""
    (row,) = await (await hand.execute(query.encode(), (uuid.UUID(task),))).fetchall()
    return row["pool"], row["n"]
