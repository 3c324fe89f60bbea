"""A fleet with a cluster pool: emulated pods on the global network, with Debian's Slurm, and the running daemon."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from testbed.shared_services import SharedServices
from testbed.stack import Stack
from tests.process.cli import forked

POLL_S = 0.2
POOLS = """
[pools.train]
kind = "cluster"
task_types = ["train"]
worker_handlers = ["train"]
gpu_types = ["NVIDIA A40"]
gpu_count = 2
data_centers = ["US-KS-2"]
cloud = "SECURE"
max_active_gpus = 3
"""
STATE = """
    select c.id, c.status, c.nodes, c.reason, c.failure_code, c.waiting_for,
           (select json_agg(json_build_object('worker', m.worker_id, 'role', m.role, 'status', m.status,
                                              'reason', m.reason, 'detail', m.adapter_detail))
              from cluster_members m where m.cluster = c.id) as members
      from cluster_apps c
"""
Sql = AsyncConnection[dict[str, Any]]
Until = Callable[..., Awaitable[Sequence[dict[str, Any]]]]


class Cluster:
    """One cluster of the fleet, over the command line as an operator has it."""

    def __init__(self, stack: Stack, sql: Sql) -> None:
        self.stack, self.sql = stack, sql
        self.id = f"c-{uuid.uuid4().hex[:8]}"  # its ports follow from it, and other tests share this machine

    async def cli(self, *arguments: str) -> Any:
        """`orchestrator cluster …` with --json; the document."""
        status, out, err = await self.stack.run("cluster", *arguments, "--json")
        assert status == 0, err or out
        return json.loads(out)

    async def create(self, nodes: int, *options: str) -> None:
        """Ask for it."""
        await self.cli("create", self.id, "--pool", "train", "--nodes", str(nodes), *options)

    async def reaches(self, *states: str, timeout_s: float = 120.0) -> None:
        """Wait for one of these states; the assertion's text has what is known of the cluster."""
        await self.until(
            "select 1 from cluster_apps where id = %s and status = any(%s)", self.id, list(states), timeout_s=timeout_s
        )

    async def until(self, query: str, *values: object, timeout_s: float = 120.0) -> Sequence[dict[str, Any]]:
        """Wait until a query returns a row; its rows."""
        deadline = time.monotonic() + timeout_s
        while True:
            rows = await (await self.sql.execute(query, values)).fetchall()
            if rows:
                return rows
            if time.monotonic() > deadline:
                state = await (await self.sql.execute(STATE)).fetchall()
                workers = await (
                    await self.sql.execute("select id, status, stage, state_reason from workers")
                ).fetchall()
                raise AssertionError(f"not within {timeout_s:.0f} s: {query} {values}; {state}; {workers}")
            await asyncio.sleep(POLL_S)

    async def names(self, code: str, *, timeout_s: float) -> None:
        """Wait until `cluster explain` has this cause."""
        deadline = time.monotonic() + timeout_s
        while code not in (seen := [one["code"] for one in (await self.cli("explain", self.id))["diagnoses"]]):
            assert time.monotonic() < deadline, f"{code} is not named within {timeout_s:.0f} s: {seen}"
            await asyncio.sleep(POLL_S)

    async def pods(self, role: str) -> list[str]:
        """The ids of the pods of its ready members of this role."""
        found = await self.sql.execute(
            """select w.pod_id from cluster_members m join workers w on w.id = m.worker_id
                where m.cluster = %s and m.role = %s and m.status = 'ready' order by m.index_no""",
            (self.id, role),
        )
        return [row["pod_id"] for row in await found.fetchall()]


@pytest.fixture
async def stack(shared: SharedServices, tmp_path: Path) -> AsyncIterator[Stack]:
    """Everything but the orchestrator itself."""
    servers = await shared.servers(f"cluster_{uuid.uuid4().hex[:12]}")
    (tmp_path / "pools.toml").write_text(POOLS)
    async with Stack(tmp_path / "stack", boot_s=(1, 2), servers=servers, start=forked.start) as it:
        it.environment |= {
            "POOLS_FILE": str(tmp_path / "pools.toml"),
            "WORKER_HANDLERS": "train=slurm",
            "HEARTBEAT_TIMEOUT_SEC": "15",
            "GPU_IDLE_TIMEOUT_SEC": "2",
        }
        await it.control("POST", "settings", {"fake_clocks": True})
        yield it


@pytest.fixture
async def cluster(stack: Stack) -> AsyncIterator[Cluster]:
    """A cluster that is not created yet, with its own connection to the database."""
    async with await stack.connect() as sql:
        yield Cluster(stack, sql)
