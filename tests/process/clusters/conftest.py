"""A rig for each test: pods with SSH, and whatever a test starts on them is gone when it ends."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.process.clusters.fleet import cluster, sql, stack
from tests.process.clusters.rig import Rig, rigged

__all__ = ["cluster", "rig", "sql", "stack"]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigged(tmp_path) as one:
        yield one
