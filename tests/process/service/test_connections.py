"""How many connections a process holds, as PostgreSQL counts them: a leader 7, a standby 1, whatever they do."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import psycopg
import pytest

from demo.scenario import submit
from testbed.services.free_port import free_port
from testbed.shared_services import SharedServices
from testbed.stack import Stack
from tests.process.cli import forked

LEADER, STANDBY = 7, 1
HELD = """
select application_name, count(*) as n from pg_stat_activity where application_name in ('one', 'two') group by 1
"""
DONE = "select count(*) as n from tasks where status = 'Complete'"
TASKS = 120
DEADLINE_S = 120.0


@pytest.fixture(scope="module")
async def stack(shared: SharedServices, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Light pods that stay."""
    directory, servers = tmp_path_factory.mktemp("connections") / "stack", await shared.servers("connections")
    async with Stack(directory, boot_s=(0.5, 1), servers=servers, light=True, start=forked.start) as it:
        it.environment |= {"MIN_ACTIVE_GPUS": "4", "MAX_ACTIVE_GPUS": "6", "TASKS_PER_GPU_THRESHOLD": "1"}
        yield it


def named(stack: Stack, name: str) -> dict[str, str]:
    return {"DATABASE_URL": f"{stack.environment['DATABASE_URL']}?application_name={name}"}


async def held(sql: psycopg.AsyncConnection[dict[str, Any]]) -> dict[str, int]:
    return {row["application_name"]: row["n"] for row in await (await sql.execute(HELD)).fetchall()}


async def test_a_leader_has_seven_connections_and_a_standby_one(stack: Stack) -> None:
    """Under load, with the standby's gateway asked too; and the standby has its seven once it leads."""
    one = await stack.start_orchestrator(named(stack, "one"))
    port = free_port()
    two = await stack.start_orchestrator(named(stack, "two") | {"PORT": str(port)})
    await submit(stack, [{"task_type": "travel_segment", "params": {"seconds": 0.1}}] * TASKS)
    most = {"one": 0, "two": 0}
    outsider = {"Authorization": "Bearer none"}
    caller = httpx.AsyncClient(headers=outsider, trust_env=False, timeout=DEADLINE_S)
    async with await stack.connect() as sql, caller as client, asyncio.timeout(DEADLINE_S):
        while True:
            asked = (client.post(f"http://127.0.0.1:{port}/rest/v1/rpc/worker_claim", json={}) for _ in range(20))
            await asyncio.gather(*asked)
            now = await held(sql)
            most = {name: max(most[name], now.get(name, 0)) for name in most}
            done = await (await sql.execute(DONE)).fetchone()
            if done is not None and done["n"] == TASKS:
                break
        assert most["one"] <= LEADER
        assert most["two"] == STANDBY
        assert most["one"] > STANDBY, "the load was none"
        one.process.kill()
        await one.process.wait()
        while (await held(sql)).get("two", 0) <= STANDBY:  # it listens, at least
            await asyncio.sleep(0.05)
        assert (await held(sql))["two"] <= LEADER
    two.process.kill()
    await two.process.wait()
