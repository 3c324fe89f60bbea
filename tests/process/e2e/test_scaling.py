"""Pools, budgets, the breaker and stuck tasks, on the running daemon."""

import json
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from demo.scenario import submit
from orchestrator.core.blocked import from_json, text
from testbed.stack import Stack
from tests.process.e2e.conftest import PATIENT, Until

POOLS = """
[pools.training]
task_types = ["train"]
max_active_gpus = 1
min_memory_gb = 16

[task_types.train]
timeout_s = 30
max_attempts = 2
"""
Sql = AsyncConnection[dict[str, Any]]


async def pods(stack: Stack) -> int:
    """How many pods were ever made."""
    return len((await stack.control("GET", "ledger"))["pods"])


async def test_tasks_go_to_the_pool_of_their_type(stack: Stack, until: Until, tmp_path: Path) -> None:
    """Two pools from POOLS_FILE to the last task: each type on workers of its own, with its own limits."""
    (tmp_path / "pools.toml").write_text(POOLS)
    handlers = {"WORKER_HANDLERS": "work=plain:work,train=plain:work"}
    await stack.start_orchestrator({"POOLS_FILE": str(tmp_path / "pools.toml"), **handlers})
    await until("select 1 from task_types")
    await submit(stack, [{"task_type": kind, "params": {"seconds": 0.1}} for kind in ("work", "train")])
    await until("select 1 where not exists (select 1 from tasks where status <> 'Complete')")
    rows = await until(
        """select t.task_type, c.pool, w.pool as workers, c.timeout_s::int as timeout_s, c.max_attempts
             from tasks t join workers w on w.id = t.worker_id
            cross join orchestrator.current_task(t.id) c order by 1"""
    )
    assert [tuple(row.values()) for row in rows] == [
        ("train", "training", "training", 30, 2),
        ("work", "default", "default", None, 3),
    ]


async def test_money_stops_spawns_and_then_ends_workers(stack: Stack, sql: Sql, until: Until) -> None:
    """As many pods as an hour may cost, and why no more; when the day's budget is reached, all of them go."""
    many = {"MIN_ACTIVE_GPUS": "4", "MAX_ACTIVE_GPUS": "4"}
    first = await stack.start_orchestrator({**many, "MAX_HOURLY_COST_USD": "1.5"})
    await until("select 1 from workers where pod_id is not null offset 1")
    (decision,) = await until('select blocked from decisions where blocked @> \'[{"kind": "hourly_budget"}]\' limit 1')
    (reason,) = decision["blocked"]
    assert text(from_json(reason)) == (
        "2 spawns blocked: The workers cost $1.38/h and RTX 4090 costs $0.69/h: more than MAX_HOURLY_COST_USD=1.5."
    )
    assert await pods(stack) == 2
    await first.stop()
    await stack.start_orchestrator({**many, "DAILY_BUDGET_USD": "0.01"})
    await until("select 1 where not exists (select 1 from workers where status <> 'terminated')")
    assert {row["exit_cause"] for row in await until("select exit_cause from workers")} == {"budget"}
    assert await pods(stack) == 2


@pytest.mark.full
async def test_a_pool_whose_bring_ups_fail_starts_one_worker_at_a_time_until_one_succeeds(
    stack: Stack, until: Until
) -> None:
    """Four pods die; then one canary at a time, no storm; when the fault is over a canary closes the breaker."""
    await stack.control("POST", "faults", {"kind": "boot_error"})
    await stack.start_orchestrator({"MIN_ACTIVE_GPUS": "4", "MAX_ACTIVE_GPUS": "4", "MIN_WORKERS_FOR_RATE_CHECK": "4"})
    await until("select 1 from workers where exit_cause = 'spawn_failed' offset 3")
    opened = [{"kind": "breaker_open", "detail": {"failed": 4, "ended": 4}}]
    await until("select 1 from decisions where blocked @> %s::jsonb", json.dumps(opened))
    assert await pods(stack) == 4
    await stack.control("DELETE", "faults")
    await until("select 1 from workers where status in ('active', 'idle') offset 3", timeout_s=90)
    starts = await until("select created_at, bringup_ended_at from workers order by created_at")
    canary = starts[4]
    assert all(row["created_at"] >= canary["bringup_ended_at"] for row in starts[5:])


async def test_a_task_that_stands_still_ends_without_its_worker(stack: Stack, until: Until) -> None:
    """It fails after its last attempt; the same agent runs the next task, in another process."""
    await stack.start_orchestrator({**PATIENT, "TASK_STUCK_TIMEOUT_SEC": "3", "WORKER_HANDLERS": "still=plain:stand"})
    [task] = await submit(stack, [{"task_type": "still", "params": {"seconds": 600}, "max_attempts": 1}])
    await until("select 1 from tasks where id = %s and status = 'Failed' and failure_code = 'TASK_STUCK'", task)
    [following] = await submit(stack, [{"task_type": "still", "params": {"seconds": 0}}])
    await until("select 1 from tasks where id = %s and status = 'Complete'", following)
    assert len(await until("select exit_cause from workers")) == 1
