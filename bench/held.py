"""What another session's open snapshot costs: nothing dead is cleared away while tasks are claimed and completed."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psycopg

from bench.queues import Floor, Ours, database
from orchestrator.emulator.postgres import EmbeddedPostgres

TRIES = 8  # measurements, one after the other
EACH = 25_000  # tasks of one
CONNECTIONS, BATCH = 8, 50


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Tasks a second of each measurement, and the last against the first."""
    figures: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(EmbeddedPostgres(directory / "postgres", durable=False))
        floor = Floor(await database(postgres, "floor"))
        ours = Ours(await database(postgres, "ours"))
        rates: dict[str, list[float]] = {"floor": [], "ours": []}
        for side in (floor, ours):
            await side.open(stack, CONNECTIONS)
            await side.fill((tries + 1) * EACH)
            reader = await psycopg.AsyncConnection.connect(side.url)
            stack.push_async_callback(reader.close)
            await reader.execute("begin isolation level repeatable read")
            await reader.execute("select count(*) from pg_class")
        for _ in range(tries):
            for name, each in (("floor", floor), ("ours", ours)):
                rates[name].append(EACH / await each.work(CONNECTIONS, BATCH, EACH))
        for name, values in rates.items():
            figures[f"{name} per second"] = ", ".join(f"{rate:,.0f}" for rate in values)
            figures[f"{name} last of first"] = round(values[-1] / values[0], 2)
    return figures
