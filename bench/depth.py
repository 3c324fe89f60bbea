"""The time of the planner's observation and of a claim with 10k, 100k and 1M tasks queued, blocked ones among them."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.figures import quantile
from bench.queues import Ours, database
from testbed.services.postgres import EmbeddedPostgres

TRIES = 200  # observations, and claims, at each depth
GOALS = {"observe_ms_at_1000000": ("<=", 5.0), "observe_flatness": (">=", 0.9)}
DEPTHS = (10_000, 100_000, 1_000_000)
BLOCKED = 1_000
BATCH = 10
COUNTED_SELDOM = 20  # it takes its time
Call = Callable[[], Awaitable[None]]
COUNTING = "select count(*) from tasks where status = 'Queued' group by pool"  # what it would cost to count


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Medians in ms, and what they are at a million against ten thousand."""
    took_s: dict[tuple[str, int], list[float]] = {}
    async with AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(EmbeddedPostgres(directory / "postgres", durable=False, keep=False))
        calls = {depth: await _queue(stack, postgres, depth) for depth in DEPTHS}
        for number in range(tries):  # the depths take turns: what else the machine does, it does to all
            for depth, named in calls.items():
                for name, call in named.items():
                    if name != "count" or number % COUNTED_SELDOM == 0:
                        took_s.setdefault((name, depth), []).append(await _timed(call))
    ms = {key: quantile(values, 0.5) * 1e3 for key, values in took_s.items()}
    names = list(calls[DEPTHS[0]])
    figures = {f"{name}_ms_at_{depth}": round(ms[name, depth], 2) for name in names for depth in DEPTHS}
    return figures | {f"{name}_flatness": round(ms[name, DEPTHS[0]] / ms[name, DEPTHS[-1]], 2) for name in names}


async def _queue(stack: AsyncExitStack, postgres: EmbeddedPostgres, depth: int) -> dict[str, Call]:
    """A database with so many queued, and what is timed there."""
    ours = Ours(await database(postgres, f"depth_{depth}"))
    await ours.open(stack, 1)
    (sql,) = ours.connections
    await sql.execute("insert into tasks (id, task_type, pool) values (gen_random_uuid(), 'x', 'never')")
    waiting = "insert into tasks (task_type, depends_on) select 'x', array[id] from tasks, generate_series(1, %s)"
    await sql.execute(waiting, (BLOCKED,))
    await ours.fill(depth)

    async def claim() -> None:
        await ours.work(1, BATCH, BATCH)

    await claim()
    observe = _statement(sql, "select fleet_observe('default')")
    return {"observe": observe, "count": _statement(sql, COUNTING), "claim_10_and_complete": claim}


def _statement(sql: Any, statement: str) -> Call:
    async def call() -> None:
        await (await sql.execute(statement)).fetchall()

    return call


async def _timed(call: Call) -> float:
    began_s = time.perf_counter()
    await call()
    return time.perf_counter() - began_s
