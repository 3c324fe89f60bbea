"""One real database and bucket; a fleet of its own for each test."""

import uuid
from collections.abc import AsyncIterator, Mapping

import pytest

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.adapters.store import SqlStore
from testbed.shared_services import Database, SharedServices
from tests.process.cli.builders import Cli, Fleet
from tests.process.web.conftest import postgres

__all__ = ["postgres"]


@pytest.fixture(scope="session")
async def s3_environment(shared: SharedServices) -> Mapping[str, str]:
    """A bucket, as the environment names it."""
    s3 = await shared.s3()
    await s3.create_bucket("logs")
    keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
    return {"S3_ENDPOINT_URL": s3.endpoint_url, "S3_BUCKET": "logs", "S3_PREFIX": "tests", **keys}


@pytest.fixture
def fleet_id() -> str:
    """A fleet that nobody else uses."""
    return f"fleet-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def fleet(postgres: Database, fleet_id: str) -> AsyncIterator[Fleet]:
    """Its rows, led by the test."""
    db = await PostgresDb.open(postgres.url, pool_size=2)
    store = SqlStore(db, fleet_id)
    lease = await store.lead("the test", 3_600)
    yield Fleet(store, db, None, lease.term)
    await db.close()


@pytest.fixture
def shipping_fleet(fleet: Fleet, s3_environment: Mapping[str, str]) -> Fleet:
    """The same with a bucket."""
    e = s3_environment
    keys = e["AWS_ACCESS_KEY_ID"], e["AWS_SECRET_ACCESS_KEY"], e["S3_BUCKET"], e["S3_PREFIX"]
    return Fleet(fleet.store, fleet.db, S3Blobs(e["S3_ENDPOINT_URL"], *keys, "us-east-1"), fleet.term)


@pytest.fixture
def cli(postgres: Database, fleet_id: str) -> Cli:
    """The command line on that fleet."""
    return Cli({"DATABASE_URL": postgres.url, "FLEET_ID": fleet_id})
