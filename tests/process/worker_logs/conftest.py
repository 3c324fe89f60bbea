"""A bucket, a database and pods with logs, all real."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.migrate import migrate
from testbed.services.postgres import EmbeddedPostgres
from testbed.services.s3 import REGION, EmbeddedS3
from tests.process.bringup.rig import Rig, door, rigged
from tests.process.worker_logs.logs import Hauling

BUCKET = "bucket"


@pytest.fixture(scope="session")
async def s3(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedS3]:
    """SeaweedFS with a bucket."""
    directory: Path = tmp_path_factory.mktemp("s3")
    async with EmbeddedS3(directory) as server:
        await server.create_bucket(BUCKET)
        yield server


@pytest.fixture
async def blobs(s3: EmbeddedS3) -> AsyncIterator[S3Blobs]:
    """The bucket, under a prefix."""
    blobs = S3Blobs(s3.endpoint_url, s3.access_key, s3.secret_key, BUCKET, "fleet/one", REGION)
    yield blobs
    await blobs.close()


@pytest.fixture(scope="session")
async def database(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The URL of a migrated database."""
    directory = tmp_path_factory.mktemp("shipping") / "postgres"
    async with EmbeddedPostgres(directory, durable=False, keep=False) as server:
        await migrate(server.url)
        yield server.url


@pytest.fixture(scope="session")
async def db(database: str) -> AsyncIterator[PostgresDb]:
    """It, opened."""
    db = await PostgresDb.open(database, pool_size=6)
    yield db
    await db.close()


@pytest.fixture
async def rig(db: PostgresDb, tmp_path: Path) -> AsyncIterator[Rig]:
    """Pods, and the parts to climb to them."""
    async with door(db) as api_url, rigged(db, api_url, tmp_path) as rig:
        yield rig


@pytest.fixture
async def hauling(rig: Rig, db: PostgresDb, blobs: S3Blobs) -> Hauling:
    """A worker whose launch writes logs."""
    return await Hauling.begun(rig, db, blobs)
