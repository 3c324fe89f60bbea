"""What operators and the leader read does not grow with what is long over: rows are counted, not seconds."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from orchestrator.adapters.postgres import PostgresDb
from tests.db.conformance.builders import FLEET, Fleet, result, rows_read

MANY = 6_000  # of what is over
FEW = 1_000
Read = Callable[..., Awaitable[int]]

# One in a minute until yesterday; "gpu-1" to "gpu-10" ran them.
TASKS = """
    insert into tasks (id, task_type, status, created_at, generation_started_at, generation_processed_at, updated_at,
                       worker_id, attempts)
    select md5(i::text)::uuid, 't', 'Complete', d, d, d, d, 'gpu-' || 1 + i %% 10, 1
      from generate_series(1, %(many)s::int) i,
           lateral (select %(now)s::timestamptz - interval '1 day' - i * interval '1 min' as d) a"""
ATTEMPTS = """
    insert into orchestrator.attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, ended_at, outcome,
                                       failure_code)
    select md5(i::text)::uuid, 1, 'gpu-' || 1 + i %% 10, 'launch', i, d - interval '20 s', d,
           case i %% 10 when 0 then 'lost' else 'complete' end, case i %% 10 when 0 then 'HEARTBEAT_LOST' end
      from generate_series(%(many)s::int, 1, -1) i,
           lateral (select %(now)s::timestamptz - interval '1 day' - i * interval '1 min' as d) a"""
DECISIONS = """
    insert into decisions (fleet, pool, term, at, rule, target, inputs, actions, blocked)
    select 'default', p.pool, 1, %(now)s::timestamptz - interval '1 day', i::text, i, '{}', '[]', '[]'
      from generate_series(1, %(many)s::int) i, (values ('default'), ('a')) p (pool)"""
COSTS = """
    insert into costs (worker_id, fleet, kind, from_at, to_at, usd)
    select 'gpu-1', 'default', 'busy', d, d + interval '1 min', 1
      from generate_series(1, %(many)s::int) i,
           lateral (select %(now)s::timestamptz - interval '9 days' - i * interval '1 min' as d) a"""
ANALYZE = "vacuum analyze tasks, orchestrator.attempts, decisions, costs, workers"


@pytest.fixture
async def fleet(direct: PostgresDb) -> Fleet:
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    return fleet


@pytest.fixture
async def past(fleet: Fleet, hand: AsyncConnection[DictRow]) -> Read:
    """How many rows of a table a call of a function reads, in a database with a past."""
    for _ in range(10):
        await fleet.agent()
    await hand.execute("set session_replication_role = replica")
    for statement in (TASKS, ATTEMPTS, DECISIONS, COSTS):
        await hand.execute(statement.encode(), {"now": fleet.now, "many": MANY})
    await hand.execute("update workers set created_at = created_at - interval '30 days'")
    await hand.execute("set session_replication_role = origin")
    await hand.execute(ANALYZE.encode())

    async def read(table: str, function: str, **args: Any) -> int:
        named = {**args, "p_now": fleet.now}
        values = {name: Jsonb(value) if isinstance(value, list) else value for name, value in named.items()}
        statement = f"select {function}({', '.join(f'{name} => %({name})s' for name in named)})"
        async with hand.transaction():
            before = await rows_read(hand, table)
            await hand.execute(statement.encode(), values)
            return await rows_read(hand, table) - before

    return read


async def test_the_minutes_look_for_troubles_reads_no_old_attempts(past: Read, fleet: Fleet) -> None:
    """It switches off bitmap scans for the queue, and the times of attempts have no other index."""
    assert await past("attempts", "fleet_task_troubles", p_fleet=FLEET, p_handled=["t"]) <= FEW


async def test_an_explanation_reads_few_attempts_of_the_workers_of_the_pool(past: Read, fleet: Fleet) -> None:
    """Each of its ten workers has run hundreds; of 40 each it also reads the one before."""
    (task,) = await fleet.submit()
    assert 400 <= await past("attempts", "fleet_task_explain", p_fleet=FLEET, p_task_id=task) <= 3 * 400


async def test_an_explanation_of_the_scaling_reads_the_newest_decisions(past: Read) -> None:
    """Of each pool 500, to find the start of a block."""
    read = await past("decisions", "fleet_scaling_explain", p_fleet=FLEET)
    assert 2 * 500 <= read <= 3 * FEW


async def test_the_report_reads_no_old_costs(past: Read) -> None:
    """The usual day is the mean of a week."""
    assert await past("costs", "fleet_report", p_fleet=FLEET) <= FEW


async def test_the_report_reads_the_tasks_only_to_count_them(past: Read, fleet: Fleet) -> None:
    """By status, by pool, and those that failed; what was spent needs none, nor does the list of waiting types."""
    agent = await fleet.agent()
    await fleet.submit({}, {}, {"run_after": (fleet.now + timedelta(hours=1)).isoformat()})
    (task,) = await agent.claim()
    fleet.wait(60)
    await agent.complete(task)
    assert await past("tasks", "fleet_report", p_fleet=FLEET) <= 3 * MANY + FEW


async def test_the_costs_of_an_hour_read_the_tasks_of_the_hour(past: Read, fleet: Fleet) -> None:
    """Each by its key."""
    agent = await fleet.agent()
    await fleet.submit(count=5)
    tasks = await agent.claim(batch=5)
    fleet.wait(60)
    await agent.complete_many(*map(result, tasks))
    window = {"p_fleet": FLEET, "p_since": fleet.now - timedelta(hours=1), "p_until": None}
    assert 5 <= await past("tasks", "fleet_cost", **window) <= FEW
    assert 5 <= await past("tasks", "fleet_cost_by", **window, p_by="tenant", p_limit=10) <= FEW


async def test_sums_of_a_window_read_stored_parts_and_days(past: Read, fleet: Fleet) -> None:
    """Not its attempts; of the newest 5,000 attempts an efficiency takes the usual time."""
    window = {"p_fleet": FLEET, "p_since": fleet.now - timedelta(days=10), "p_until": None}
    assert await past("attempts", "fleet_cost", **window) >= MANY
    while (await fleet.fleet("record"))["more"]:
        pass
    assert await past("attempts", "fleet_cost", **window) <= FEW
    assert await past("attempts", "fleet_cost_by", **window, p_by="tenant", p_limit=10) <= FEW
    assert await past("attempts", "fleet_efficiency", **window) <= 2 * 5_000 + FEW
