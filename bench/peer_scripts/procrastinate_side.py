"""procrastinate with its documented settings for speed: psycopg, one worker, as many jobs at once as connections."""

import asyncio
import contextlib
import json
import sys
import time

import procrastinate

FILL_BATCH = 5_000
WARM_UP = 5  # jobs that do not count
CALM_S = 0.02  # after a job, until its worker is idle again
DEADLINE_S = 240.0
INSTALLED = "select to_regclass('procrastinate_jobs') is not null as there"


async def fill(url: str, count: int) -> None:
    """Queue so many jobs."""
    app, task = _app(url, 1)
    async with app.open_async():
        if not (await app.connector.execute_query_one_async(INSTALLED))["there"]:
            await app.schema_manager.apply_schema_async()
        for first in range(0, count, FILL_BATCH):
            await task.batch_defer_async(*({} for _ in range(min(FILL_BATCH, count - first))))


async def work(url: str, connections: int, batch: int, count: int) -> float:
    """Run `count` no-ops one by one (it has no batches); seconds from the first job to the last."""
    del batch
    app, _ = _app(url, connections, count)
    async with app.open_async():
        worker = asyncio.create_task(
            app.run_worker_async(concurrency=connections, install_signal_handlers=False, listen_notify=True)
        )
        async with asyncio.timeout(DEADLINE_S):
            await started.wait()
            began_s = time.perf_counter()
            await finished.wait()
        took_s = time.perf_counter() - began_s
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker
    return took_s


async def pickup(url: str, count: int) -> list[float]:
    """Seconds from the insert of a job to its start, by an idle worker that listens; one after the other."""
    await fill(url, 0)
    connector = procrastinate.PsycopgConnector(conninfo=url, min_size=2, max_size=4)
    app, begun = procrastinate.App(connector=connector), asyncio.Queue[float]()

    @app.task(name="noop")
    async def noop() -> None:
        begun.put_nowait(time.perf_counter())

    took_s = []
    async with app.open_async():
        worker = asyncio.create_task(app.run_worker_async(install_signal_handlers=False, listen_notify=True))
        for _ in range(count + WARM_UP):
            await asyncio.sleep(CALM_S)
            began_s = time.perf_counter()
            await noop.defer_async()
            async with asyncio.timeout(DEADLINE_S):
                took_s.append(await begun.get() - began_s)
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker
    return took_s[WARM_UP:]


started, finished = asyncio.Event(), asyncio.Event()


def _app(url: str, connections: int, count: int = 0) -> tuple[procrastinate.App, procrastinate.tasks.Task]:
    connector = procrastinate.PsycopgConnector(conninfo=url, min_size=connections + 1, max_size=connections + 2)
    app, done = procrastinate.App(connector=connector), 0

    @app.task(name="noop")
    async def noop() -> None:
        nonlocal done
        done += 1
        started.set()
        if done == count:
            finished.set()

    return app, noop


if __name__ == "__main__":
    address, verb, *numbers = sys.argv[1:]
    main = {"fill": fill, "work": work, "pickup": pickup}[verb](address, *map(int, numbers))
    print(json.dumps(asyncio.run(main)))
