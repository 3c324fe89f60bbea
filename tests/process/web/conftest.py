"""A real database, bucket and HTTP server."""

import asyncio
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.adapters.store import SqlStore
from orchestrator.migrate import migrate
from orchestrator.observability.health import Health
from orchestrator.web.wakeups import WakeupHub
from testbed.services.postgres import EmbeddedPostgres
from testbed.services.s3 import EmbeddedS3
from tests.process.web.builders import Door, serving

BUCKET = "tests"


@pytest.fixture(scope="session")
async def postgres(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedPostgres]:
    """A migrated database."""
    async with EmbeddedPostgres(tmp_path_factory.mktemp("web") / "postgres", durable=False, keep=False) as server:
        await migrate(server.url)
        yield server


@pytest.fixture(scope="session")
async def blobs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[S3Blobs]:
    """A bucket, with a prefix."""
    async with EmbeddedS3(tmp_path_factory.mktemp("web-s3")) as s3:
        await s3.create_bucket(BUCKET)
        yield S3Blobs(s3.endpoint_url, s3.access_key, s3.secret_key, BUCKET, "fleet", "us-east-1")


@pytest.fixture(scope="session")
async def door(postgres: EmbeddedPostgres, blobs: S3Blobs) -> AsyncIterator[Door]:
    """The whole door, with notifications wired as the daemon does it."""
    db = await PostgresDb.open(postgres.url, pool_size=4)
    store, signal, health = SqlStore(db, "default"), WakeupHub(), Health(started_at_s=time.monotonic())
    lease = await store.lead("tests", 3_600)
    listening = asyncio.create_task(_listen(db, signal))
    unanswered: list[str] = []
    async with (
        serving(db, blobs, signal, health, unanswered.append) as url,
        httpx.AsyncClient(base_url=url, timeout=40) as client,
    ):
        yield Door(client, store, signal, health, blobs, lease.term, unanswered)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await db.close()


async def _listen(db: PostgresDb, signal: WakeupHub) -> None:
    async for channel, payload in db.notifications():
        signal.heard(channel, payload)
