"""The production entry point, started as a process with nothing but environment variables."""

import json
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from demo.scenario import submit
from orchestrator.core.stages import STAGE_SPECS
from testbed.audit import compare_logs
from testbed.stack import Stack
from tests.process.cli.forked import command
from tests.process.e2e.conftest import PATIENT, Until

ALL_DONE = """
    select 1 where not exists (select 1 from tasks where status <> 'Complete') and exists (select 1 from tasks)
"""
ALL_GONE = "select 1 where not exists (select 1 from workers where status <> 'terminated')"
Sql = AsyncConnection[dict[str, Any]]


def work(seconds: float, value: int = 0, **more: Any) -> dict[str, Any]:
    return {"task_type": "work", "params": {"seconds": seconds, "value": value}, **more}


async def nothing_left(stack: Stack) -> bool:
    return bool((await stack.control("GET", "ledger"))["alive"] == 0)


async def test_an_insert_wakes_the_loop(stack: Stack, until: Until) -> None:
    """A task put into an empty fleet leads to a pod long before the next tick of a slow loop would come."""
    await stack.start_orchestrator({"ORCHESTRATOR_POLL_SEC": "300"})
    await until("select 1 from fleet_lease")
    await submit(stack, [work(0.1)])
    await until("select 1 from workers", timeout_s=30)
    await until(ALL_DONE, timeout_s=60)


async def test_a_burst_brings_exactly_as_many_pods_as_wanted(stack: Stack, until: Until) -> None:
    """A tick that comes while the last one's intents are still being written does not ask for them again."""
    wanted = 60
    first = await stack.start_orchestrator(
        {**PATIENT, "MAX_ACTIVE_GPUS": "1"}
    )  # a release that was promoted needs no canary
    await submit(stack, [work(0.1)])
    await until(ALL_DONE)
    await first.stop()
    await stack.control("POST", "settings", {"boot_s": [600, 600], "create_s": 1, "per_minute": 10_000})
    await stack.start_orchestrator({"MIN_ACTIVE_GPUS": f"{wanted}", "MAX_ACTIVE_GPUS": f"{wanted}"})
    await until("select 1 from workers where pod_id is not null offset %s", wanted - 1)
    await until("select 1 where not exists (select 1 from workers where stage in ('intent', 'pod_created'))")
    assert len((await stack.control("GET", "ledger"))["pods"]) == wanted
    assert len(await until("select id from workers")) == wanted


async def test_the_fleet_goes_to_zero_and_comes_back(stack: Stack, until: Until) -> None:
    """With nothing to do the last pod is deleted; the next task brings a new one."""
    await stack.start_orchestrator()
    for _ in range(2):
        await submit(stack, [work(0.2)])
        await until(ALL_DONE)
        await until(ALL_GONE)
        assert await nothing_left(stack)
    ledger = await stack.control("GET", "ledger")
    assert len(ledger["pods"]) == 2


async def test_after_a_kill_the_orchestrator_continues_where_it_was(stack: Stack, sql: Sql, until: Until) -> None:
    """SIGKILL in the middle, and a new process: nothing lost or done twice, no pod doubled, no log gap."""
    first = await stack.start_orchestrator()
    # The first one lasts until the second worker is up, also on a busy machine.
    seconds = (15, 3, 3, 3, 3, 3)
    await submit(stack, [*(work(s, 1) for s in seconds), work(0.1, depends_on=[f"#{i}" for i in range(6)])])
    await until("select 1 from tasks where status = 'In Progress' offset 1")
    await until("select 1 from log_objects where shipped_at is not null")
    await first.kill()
    await stack.start_orchestrator()
    await until(ALL_DONE, timeout_s=120)
    await until(ALL_GONE, timeout_s=90)

    assert await nothing_left(stack)
    ledger = await stack.control("GET", "ledger")
    workers = await (await sql.execute("select id, pod_id from workers")).fetchall()
    assert sorted(pod["name"] for pod in ledger["pods"]) == sorted(row["id"] for row in workers)
    doubled = "select 1 from task_attempts where outcome = 'complete' group by task_id having count(*) > 1"
    assert not await (await sql.execute(doubled)).fetchall()
    joined = await (await sql.execute("select result_data from tasks where depends_on <> '{}'")).fetchone()
    assert joined is not None
    assert joined["result_data"]["sum"] == 6
    logs = await compare_logs(sql, [Path(pod["home"]) for pod in ledger["pods"]], stack.blobs())
    assert logs.produced > 0
    assert (logs.missing, logs.declared_lost) == (0, 0)


