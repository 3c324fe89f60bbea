"""The guide's emergency procedures, each from its first command to its end."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from testbed.stack import Stack
from tests.process.guide.conftest import CaseTasks, Fleet, GuideCase, side_by_side

LONG = {"task_type": "work", "params": {"seconds": 600}, "timeout_s": 900}


async def stuck_workers_are_ended_and_the_fleet_comes_back(guided: Fleet, _: Path) -> None:
    """With an orchestrator: all end, the list is clean, and what is queued brings new workers."""
    await guided.orchestrator()
    [task] = await guided.submit(LONG)
    old = await guided.active()
    await guided.until("select 1 from tasks where id = %s and status = 'In Progress'", task)
    refused, dry = await asyncio.gather(
        guided.script("shutdown_all_workers.py"), guided.script("shutdown_all_workers.py", "--dry-run")
    )
    assert (refused.code, refused.out) == (2, "")
    assert "error[E050]" in refused.err
    assert dry.code == 0
    assert old["id"] in dry.out
    assert "Would end" in dry.err
    ran = await guided.script("shutdown_all_workers.py", "--force")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("Nothing is left: no live worker, and RunPod lists no pod of this fleet.")
    [ended] = await guided.until("select * from workers where id = %s and status = 'terminated'", old["id"])
    assert ended["exit_cause"] == "manual"
    new = await guided.active()
    assert new["id"] != old["id"]
    await guided.until("select 1 from tasks where id = %s and worker_id = %s", task, new["id"])
    [again] = await guided.until("select attempt - uncounted as used from orchestrator.live where task_id = %s", task)
    assert again["used"] == 1, "an operator's shutdown costs the task no attempt"
    assert "shutdown" not in str(await (await guided.sql.execute("select * from fleet_settings")).fetchall())


async def everything_can_be_ended_while_no_orchestrator_runs(guided: Fleet, _: Path) -> None:
    """The command leads for the time being, by the loop's own means, and spawns nothing."""
    orchestrator = await guided.orchestrator()
    [task] = await guided.submit(LONG)
    old = await guided.active()
    await guided.until("select 1 from tasks where id = %s and status = 'In Progress'", task)
    await orchestrator.stop()
    await guided.sql.execute("update fleet_lease set expires_at = now()")  # a busy machine has no time to give it back
    stray = await guided.stray_pod()
    status = await guided.script("shutdown_all_workers.py", "--status")
    assert status.code == 0
    assert old["id"] in status.out
    assert f"pod {stray}" in status.out
    assert "nobody leads" in status.err
    ran = await guided.script("shutdown_all_workers.py", "--force", "--json")
    assert ran.code == 0, ran.err
    assert "Nobody leads: this command leads until it is done." in ran.err
    document = ran.json()
    assert document["outcome"] == "ended"
    assert set(document["pods"]) == {old["pod_id"], stray}
    assert document["queued"] == 1
    assert await guided.pods() == []
    listed = await guided.script("spawn_gpu.py", "list")
    assert listed.out == "No active workers found.\n"
    workers = await guided.until("select id from workers where fleet = %s", guided.environment["FLEET_ID"])
    assert [row["id"] for row in workers] == [old["id"]]


async def a_database_that_does_not_agree_with_runpod(guided: Fleet, _: Path) -> None:
    """Pods without rows are deleted, rows without pods ended; nothing else is touched."""
    orchestrator = await guided.orchestrator()
    await guided.submit(LONG)
    worker = await guided.active()
    await orchestrator.stop()
    clean = await guided.script("sync_runpod_database.py")
    assert (clean.code, clean.out) == (
        0,
        "RunPod and the database agree: 1 pod of this fleet, each named by its worker.\n",
    ), clean.err
    stray = await guided.stray_pod()
    found = await guided.script("sync_runpod_database.py", "analyze", "--json")
    assert found.code == 1
    [orphan] = found.json()["pods_without_rows"]
    assert orphan["pod_id"] == stray
    assert orphan["usd_per_hour"] > 0
    assert (await guided.script("sync_runpod_database.py", "terminate_orphaned")).code == 2
    ran = await guided.script("sync_runpod_database.py", "terminate_orphaned", "--force")
    assert ran.code == 0, ran.err
    assert ran.err.count("orphan_deleted") <= 2, "a pod that a list still shows is not deleted at every tick"
    assert [pod["id"] for pod in await guided.pods()] == [worker["pod_id"]]
    await guided.stack.control("POST", f"pods/{worker['pod_id']}/kill", {"how": "vanish"})
    await guided.until(
        "update workers set created_at = created_at - interval '2 minutes' where id = %s returning id", worker["id"]
    )
    stale = await guided.script("sync_runpod_database.py", "analyze", "--json")
    assert [row["worker_id"] for row in stale.json()["rows_without_pods"]] == [worker["id"]]
    ran = await guided.script("sync_runpod_database.py", "update_database", "--force")
    assert ran.code == 0, ran.err
    [row] = await guided.until("select * from workers where id = %s and status <> 'active'", worker["id"])
    assert (row["exit_cause"], row["failure_code"]) == ("pod_lost", "POD_MISSING")


CASES: tuple[GuideCase, ...] = (
    stuck_workers_are_ended_and_the_fleet_comes_back,
    everything_can_be_ended_while_no_orchestrator_runs,
    a_database_that_does_not_agree_with_runpod,
)


@pytest.fixture(scope="module")
async def running(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CaseTasks]:
    """All of them under way."""
    async with side_by_side(stack, CASES, tmp_path_factory.mktemp("emergencies")) as cases:
        yield cases


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
async def test_an_emergency_ends_well(running: CaseTasks, case: str) -> None:
    """The docstring of the case says what holds."""
    await running[case]
