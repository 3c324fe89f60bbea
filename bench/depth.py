"""The time of the planner's observation and of a claim with 10k, 100k and 1M tasks queued, blocked ones among them."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.figures import quantile
from bench.queues import Ours, database
from orchestrator.emulator.postgres import EmbeddedPostgres

TRIES = 200  # observations, and claims, at each depth
GOALS = {"observe_ms_at_1000000": ("<=", 5.0), "observe_flatness": (">=", 0.9)}
DEPTHS = (10_000, 100_000, 1_000_000)
BLOCKED = 1_000
BATCH = 10
COUNTED_SELDOM = 20  # it takes its time
COUNTING = "select count(*) from tasks where status = 'Queued' group by pool"  # what it would cost to count


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Medians in ms, and what they are at a million against ten thousand."""
    medians: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(EmbeddedPostgres(directory / "postgres", durable=False))
        ours = Ours(await database(postgres, "depth"))
        await ours.open(stack, 1)
        (sql,) = ours.connections
        await sql.execute("insert into tasks (id, task_type, pool) values (gen_random_uuid(), 'x', 'never')")
        waiting = "insert into tasks (task_type, depends_on) select 'x', array[id] from tasks, generate_series(1, %s)"
        await sql.execute(waiting, (BLOCKED,))
        filled = 0
        for depth in DEPTHS:
            await ours.fill(depth - filled)
            filled = depth

            async def claim() -> None:
                await ours.work(1, BATCH, BATCH)

            await ours.work(1, BATCH, BATCH)
            for name, call in {
                "observe": _statement(sql, "select fleet_snapshot('default')"),
                "count": _statement(sql, COUNTING),
                "claim_10_and_complete": claim,
            }.items():
                times = max(1, tries // COUNTED_SELDOM) if name == "count" else tries
                took_s = [await _timed(call) for _ in range(times)]
                medians.setdefault(name, []).append(quantile(took_s, 0.5) * 1e3)
    figures = {
        f"{name}_ms_at_{depth}": round(value, 2)
        for name, values in medians.items()
        for depth, value in zip(DEPTHS, values, strict=True)
    }
    return figures | {f"{name}_flatness": round(values[0] / values[-1], 2) for name, values in medians.items()}


def _statement(sql: Any, statement: str) -> Callable[[], Awaitable[None]]:
    async def call() -> None:
        await (await sql.execute(statement)).fetchall()

    return call


async def _timed(call: Callable[[], Awaitable[None]]) -> float:
    began_s = time.perf_counter()
    await call()
    return time.perf_counter() - began_s
