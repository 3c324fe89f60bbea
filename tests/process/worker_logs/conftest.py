"""A bucket, a database and pods with logs, all real."""

from collections.abc import AsyncIterator

import pytest

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from testbed.services.s3 import REGION, EmbeddedS3
from testbed.shared_services import SharedServices
from tests.process.bringup.conftest import api_url, database, db, rig
from tests.process.bringup.rig import Rig
from tests.process.worker_logs.logs import Hauling

__all__ = ["api_url", "database", "db", "rig"]

BUCKET = "bucket"


@pytest.fixture(scope="session")
async def s3(shared: SharedServices) -> EmbeddedS3:
    """SeaweedFS with a bucket."""
    server = await shared.s3()
    await server.create_bucket(BUCKET)
    return server


@pytest.fixture
async def blobs(s3: EmbeddedS3) -> AsyncIterator[S3Blobs]:
    """The bucket, under a prefix."""
    blobs = S3Blobs(s3.endpoint_url, s3.access_key, s3.secret_key, BUCKET, "fleet/one", REGION)
    yield blobs
    await blobs.close()


@pytest.fixture
async def hauling(rig: Rig, db: PostgresDb, blobs: S3Blobs) -> Hauling:
    """A worker whose launch writes logs."""
    return await Hauling.begun(rig, db, blobs)
