"""Whose connections carry agents' calls: the gateway's own while this process leads, the loop's only one otherwise."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.observability.health import Health
from orchestrator.ports import PortError
from orchestrator.web.role_routing import RoleRoutedDb
from testbed.shared_services import Database
from worker import protocol

HELD = "select application_name, count(*) from pg_stat_activity where application_name in ('own', 'shared') group by 1"
BEAT: dict[str, Any] = {"p_worker_id": "gpu-1", "p_nonce": "n", "p_tasks": [], "p_health": None}
CLAIMS = {"sub": "gpu-1", "role": "gpu_worker", "jti": "j"}
DEADLINE_S = 20.0


@contextlib.contextmanager
def another_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """As the gateway's: on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(DEADLINE_S)
    loop.close()


async def test_a_standbys_gateway_uses_the_only_connection(postgres: Database) -> None:
    """It answers all the same; a leader's uses its own, and gives them back when it no longer leads."""
    health = Health(started_at_s=time.monotonic())
    shared = await PostgresDb.open(postgres.url, application_name="shared", pool_size=1)
    main = asyncio.get_running_loop()

    async def held() -> dict[str, int]:
        async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as connection:
            return dict(await (await connection.execute(HELD)).fetchall())

    with another_loop() as loop:

        async def opened() -> tuple[PostgresDb, RoleRoutedDb]:
            own = await PostgresDb.open(postgres.url, application_name="own", pool_size=3, kept=0)
            return own, RoleRoutedDb(own, shared, main, lambda: health.role == "leader")

        async def calls(db: RoleRoutedDb) -> None:
            asked = (db.call_as_worker(CLAIMS, protocol.HEARTBEAT, BEAT) for _ in range(20))
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(answer, PortError) for answer in answers)  # the database's: no such worker

        async with asyncio.timeout(DEADLINE_S):
            own, db = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(opened(), loop))
            health.stands_by(1, "another")
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(calls(db), loop))
            assert await held() == {"shared": 1}
            health.leads(2, "us")
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(calls(db), loop))
            assert 1 <= (await held())["own"] <= 3
            health.stands_by(3, "another")
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(own.resize(3), loop))
            while (await held()).get("own"):  # the server learns of it a moment later
                await asyncio.sleep(0.02)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(own.close(), loop))
    await shared.close()
