"""What the calls of a busy queue read: a connection plans them once, and the queue may have been empty then."""

from collections import Counter
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from orchestrator.adapters.postgres import PostgresDb
from tests.db.conformance.builders import FLEET, Agent, Fleet, limit, result, rows_read

ROUNDS = 12  # a place in the queue is marked after some claims, and plans are kept after some calls
MANY = 30_000
SOME = 5_000  # of each of several kinds
FEW = 1_000
# fleet_observe counts to 10,000 of each kind, here of two; fleet_maintain reads 16 pages of three tables in its audit,
# with what their rows name, and 1,000 limits.
MORE = {"fleet_observe": 21_000, "fleet_maintain": 25_000}
TABLES = ("tasks", "webhook_messages", "live", "edges", "attempts", "marks", "publications", "rechecks", "launches")
QUEUE = "tasks, orchestrator.live, orchestrator.edges, orchestrator.attempts"


class Counted:
    """A database of one connection; the most rows of the queue's tables that a call of each function has read."""

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
        return sum([await rows_read(self._hand, table) for table in TABLES])

    def beyond(self, **more: int) -> dict[str, int]:
        """The functions that have read more than their bound."""
        bounds = MORE | more
        return {name: rows for name, rows in self.most.items() if rows > bounds.get(name, FEW)}


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


NONE, OLD, NEW = "select 1", f"analyze {QUEUE}", f"vacuum analyze {QUEUE}"


def statistics_of(*ordinary: tuple[str | None, str]) -> list[Any]:
    """Each kind of queue with each kind of statistics; these pairs in the ordinary run, the others with --full."""
    kinds = dict.fromkeys(kind for kind, _ in ordinary)
    pairs = [(kind, statistics) for kind in kinds for statistics in (NONE, OLD, NEW)]
    return [pytest.param(*pair, marks=() if pair in ordinary else pytest.mark.full) for pair in pairs]


@pytest.mark.parametrize(("tenant", "statistics"), statistics_of((None, NEW), ("one of several", NONE)))
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
    await hand.execute(NEW)
    await lived(fleet, agent, tenant)
    await hand.execute("insert into tasks (task_type) select 't' from generate_series(1, %s)", (MANY,))
    await hand.execute(statistics.encode())
    counted.most.clear()
    await lived(fleet, agent, tenant)
    assert len(counted.most) >= 10
    assert counted.beyond() == {}
    await hand.execute("truncate tasks, orchestrator.attempts")  # so many rows are not deleted in passing


async def test_a_turn_is_found_without_reading_the_tasks_of_other_tenants(hand: AsyncConnection[DictRow]) -> None:
    """Another one has a long queue, which grew after the plans were made."""
    one = "insert into tasks (task_type, tenant) values ('t', 'small')"
    many = "insert into tasks (task_type, tenant) select 't', %s from generate_series(1, %s)"
    for tenant in ("large", "small"):
        await hand.execute(many, (tenant, 50))
    await hand.execute(NEW)
    await hand.execute(one)
    await hand.execute(many, ("large", SOME))
    async with hand.transaction():
        before = sum([await rows_read(hand, table) for table in TABLES])
        for _ in range(10):
            await hand.execute(one)
        read = sum([await rows_read(hand, table) for table in TABLES]) - before
    assert 0 < read <= FEW
    await hand.execute("truncate tasks")


@pytest.mark.parametrize(("scope", "statistics"), statistics_of(("key", NONE), ("type", NEW)))
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
    await hand.execute(NEW)
    await rounds()
    kind = {"key": "'t', 'hot'", "type": "'hot', null"}[scope]
    many = "insert into tasks (task_type, concurrency_key) select %s from generate_series(1, %s)"
    await hand.execute((many % (kind, MANY)).encode())
    await hand.execute("insert into tasks (task_type, concurrency_key) select 't', i from generate_series(1, 10000) i")
    await hand.execute(statistics.encode())
    counted.most.clear()
    await rounds()
    assert len(counted.most) >= 6
    assert counted.beyond() == {}
    await hand.execute("truncate tasks, orchestrator.attempts")


@pytest.mark.parametrize("limited", [False, True])
async def test_no_call_of_an_agent_reads_a_queue_that_was_emptied_and_filled_again(
    direct: PostgresDb, hand: AsyncConnection[DictRow], limited: bool
) -> None:
    """Statistics of a few rows on many pages. And the places of a limit that nobody waits for are not counted."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    agent = await fleet.agent()
    fill = "insert into tasks (task_type) select 'wide' from generate_series(1, %s)"
    await hand.execute(fill, (SOME,))
    await hand.execute("delete from tasks where id <> (select id from tasks order by ctid desc limit 1)")
    await hand.execute(NEW)
    if limited:
        await limit(fleet, "wide", 100_000, "type")
    await hand.execute(fill, (SOME,))
    counted = Counted(hand)
    fleet.db = counted  # type: ignore[assignment]
    one, two, three, four, five = await agent.claim(batch=5)
    await agent.beat({**one, "progress": {"done": 1}}, two)
    await agent.complete(one)
    await agent.complete_many(result(two))
    await agent.fail(three, code="OOM", message="no memory")
    await agent.complete_and_claim(result(four))
    if not limited:
        await agent.release(five)
    assert counted.beyond() == {}
    await hand.execute("truncate tasks, orchestrator.attempts")


async def test_an_end_reads_as_many_rows_as_it_ends_tasks(direct: PostgresDb, hand: AsyncConnection[DictRow]) -> None:
    """Not all of the call's attempts for each of its tasks."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    agent = await fleet.agent()
    counted = Counted(hand)
    fleet.db = counted  # type: ignore[assignment]
    await hand.execute("insert into tasks (task_type) select 't' from generate_series(1, %s)", (SOME,))
    await hand.execute(NEW)
    for count in (1, 1, 100, 100):
        await agent.complete_many(*map(result, await agent.claim(batch=count)))
    assert counted.most["worker_complete_many"] <= 10 * 100
    await hand.execute("truncate tasks, orchestrator.attempts")


