"""Every script of the operators with SUPABASE_URL and a key alone, while an orchestrator runs, and while none does."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from testbed.stack import Stack
from tests.process.guide.conftest import Fleet, fleet_of

LONG = {"task_type": "work", "params": {"seconds": 600}, "timeout_s": 900}


@pytest.fixture
async def busy(stack: Stack) -> AsyncIterator[Fleet]:
    """A fleet whose only worker works, led."""
    async with fleet_of(stack) as fleet:
        assert "DATABASE_URL" not in fleet.environment
        await fleet.orchestrator()
        await fleet.submit(LONG)
        await fleet.until("select 1 from tasks where status = 'In Progress'")
        yield fleet


async def test_with_an_orchestrator(busy: Fleet) -> None:
    """Those that look answer; shutdown ends all there is, and the queue brings a new worker."""
    worker = await busy.active()
    looks = {
        ("spawn_gpu.py", "list"): worker["id"],
        ("spawn_gpu.py", "status", worker["id"]): f"SSH: {worker['ssh_host']}:{worker['ssh_port']}",
        ("fetch_worker_logs.py", worker["id"], "--stream", "agent"): "agent   | ",
        ("shutdown_all_workers.py", "--status"): worker["id"],
        ("sync_runpod_database.py",): "RunPod and the database agree: 1 pod of this fleet",
    }
    for (command, words), ran in zip(
        looks.items(), await asyncio.gather(*(busy.script(*command) for command in looks)), strict=True
    ):
        assert ran.code == 0, (command, ran.out, ran.err)
        assert words in ran.out, command
    ran = await busy.script("shutdown_all_workers.py", "--force")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("Nothing is left: no live worker, and RunPod lists no pod of this fleet.")
    assert (await busy.active())["id"] != worker["id"]


async def test_without_an_orchestrator(busy: Fleet) -> None:
    """The commands lead for as long as it takes."""
    worker = await busy.active()
    await busy.children.pop().stop()
    stray = await busy.stray_pod()
    reaped = await busy.script("sync_runpod_database.py", "terminate_orphaned", "--force")
    assert reaped.code == 0, reaped.err
    assert f"Done: {stray}." in reaped.err
    ran = await busy.script("shutdown_all_workers.py", "--force")
    assert ran.code == 0, ran.err
    assert "Nobody leads: this command leads until it is done." in ran.err
    assert await busy.pods() == []
    assert (await busy.script("spawn_gpu.py", "list")).out == "No active workers found.\n"
    await busy.until("select 1 from workers where id = %s and exit_cause = 'manual'", worker["id"])
    await busy.until("select 1 from tasks where status = 'Queued'")
