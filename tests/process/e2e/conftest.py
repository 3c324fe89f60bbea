"""A fleet of its own for each test: a migrated database, a prefix in the bucket, and an emulator.

Each test runs over DATABASE_URL; those marked `both_transports` once more as a Supabase project would have it, pods
included. `--transport supabase` (`./run soak e2e`) runs all of them that way.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from testbed.shared_services import SharedServices
from testbed.stack import Stack, Transport
from tests.process.cli import forked

POLL_S = 0.1
HANDLERS = {
    "WORKER_CODE_DIR": str(Path(__file__).parent / "handlers"),
    "WORKER_HANDLERS": "work=plain:work",
    "GPU_IDLE_TIMEOUT_SEC": "2",
    "GPU_OVERCAPACITY_IDLE_TIMEOUT_SEC": "2",
    "SPAWNING_GRACE_PERIOD_SEC": "1",
    "SCALE_DOWN_GRACE_PERIOD_SEC": "1",
    "HEARTBEAT_TIMEOUT_SEC": "15",  # a heartbeat every 5 s
}
# A worker without a task stays, however long a busy machine takes until the next one is there.
PATIENT = dict.fromkeys(
    ("GPU_IDLE_TIMEOUT_SEC", "GPU_OVERCAPACITY_IDLE_TIMEOUT_SEC", "SPAWNING_GRACE_PERIOD_SEC"), "600"
)
Until = Callable[..., Awaitable[Sequence[dict[str, Any]]]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Over which transports a test runs."""
    said = any("transport" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "stack" in metafunc.fixturenames and not said:
        asked = metafunc.config.getoption("--transport")
        both = metafunc.definition.get_closest_marker("both_transports") is not None
        metafunc.parametrize("transport", [asked] if asked else ["direct", "supabase"] if both else ["direct"])


@pytest.fixture
async def stack(shared: SharedServices, tmp_path: Path, transport: Transport) -> AsyncIterator[Stack]:
    """Everything but the orchestrator itself."""
    directory, servers = tmp_path / "stack", await shared.servers(f"e2e_{uuid.uuid4().hex[:12]}")
    async with Stack(directory, boot_s=(1, 2), servers=servers, transport=transport, start=forked.start) as it:
        it.environment |= HANDLERS
        yield it


@pytest.fixture
async def sql(stack: Stack) -> AsyncIterator[AsyncConnection[dict[str, Any]]]:
    """A second connection, not the orchestrator's."""
    async with await stack.connect() as connection:
        yield connection


@pytest.fixture
def until(sql: AsyncConnection[dict[str, Any]]) -> Until:
    """Wait until a query returns a row; its rows."""

    async def wait(query: str, *values: object, timeout_s: float = 60.0) -> Sequence[dict[str, Any]]:
        deadline = time.monotonic() + timeout_s
        while True:
            rows = await (await sql.execute(query, values)).fetchall()
            if rows:
                return rows
            if time.monotonic() > deadline:
                state = await (await sql.execute("select id, status, stage, state_reason from workers")).fetchall()
                tasks = await (await sql.execute("select status, count(*) from tasks group by 1")).fetchall()
                raise AssertionError(f"not within {timeout_s:.0f} s: {query}; workers {state}; tasks {tasks}")
            await asyncio.sleep(POLL_S)

    return wait
