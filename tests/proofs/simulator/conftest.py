"""A server of the real functions for the drift test."""

from collections.abc import AsyncIterator

import pytest

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.migrate import migrate
from testbed.services.postgres import EmbeddedPostgres


@pytest.fixture(scope="session")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The schema on a server of its own."""
    async with EmbeddedPostgres(tmp_path_factory.mktemp("sim") / "data", durable=False, keep=False) as server:
        await migrate(server.url)
        yield server.url


@pytest.fixture(scope="session")
async def real(url: str) -> AsyncIterator[PostgresDb]:
    """Its functions."""
    db = await PostgresDb.open(url, call_timeout_s=30)
    yield db
    await db.close()
