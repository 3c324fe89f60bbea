"""A Supabase-like database with real data in it, behind both endpoints."""

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
from orchestrator.observability.health import Health
from orchestrator.web.wakeups import WakeupHub
from orchestrator.worker_tokens import verifier
from testbed.services.postgrest import EmbeddedPostgrest
from testbed.shared_services import Database
from testbed.tasks import ended
from tests.db.privilege.rig import SIGNING_KEY, Actors, Endpoints, public_jwk
from tests.process.web.builders import SECRET, Caller, ServerUnderTest, done, listen, serving
from tests.process.web.conftest import blobs, postgres, s3

__all__ = ["blobs", "postgres", "s3"]

CALL_TIMEOUT_S = 40.0
LIMITS = httpx.Limits(keepalive_expiry=1)  # well before the server closes the connection of a caller without a token


@pytest.fixture(scope="session")
async def owner(postgres: Database) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
    """The owner's connection, for looking."""
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
async def endpoints(postgres: Database, blobs: S3Blobs) -> AsyncIterator[Endpoints]:
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
        gateway = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, timeout=CALL_TIMEOUT_S, limits=LIMITS)
        )
        postgrest = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=rest.project_url,
                timeout=CALL_TIMEOUT_S,
                limits=LIMITS,
                headers={"apikey": rest.publishable_key},
            )
        )
        lease = await store.lead("tests", 3_600)
        listening = asyncio.create_task(listen(db, signal))
        under_test = ServerUnderTest(gateway, store, signal, health, blobs, lease.term, unanswered)
        yield Endpoints(under_test, rest, {"gateway": gateway, "postgrest": postgrest})
        await ended(listening)


@pytest.fixture(scope="session")
async def actors(endpoints: Endpoints) -> Actors:
    """Made once: whatever the tests do to it is refused."""
    under_test, secret = endpoints.gateway, f"secret-{uuid.uuid4().hex}"
    me, victim, gone = (
        await under_test.worker(pool="mine"),
        await under_test.worker(pool=f"pool-{secret}"),
        await under_test.worker(),
    )
    dep, outsider = [await _finished(under_test, me, number) for number in (1, 2)]
    (mine,) = await under_test.submit(me.pool, depends_on=[dep])
    assert [task["id"] for task in (await me.claim(3))["tasks"]] == [mine]
    (theirs,) = await under_test.submit(victim.pool, params={"word": secret})
    await victim.claim()
    (queued,) = await under_test.submit(victim.pool, params={"word": secret})
    await under_test.move(gone, (State.ACTIVE,), State.TERMINATING, exit_cause="manual")
    await under_test.move(gone, (State.TERMINATING,), State.TERMINATED)
    return Actors(me, victim, gone, mine, dep, outsider, theirs, queued, secret, under_test.term)


async def _finished(under_test: ServerUnderTest, worker: Caller, number: int) -> str:
    (task_id,) = await under_test.submit(worker.pool)
    await worker.claim(number)
    key = f"outputs/{task_id}/1/x.txt"
    await under_test.blobs.put(key, b"x", content_type="text/plain")
    reply = await worker.call("worker_complete", **done(task_id, under_test.blobs.location(key)))
    assert reply.json() == {"outcome": "ok"}
    return task_id
