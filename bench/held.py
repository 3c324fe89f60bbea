"""The cost of another session's open snapshot: VACUUM removes no dead row while tasks are claimed and completed.

Between two measurements, claims of a hundred at once make the dead entries of many tasks; what is measured is what an
agent does, a claim of one and its completion.
"""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psycopg

from bench.queues import Floor, Ours, database
from testbed.services.postgres import EmbeddedPostgres

TRIES = 4  # times that the queue ages
GOALS = {"ours last of first": (">=", 0.5)}
AGE = 50_000  # tasks claimed each time
EACH = 1_000  # tasks of one measurement
CONNECTIONS, AGE_BATCH = 8, 100


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Tasks a second of each measurement, and the last against the first."""
    figures: dict[str, Any] = {"tasks claimed by the last one": tries * AGE}
    async with AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(EmbeddedPostgres(directory / "postgres", durable=False, keep=False))
        sides: dict[str, Floor | Ours] = {
            "floor": Floor(await database(postgres, "floor")),
            "ours": Ours(await database(postgres, "ours")),
        }
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for side in sides.values():
            await side.open(stack, CONNECTIONS)
            await side.fill(tries * (AGE + EACH) + 2 * EACH)
            await side.work(CONNECTIONS, 1, EACH)  # plans are made, files are there
            reader = await psycopg.AsyncConnection.connect(side.url)
            stack.push_async_callback(reader.close)
            await reader.execute("begin isolation level repeatable read")
            await reader.execute("select count(*) from pg_class")
        for age in range(tries + 1):
            for name, side in sides.items():
                rates[name].append(EACH / await side.work(CONNECTIONS, 1, EACH))
                if age < tries:
                    await side.claim(AGE_BATCH, AGE)
        for name, values in rates.items():
            figures[f"{name} per second"] = ", ".join(f"{rate:,.0f}" for rate in values)
            figures[f"{name} last of first"] = round(values[-1] / values[0], 2)
    return figures
