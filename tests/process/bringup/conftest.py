"""A migrated database and the workers' gateway, shared by the session; a rig per test."""

import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from orchestrator.adapters.postgres import PostgresDb
from testbed.shared_services import SharedServices
from tests.process.bringup.rig import Rig, gateway_url, rigged


@pytest.fixture(scope="session")
async def database(shared: SharedServices) -> str:
    """The URL of a migrated database."""
    return (await shared.database()).url


@pytest.fixture(scope="session")
async def db(database: str) -> AsyncIterator[PostgresDb]:
    """It, opened."""
    db = await PostgresDb.open(database, pool_size=6)
    yield db
    await db.close()


@pytest.fixture(scope="session")
async def api_url(db: PostgresDb) -> AsyncIterator[str]:
    """Where agents call."""
    async with gateway_url(db) as url:
        yield url


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections: it is bound, so that nobody else listens there meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
async def rig(db: PostgresDb, api_url: str, tmp_path: Path) -> AsyncIterator[Rig]:
    """Pods that can be brought up, and the parts to do it with."""
    async with rigged(db, api_url, tmp_path) as rig:
        yield rig
