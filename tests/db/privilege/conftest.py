"""A Supabase-like database with real data in it, behind both doors."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import psycopg
import pytest

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.adapters.store import SqlStore
from orchestrator.core.states import State
from orchestrator.migrate import migrate
from orchestrator.observability.health import Health
from orchestrator.web.wakeups import WakeupHub
from orchestrator.worker_tokens import verifier
from testbed.services.postgres import EmbeddedPostgres
from testbed.services.postgrest import EmbeddedPostgrest
from testbed.services.s3 import EmbeddedS3
from testbed.services.supabase_roles import create_roles
from tests.db.privilege.rig import SIGNING_KEY, Doors, Scene, public_jwk
from tests.process.web.builders import SECRET, Caller, Door, done, serving

BUCKET = "tests"
CALL_TIMEOUT_S = 40.0


@pytest.fixture(scope="session")
async def postgres(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedPostgres]:
    """A project's database: its roles were there first, with Supabase's default privileges."""
    async with EmbeddedPostgres(tmp_path_factory.mktemp("doors") / "postgres", durable=False, keep=False) as server:
        await create_roles(server.url)
        await migrate(server.url)
        yield server


@pytest.fixture(scope="session")
async def owner(postgres: EmbeddedPostgres) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
    """The owner's connection, for looking."""
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
async def blobs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[S3Blobs]:
    """A bucket, with a prefix."""
    async with EmbeddedS3(tmp_path_factory.mktemp("doors-s3")) as s3:
        await s3.create_bucket(BUCKET)
        yield S3Blobs(s3.endpoint_url, s3.access_key, s3.secret_key, BUCKET, "fleet", "us-east-1")


@pytest.fixture(scope="session")
async def doors(postgres: EmbeddedPostgres, blobs: S3Blobs) -> AsyncIterator[Doors]:
    """Both, over the same rows."""
    async with AsyncExitStack() as stack:
        rest = await stack.enter_async_context(EmbeddedPostgrest(postgres.url, SECRET, jwks=[public_jwk(SIGNING_KEY)]))
        db = await PostgresDb.open(postgres.url, pool_size=4)
        stack.push_async_callback(db.close)
        store, signal, health = SqlStore(db, "default"), WakeupHub(), Health(started_at_s=time.monotonic())
        unanswered: list[str] = []
        url = await stack.enter_async_context(
            # Behind a proxy, so that each call may come from an address of its own: one address is refused 40 at once.
            serving(db, blobs, signal, health, unanswered.append, check=verifier(SIGNING_KEY, SECRET), proxy_hops=1)
        )
        gateway = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=CALL_TIMEOUT_S))
        postgrest = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=rest.project_url, timeout=CALL_TIMEOUT_S, headers={"apikey": rest.publishable_key}
            )
        )
        lease = await store.lead("tests", 3_600)
        listening = asyncio.create_task(_listen(db, signal))
        door = Door(gateway, store, signal, health, blobs, lease.term, unanswered)
        yield Doors(door, rest, {"gateway": gateway, "postgrest": postgrest})
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


@pytest.fixture(scope="session")
async def scene(doors: Doors) -> Scene:
    """Made once: whatever the tests do to it is refused."""
    door, secret = doors.door, f"secret-{uuid.uuid4().hex}"
    me, victim, gone = await door.worker(pool="mine"), await door.worker(pool=f"pool-{secret}"), await door.worker()
    dep, stranger = [await _finished(door, me, number) for number in (1, 2)]
    (mine,) = await door.submit(me.pool, depends_on=[dep])
    assert [task["id"] for task in (await me.claim(3))["tasks"]] == [mine]
    (theirs,) = await door.submit(victim.pool, params={"word": secret})
    await victim.claim()
    (queued,) = await door.submit(victim.pool, params={"word": secret})
    await door.move(gone, (State.ACTIVE,), State.TERMINATING, exit_cause="manual")
    await door.move(gone, (State.TERMINATING,), State.TERMINATED)
    return Scene(me, victim, gone, mine, dep, stranger, theirs, queued, secret, door.term)


async def _finished(door: Door, worker: Caller, number: int) -> str:
    (task_id,) = await door.submit(worker.pool)
    await worker.claim(number)
    key = f"outputs/{task_id}/1/x.txt"
    await door.blobs.put(key, b"x", content_type="text/plain")
    reply = await worker.call("worker_complete", **done(task_id, door.blobs.location(key)))
    assert reply.json() == {"outcome": "ok"}
    return task_id


async def _listen(db: PostgresDb, signal: WakeupHub) -> None:
    async for channel, payload in db.notifications():
        signal.heard(channel, payload)
