"""What the calls of a busy queue read: a connection plans them once, and the queue may have been empty then."""

from collections import Counter
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from orchestrator.adapters.postgres import PostgresDb
from tests.db.conformance.builders import Agent, Fleet, result, rows_read

ROUNDS = 12  # a place in the queue is marked after some claims, and plans are kept after some calls
MANY = 100_000
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


async def lived(fleet: Fleet, agent: Agent) -> None:
    """Rounds of all that agents and those who submit ask."""
    for _ in range(ROUNDS):
        first, *_ = await fleet.submit(count=6)
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
        fleet.wait(1)


async def test_no_call_of_a_busy_queue_reads_all_of_it(direct: PostgresDb, hand: AsyncConnection[DictRow]) -> None:
    """It grew to a hundred thousand behind the planner's back."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    agent = await fleet.agent()
    counted = Counted(hand)
    fleet.db = counted  # type: ignore[assignment]
    await lived(fleet, agent)
    await hand.execute("analyze tasks, task_attempts")
    await lived(fleet, agent)
    await hand.execute("insert into tasks (task_type) select 't' from generate_series(1, %s)", (MANY,))
    counted.most.clear()
    await lived(fleet, agent)
    assert len(counted.most) >= 10
    assert {function: rows for function, rows in counted.most.items() if rows > FEW} == {}
    await hand.execute("truncate tasks, task_attempts")  # so many rows are not deleted in passing
