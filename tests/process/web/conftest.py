"""A real database, bucket and HTTP server."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import psycopg
import pytest

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.adapters.store import SqlStore
from orchestrator.observability.health import Health
from orchestrator.web.wakeups import WakeupHub
from testbed.services.s3 import EmbeddedS3
from testbed.shared_services import Database, SharedServices
from testbed.tasks import ended
from tests.process.web.api_rig import ApiRig, api_rig
from tests.process.web.builders import ServerUnderTest, listen, serving
from tests.process.web.dashboard_rig import DashboardRig, dashboard_rig

BUCKET = "tests"


@pytest.fixture(scope="session")
async def postgres(shared: SharedServices) -> Database:
    """A migrated database."""
    return await shared.database()


@pytest.fixture(scope="session")
async def s3(shared: SharedServices) -> EmbeddedS3:
    """A server with the bucket."""
    server = await shared.s3()
    await server.create_bucket(BUCKET)
    return server


@pytest.fixture(scope="session")
def blobs(s3: EmbeddedS3) -> S3Blobs:
    """A bucket, with a prefix."""
    return S3Blobs(s3.endpoint_url, s3.access_key, s3.secret_key, BUCKET, "fleet", "us-east-1")


@pytest.fixture(scope="session")
async def gateway(postgres: Database, blobs: S3Blobs) -> AsyncIterator[ServerUnderTest]:
    """The whole gateway, with notifications wired as the daemon does it."""
    db = await PostgresDb.open(postgres.url, pool_size=4)
    store, signal, health = SqlStore(db, "default"), WakeupHub(), Health(started_at_s=time.monotonic())
    lease = await store.lead("tests", 3_600)
    listening = asyncio.create_task(listen(db, signal))
    unanswered: list[str] = []
    async with (
        serving(db, blobs, signal, health, unanswered.append) as url,
        httpx.AsyncClient(base_url=url, timeout=40) as client,
    ):
        yield ServerUnderTest(client, store, signal, health, blobs, lease.term, unanswered)
    await ended(listening)
    await db.close()


@pytest.fixture(scope="session")
async def api_db(postgres: Database) -> AsyncIterator[PostgresDb]:
    """The connections of the API."""
    db = await PostgresDb.open(postgres.url, pool_size=4)
    yield db
    await db.close()


@pytest.fixture
async def rig(api_db: PostgresDb, blobs: S3Blobs) -> AsyncIterator[ApiRig]:
    """The API of a new fleet."""
    async with api_rig(api_db, blobs) as rig:
        yield rig


@pytest.fixture
async def board(api_db: PostgresDb, blobs: S3Blobs) -> AsyncIterator[DashboardRig]:
    """The dashboard of a new fleet."""
    async with dashboard_rig(api_db, blobs) as board:
        yield board


@pytest.fixture
async def hand(postgres: Database) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Somebody in a SQL editor."""
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as connection:
        yield connection
