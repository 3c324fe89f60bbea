"""pgqueuer as its documentation says it is fast: asyncpg, uvloop, a queue manager per connection, its batch size."""

import asyncio
import json
import sys
import time

import asyncpg
import uvloop
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

FILL_BATCH = 5_000
DEADLINE_S = 60.0
WARM_UP = 5  # jobs that do not count
CALM_S = 0.02  # after a job, until its worker is idle again


async def fill(url: str, count: int) -> None:
    """Queue so many jobs."""
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    if not await connection.fetchval("select to_regclass('pgqueuer')"):
        await queries.install()
    for first in range(0, count, FILL_BATCH):
        n = min(FILL_BATCH, count - first)
        await queries.enqueue(["noop"] * n, [None] * n, [0] * n)
    await connection.close()


async def work(url: str, connections: int, batch: int, count: int) -> float:
    """Run `count` no-ops; the seconds from the first job's start to the last one's."""
    managers = [QueueManager(Queries(AsyncpgDriver(await asyncpg.connect(url)))) for _ in range(connections)]
    done, began_s, ended_s = 0, 0.0, 0.0

    async def noop(_: Job) -> None:
        nonlocal done, began_s, ended_s
        began_s = began_s or time.perf_counter()
        done += 1
        if done == count:
            ended_s = time.perf_counter()
            for manager in managers:
                manager.shutdown.set()

    for manager in managers:
        manager.entrypoint("noop")(noop)
    await asyncio.gather(*(manager.run(batch_size=batch) for manager in managers))
    return ended_s - began_s


async def pickup(url: str, count: int) -> list[float]:
    """Seconds from the insert of a job to its start, by an idle worker that listens; one after the other."""
    await fill(url, 0)
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    manager = QueueManager(Queries(AsyncpgDriver(await asyncpg.connect(url))))
    started: asyncio.Queue[float] = asyncio.Queue()

    async def noop(_: Job) -> None:
        started.put_nowait(time.perf_counter())

    manager.entrypoint("noop")(noop)
    running = asyncio.create_task(manager.run())
    took_s = []
    for _ in range(count + WARM_UP):
        await asyncio.sleep(CALM_S)
        began_s = time.perf_counter()
        await queries.enqueue(["noop"], [None], [0])
        async with asyncio.timeout(DEADLINE_S):
            took_s.append(await started.get() - began_s)
    manager.shutdown.set()
    await running
    return took_s[WARM_UP:]


if __name__ == "__main__":
    address, verb, *numbers = sys.argv[1:]
    main = {"fill": fill, "work": work, "pickup": pickup}[verb](address, *map(int, numbers))
    print(json.dumps(uvloop.run(main)))