@pytest.mark.both_transports
async def test_a_running_task_is_cancelled(stack: Stack, until: Until) -> None:
    """A cancelled task's process ends, and its worker takes the next one."""
    await stack.start_orchestrator({**PATIENT, "MAX_ACTIVE_GPUS": "1"})
    [long] = await submit(stack, [work(600)])
    await until("select 1 from tasks where status = 'In Progress' and progress is not null")
    status, out, err = await command(stack, "tasks", "cancel", long, "--force", "--json")
    assert status == 0, out + err
    await submit(stack, [work(0.1)])
    await until("select 1 from tasks where id = %s and status = 'Cancelled'", long)
    await until("select 1 from tasks where status = 'Complete'")
    rows = await until("select worker_id from task_attempts")
    assert len({row["worker_id"] for row in rows}) == 1


async def test_an_own_worker_program_is_started_and_its_log_shipped(stack: Stack, until: Until) -> None:
    """WORKER_START_COMMAND instead of the agent's handlers."""
    program = "sh -c 'while :; do echo working for $WORKER_ID; sleep 0.2; done'"
    await stack.start_orchestrator(
        {"WORKER_START_COMMAND": program, "WORKER_HANDLERS": "", "MIN_ACTIVE_GPUS": "1", "WORKER_CODE_DIR": ""}
    )
    await until("select 1 from workers where status in ('active', 'idle') and own_program")
    await until("select 1 from log_objects where stream = 'handler' and shipped_at is not null")
    [worker] = await until("select id from workers where status <> 'terminated'")
    status, out, err = await command(stack, "logs", worker["id"])
    assert status == 0, err
    assert f"working for {worker['id']}" in out


@pytest.mark.both_transports
async def test_an_operator_spawns_and_terminates(stack: Stack, until: Until) -> None:
    """Through the same intent and the same proof as the loop's own decisions."""
    await stack.start_orchestrator(PATIENT)
    status, out, err = await command(stack, "spawn", "--worker-id", "gpu-by-hand", "--json")
    assert status == 0, out + err
    await until("select 1 from workers where id = 'gpu-by-hand' and status in ('active', 'idle')")
    status, out, err = await command(stack, "list", "--json")
    assert status == 0, err
    assert "gpu-by-hand" in json.dumps(json.loads(out))
    status, out, err = await command(stack, "verify", "gpu-by-hand", "--now", "--json")
    assert status == 0, out + err
    checks = {one["what"]: (one["holds"], one["evidence"]) for one in json.loads(out)["checks"]}
    repeated = {f"{one} now" for one in ("heartbeat", "findings", "platform", "gpu_inventory", "gpu_health", "deploy")}
    assert set(STAGE_SPECS) | repeated | {"ssh now", "code now", "process now"} == set(checks)
    assert checks["deploy now"] == (True, "2 files have their sha256")
    assert checks["ssh now"][1].endswith("its host key is the pinned one")
    assert checks["process now"][1].startswith("running, process ")
    status, out, err = await command(stack, "terminate", "--worker-id", "gpu-by-hand", "--force")
    assert status == 0, out + err
    await until("select 1 from workers where id = 'gpu-by-hand' and status = 'terminated' and exit_cause = 'manual'")
    assert await nothing_left(stack)
