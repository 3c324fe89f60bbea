"""A fleet with a cluster pool: emulated pods on the global network, with Debian's Slurm, and the running daemon."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from testbed.shared_services import SharedServices
from testbed.stack import Stack
from tests.process.cli import forked
from tests.process.clusters.operator import SETTINGS, START_S, STATE, Cluster, reserved_id

POLL_S = 0.2
WORKERS = "select id, status, stage, state_reason from workers"
Sql = AsyncConnection[dict[str, Any]]


@pytest.fixture
async def stack(shared: SharedServices, tmp_path: Path) -> AsyncIterator[Stack]:
    """Everything but the orchestrator itself."""
    servers = await shared.servers(f"cluster_{uuid.uuid4().hex[:12]}")
    async with Stack(tmp_path / "stack", boot_s=(1, 2), servers=servers, start=forked.start) as it:
        it.environment |= {**SETTINGS, "GPU_IDLE_TIMEOUT_SEC": "2"}
        yield it


@pytest.fixture
async def sql(stack: Stack) -> AsyncIterator[Sql]:
    """A connection to its database."""
    async with await stack.connect() as it:
        yield it


@pytest.fixture
async def cluster(stack: Stack, sql: Sql) -> AsyncIterator[Cluster]:
    """A cluster that is not created yet. A failure says what is known of it."""

    async def until(query: str, *values: object, timeout_s: float = START_S) -> Sequence[Mapping[str, Any]]:
        deadline = time.monotonic() + timeout_s
        while not (rows := await (await sql.execute(query, values)).fetchall()):
            if time.monotonic() > deadline:
                state = await (await sql.execute(STATE)).fetchall()
                workers = await (await sql.execute(WORKERS)).fetchall()
                raise AssertionError(f"not within {timeout_s:.0f} s: {query} {values}; {state}; {workers}")
            await asyncio.sleep(POLL_S)
        return rows

    with reserved_id() as name:
        yield Cluster(stack, until, name)
