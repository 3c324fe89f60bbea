"""A migrated database and the workers' door, shared by the session; a rig per test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.migrate import migrate
from testbed.services.postgres import EmbeddedPostgres
from tests.process.bringup.rig import Rig, door, rigged


@pytest.fixture(scope="session")
async def db(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PostgresDb]:
    """A migrated database."""
    directory = tmp_path_factory.mktemp("bringup") / "postgres"
    async with EmbeddedPostgres(directory, durable=False, keep=False) as server:
        await migrate(server.url)
        db = await PostgresDb.open(server.url, pool_size=6)
        yield db
        await db.close()


@pytest.fixture(scope="session")
async def api_url(db: PostgresDb) -> AsyncIterator[str]:
    """Where agents call."""
    async with door(db) as url:
        yield url


@pytest.fixture
async def rig(db: PostgresDb, api_url: str, tmp_path: Path) -> AsyncIterator[Rig]:
    """Pods that can be climbed to, and the parts to do it with."""
    async with rigged(db, api_url, tmp_path) as rig:
        yield rig
