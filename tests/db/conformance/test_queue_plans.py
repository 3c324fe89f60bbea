"""What the calls of a busy queue read: a connection plans them once, and the queue may have been empty then."""

from collections import Counter
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from orchestrator.adapters.postgres import PostgresDb
from tests.db.conformance.builders import FLEET, Agent, Fleet, result, rows_read

ROUNDS = 12  # a place in the queue is marked after some claims, and plans are kept after some calls
MANY = 30_000
FEW = 1_000


class Counted:
    """A database of one connection; the most rows of tasks and attempts that a call of each function has read."""

    def __init__(self, hand: AsyncConnection[DictRow]) -> None:
        self._hand = hand
        self.most: Counter[str] = Counter()

    async def call(self, function: str, /, **args: Any) -> Any:
        """The function's jsonb, decoded."""
        named = ", ".join(f"{name} => %({name})s" for name in args)
        values = {name: Jsonb(value) if isinstance(value, dict | list) else value for name, value in args.items()}
        async with self._hand.transaction():
            before = await self._rows_read()
            (row,) = await (await self._hand.execute(f"select {function}({named}) as it".encode(), values)).fetchall()
            self.most[function] = max(self.most[function], await self._rows_read() - before)
        return row["it"]

    async def _rows_read(self) -> int:
        return await rows_read(self._hand, "tasks") + await rows_read(self._hand, "task_attempts")


async def lived(fleet: Fleet, agent: Agent, tenant: str | None = None) -> None:
    """Rounds of all that agents and those who submit ask."""
    for _ in range(ROUNDS):
        first, *_ = await fleet.submit(count=6, tenant=tenant)
        await fleet.submit({"depends_on": [first]})
        one, two, three, four, five = await agent.claim(batch=5)
        await agent.beat(one, two)
        await agent.complete(one)
        await agent.complete_many(result(two))
        (six,) = (await agent.complete_and_claim(result(three)))["tasks"]
        await agent.fail(four, code="OOM", message="no memory")
        await agent.release(five)
        await fleet.call("task_cancel", p_id=six["id"])
        await fleet.fleet("rescue", p_worker_id=None)
        await fleet.call("fleet_task_troubles", p_fleet=FLEET, p_handled=["another"])
        await fleet.snapshot()
        fleet.wait(1)


async def test_who_gets_the_places_of_rows_never_plans_to_read_the_whole_table(hand: AsyncConnection[DictRow]) -> None:
    """A small table is cheaper to read as a whole, and the plan stays when it grows. Any caller may plan first."""
    query = """select oid::regprocedure::text as name from pg_proc
                where pronamespace = 'public'::regnamespace and 'tid[]'::regtype = any (proargtypes)
                  and not coalesce('enable_seqscan=off' = any (proconfig), false)"""
    assert await (await hand.execute(query)).fetchall() == []


STATISTICS = pytest.mark.parametrize("statistics", ["select 1", "analyze tasks", "vacuum analyze tasks"])


@STATISTICS
@pytest.mark.parametrize("tenant", [None, "one of several"])
async def test_no_call_of_a_busy_queue_reads_all_of_it(
    direct: PostgresDb, hand: AsyncConnection[DictRow], tenant: str | None, statistics: str
) -> None:
    """It grew to thirty thousand, behind the planner's back or not."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    agent = await fleet.agent()
    counted = Counted(hand)
    fleet.db = counted  # type: ignore[assignment]
    await lived(fleet, agent, tenant)
    await hand.execute("vacuum analyze tasks, task_attempts")
    await lived(fleet, agent, tenant)
    await hand.execute("insert into tasks (task_type) select 't' from generate_series(1, %s)", (MANY,))
    await hand.execute(statistics.encode())
    counted.most.clear()
    await lived(fleet, agent, tenant)
    assert len(counted.most) >= 10
    assert {function: rows for function, rows in counted.most.items() if rows > FEW} == {}
    await hand.execute("truncate tasks, task_attempts")  # so many rows are not deleted in passing


@STATISTICS
@pytest.mark.parametrize("scope", ["key", "type"])
async def test_no_call_reads_the_tasks_that_wait_for_a_limit(
    direct: PostgresDb, hand: AsyncConnection[DictRow], scope: str, statistics: str
) -> None:
    """A hot limit has thirty thousand waiting tasks before a free one, and there are ten thousand keys."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    agent = await fleet.agent()
    counted = Counted(hand)
    fleet.db = counted  # type: ignore[assignment]
    await fleet.call("task_limit_set", p_kind=scope, p_name="hot", p_most=2)
    hot: dict[str, Any] = {"key": {"concurrency_key": "hot"}, "type": {"task_type": "hot"}}[scope]

    async def rounds() -> None:
        for _ in range(ROUNDS):
            await fleet.submit(count=2, **hot)
            first, *rest = await agent.claim(batch=5)
            await agent.beat(first, *rest)
            await agent.complete(first)
            for task in rest:
                await agent.complete_and_claim(result(task))
            await fleet.call("task_cancel", p_id=(await fleet.submit(**hot))[0])
            await fleet.fleet("rescue", p_worker_id=None)
            await fleet.snapshot()
            fleet.wait(1)

    await rounds()
    await hand.execute("vacuum analyze tasks, task_attempts")
    await rounds()
    kind = {"key": "'t', 'hot'", "type": "'hot', null"}[scope]
    many = "insert into tasks (task_type, concurrency_key) select %s from generate_series(1, %s)"
    await hand.execute((many % (kind, MANY)).encode())
    await hand.execute("insert into tasks (task_type, concurrency_key) select 't', i from generate_series(1, 10000) i")
    await hand.execute(statistics.encode())
    counted.most.clear()
    await rounds()
    assert len(counted.most) >= 6
    assert {function: rows for function, rows in counted.most.items() if rows > FEW} == {}
    await hand.execute("truncate tasks, task_attempts")
