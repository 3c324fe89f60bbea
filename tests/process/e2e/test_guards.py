"""Machines that become sick while their workers work: named, replaced and remembered, and no task is lost."""

import json
from datetime import datetime
from typing import Any

import pytest

from demo.scenario import submit
from orchestrator.core.exit_causes import ExitCause
from testbed.stack import Stack
from tests.process.cli.forked import command
from tests.process.e2e.conftest import Until
from tests.process.e2e.test_main_job import ALL_DONE, Sql, work

NAMED_S = 90.0
GPU = "NVIDIA A100-SXM4-80GB"  # it has ECC
FAULT, SICK = ExitCause.GPU_FAULT, ExitCause.WORKER_SICK
WAYS: dict[str, tuple[dict[str, Any], str, ExitCause]] = {  # how a machine becomes sick -> its finding, and the end
    "Xid 79 in the kernel log": ({"faults": {"xid": "79"}}, "XID_79", FAULT),
    "the driver cannot reach the GPU": ({"faults": {"gpu_lost": ""}}, "GPU_LOST", FAULT),
    "a GPU disappears": ({"faults": {"gpu_missing": ""}}, "GPU_COUNT_DROPPED", FAULT),
    "uncorrected memory errors": ({"faults": {"ecc_errors": ""}}, "ECC_UNCORRECTED", FAULT),
    "the driver wants a reset": ({"gpus": {"gpu_recovery_action": "Reset"}}, "GPU_RECOVERY", FAULT),
    "the disk is full": ({"faults": {"disk_full": ""}}, "DISK_FULL", SICK),
}
ENDED = """
    select w.id, w.exit_cause, w.failure_code, e.at, e.reason from workers w
      join worker_events e on e.worker_id = w.id and e.to_state = 'terminating' and e.from_state <> 'terminating'
     where w.id = %s and w.exit_cause is not null
"""


async def working(until: Until, count: int) -> list[dict[str, Any]]:
    """So many ready workers, each of which holds a task."""
    query = """
        select array_agg(w.id order by w.id) as ids, array_agg(w.pod_id order by w.id) as pods from workers w
         where w.status = 'active' and exists (
            select from tasks t where t.worker_id = w.id and t.status = 'In Progress') having count(*) >= %s
    """
    (row,) = await until(query, count, timeout_s=120)
    return [{"id": name, "pod_id": pod} for name, pod in zip(row["ids"], row["pods"], strict=True)][:count]


async def test_verify_repeats_the_checks_of_bring_up_on_a_live_worker(stack: Stack, until: Until) -> None:
    """A machine without nvidia-smi is named at once; what cannot be read ends nothing."""
    await stack.start_orchestrator({"MIN_ACTIVE_GPUS": "1", "MAX_ACTIVE_GPUS": "1"})
    await submit(stack, [work(60)])
    (worker,) = await working(until, 1)
    status, out, err = await command(stack, "verify", worker["id"], "--now", "--json")
    assert status == 0, out + err
    await stack.control("POST", f"pods/{worker['pod_id']}/machine", {"faults": {"smi_absent": ""}})
    status, out, err = await command(stack, "verify", worker["id"], "--now", "--json")
    checks = {one["what"]: one for one in json.loads(out)["checks"]}
    assert status == 1, out + err
    assert checks["gpu_inventory now"]["holds"] is False
    assert "GPU_NOT_ATTACHED" in checks["gpu_inventory now"]["evidence"]
    assert checks["platform now"]["holds"] is not False
    assert checks["deploy now"]["holds"]
    assert checks["process now"]["holds"]
    (row,) = await until("select status, exit_cause from workers where id = %s", worker["id"])
    assert (row["status"], row["exit_cause"]) == ("active", None)


@pytest.mark.full
async def test_six_machines_become_sick_in_six_ways_under_load(stack: Stack, until: Until, sql: Sql) -> None:
    """Each cause is named within 90 s, the workers are replaced, their hosts remembered, and all tasks complete."""
    many = {"MIN_ACTIVE_GPUS": "6", "MAX_ACTIVE_GPUS": "7", "TASKS_PER_GPU_THRESHOLD": "1", "RUNPOD_GPU_TYPE": GPU}
    own = {"WORKER_PYTHON": "python3"}  # the pod's own: its agent reads the pod's machine
    await stack.start_orchestrator(many | own)
    await submit(stack, [work(3) for _ in range(100)])
    workers = await working(until, len(WAYS))
    await sql.execute("update workers set machine_id = 'm-' || id")  # the emulator names no machines
    at: dict[str, datetime] = {}
    for worker, (body, _, _) in zip(workers, WAYS.values(), strict=True):
        at[worker["id"]] = (await until("select now() as at"))[0]["at"]
        await stack.control("POST", f"pods/{worker['pod_id']}/machine", body)
    status, out, err = await command(stack, "health", "--json")
    assert status in (0, 1), out + err
    took = {}
    for worker, (way, (_, code, cause)) in zip(workers, WAYS.items(), strict=True):
        (end,) = await until(ENDED, worker["id"], timeout_s=NAMED_S)
        took[way] = (end["at"] - at[worker["id"]]).total_seconds()
        assert (end["exit_cause"], end["failure_code"]) == (cause, code), way
        assert code in end["reason"] or cause is SICK, end
    assert max(took.values()) <= NAMED_S, took
    struck = await until("select key from hosts where key like 'machine:m-%%' and avoid_until > now()")
    assert len(struck) == sum(cause is FAULT for _, _, cause in WAYS.values())
    await until(ALL_DONE, timeout_s=180)
    query = """
        select count(*) as n from tasks t
          left join orchestrator.attempts a on a.task_id = t.id and a.attempt = t.attempts
         where a.attempt - a.uncounted > 1 or t.status <> 'Complete'"""
    assert (await until(query))[0]["n"] == 0, "an attempt on a sick machine does not count"
    old = [worker["id"] for worker in workers]
    await until("select 1 from workers where status in ('active', 'idle') and id <> all (%s) offset 5", old)
