"""Real parts for these tests: SeaweedFS."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.adapters.blobs import S3Blobs
from orchestrator.emulator.s3 import REGION, EmbeddedS3

BUCKET = "work"


@pytest.fixture(scope="session")
async def s3(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedS3]:
    directory: Path = tmp_path_factory.mktemp("s3")
    async with EmbeddedS3(directory) as server:
        await server.create_bucket(BUCKET)
        yield server


@pytest.fixture
async def blobs(s3: EmbeddedS3) -> AsyncIterator[S3Blobs]:
    blobs = S3Blobs(s3.endpoint_url, s3.access_key, s3.secret_key, BUCKET, "fleet/one", REGION)
    yield blobs
    await blobs.close()