# "i" is the number of a task: two have the same key.
TASKS = """
    insert into tasks (task_type, pool, status, depends_on, run_after, concurrency_key, worker_id, attempts,
                       failure_code)
    select 't', v.pool, v.status, v.depends_on::uuid[], v.run_after::timestamptz, v.key || i / 2, v.worker_id,
           v.attempts, v.failure_code
      from generate_series(1, {many}) i, (values {rows})
           v (pool, status, depends_on, run_after, key, worker_id, attempts, failure_code)"""
NOBODY = "{00000000-0000-0000-0000-000000000000}"
BACKLOG = f"""
    ('default', 'Queued', '{{}}', null, null, null, 0, null),
    ('default', 'Queued', '{NOBODY}', null, null, null, 0, null),
    ('default', 'Queued', '{{}}', null, 'key', null, 0, null),
    ('idle', 'Queued', '{{}}', '2027-01-01', null, null, 0, null),
    ('default', 'Failed', '{NOBODY}', null, null, null, 0, 'DEPENDENCY_FAILED'),
    ('default', 'Complete', '{{}}', null, null, 'gone', 1, null)"""
ENDED = """
    insert into orchestrator.attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, ended_at, outcome)
    select id, 1, 'gone', 'launch', 1, '2026-11-20', '2026-11-20', 'complete' from tasks where status = 'Complete'
    on conflict do nothing"""
MESSAGES = """
    insert into webhook_messages (event, task_id, url, host, body, created_at, give_up_at, sent_at)
    select 'task.completed', gen_random_uuid(), 'https://example.com', 'example.com', '{{}}', now(), now(), now()
      from generate_series(1, {many})"""


async def lived_with_more(fleet: Fleet, agent: Agent, idle: Agent) -> None:
    """Rounds of chains, retries, webhooks, postponed tasks, lost workers and workers without work."""
    for _ in range(ROUNDS):
        root, *_ = await fleet.submit({}, {"depends_on": ["#0"]}, {"depends_on": ["#1"]})
        await fleet.call("task_cancel", p_id=root)
        await fleet.call("task_retry", p_id=root)
        await fleet.call("task_cancel", p_id=root)
        await fleet.submit(count=5, priority=1, webhook_url="https://example.com", webhook_progress=True)
        one, two, three, four, five = await agent.claim(batch=5)
        await agent.beat({**one, "progress": {"done": 1}}, two)
        await fleet.fleet("webhooks_progress", p_every_s=1)
        await agent.complete(one)
        await agent.complete_many(result(two))
        await agent.complete_and_claim(result(three))
        await agent.fail(four, code="OOM", message="no memory", retryable=False)
        await agent.release(five)
        args = {"p_of_fleet": False, "p_busy": {}, "p_per_host": 2, "p_limit": 2, "p_lease_s": 60, "p_after": None}
        for message in (await fleet.fleet("messages_take", **args))["messages"]:
            await fleet.fleet("message_close", p_id=message["id"], p_error=None, p_retry_s=None)
        await fleet.fleet("rescue", p_worker_id=agent.id)
        await fleet.fleet("rescue_overdue", p_over_s=0)
        await idle.claim()
        await fleet.call("fleet_changes", p_digest=None)
        await fleet.snapshot()
        fleet.wait(1)


@pytest.mark.parametrize("statistics", [OLD, *(pytest.param(one, marks=pytest.mark.full) for one in (NONE, NEW))])
async def test_no_call_reads_all_waiting_or_ended_tasks(
    direct: PostgresDb, hand: AsyncConnection[DictRow], statistics: str
) -> None:
    """Tasks that wait for a task, a limit or their time, those that ended, their attempts, and messages."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    agent, idle = await fleet.agent(), await fleet.agent(pool="idle")
    counted = Counted(hand)
    fleet.db = counted  # type: ignore[assignment]
    await fleet.fleet("retention")  # it may be the first to plan what others call too
    await lived_with_more(fleet, agent, idle)
    await hand.execute(f"{NEW}, webhook_messages".encode())
    await lived_with_more(fleet, agent, idle)
    for many in (TASKS, ENDED, MESSAGES):
        await hand.execute(many.format(many=SOME, rows=BACKLOG).encode())
    await hand.execute(statistics.replace("tasks", "webhook_messages, tasks").encode())
    await fleet.maintain(2 * SOME // 1000)  # what the insertion left to the leader
    counted.most.clear()
    await lived_with_more(fleet, agent, idle)
    assert len(counted.most) >= 15
    assert counted.beyond(fleet_observe=5 * SOME + FEW) == {}
    await hand.execute("truncate tasks, orchestrator.attempts, webhook_messages")
