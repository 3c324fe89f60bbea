"""A server of the real functions for the drift test."""

from collections.abc import AsyncIterator

import pytest

from orchestrator.adapters.postgres import PostgresDb
from testbed.shared_services import SharedServices


@pytest.fixture(scope="session")
async def url(shared: SharedServices) -> str:
    """A migrated database."""
    return (await shared.database()).url


@pytest.fixture
async def real(shared: SharedServices) -> AsyncIterator[PostgresDb]:
    """The functions of another one, without rows."""
    db = await PostgresDb.open((await shared.database()).url, call_timeout_s=30)
    yield db
    await db.close()
