"""Ten incidents, staged on real counterparts: the first command that the guide names tells the cause and the fix.

They share a fleet, in an order that needs few restarts of its orchestrator.
"""

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Any

import asyncssh

from tests.process.cli.builders import Ran
from tests.process.guide.conftest import Fleet
from tests.process.incidents.conftest import Incident

LONG = {"task_type": "work", "params": {"seconds": 600}, "timeout_s": 900}
STITCH = {"task_type": "travel_stitch", "params": {}, "max_attempts": 1}
# How a pod is born -> the stage at which it stays, and what a person reads there: the cause, and the fix.
STUCK = {
    "stuck_provisioning": ("pod_running", "RunPod shows it as PROVISIONING", "set BRINGUP_DEADLINES=pod_running="),
    "no_ssh_details": ("ssh_details", "waiting on provider: a public address for SSH", "set RUNPOD_CLOUD or RUNPOD_D"),
    "ssh_silent": ("tcp", "accepts the connection and sends nothing (TCP_TIMEOUT)", "orchestrator terminate "),
    "agent_cut_off": ("heartbeat", "waiting on worker: its first heartbeat", "see that pods reach WORKER_API_URL"),
}
BOOKED = """
    insert into costs (worker_id, fleet, kind, from_at, to_at, usd)
    select %s, %s, 'idle', at, at + interval '1 hour', usd
      from (values (now() - interval '3 days', 1.5), (now() - interval '2 hours', 6)) as past (at, usd)
"""


def advice(ran: Ran, issue: str) -> tuple[str, str, str]:
    """The problem with these words in the report on a terminal: its head, its detail, its fix."""
    lines = ran.out.splitlines()
    assert lines[0].startswith("❌ UNHEALTHY") or "[HIGH]" not in ran.out
    found = [number for number, line in enumerate(lines) if issue in line and line[0].isdigit()]
    assert len(found) == 1, f"{issue!r} is not in:\n{ran.out}\n{ran.err}"
    [at] = found
    said = lines[at + 1 : at + 3]
    detail, fix = (said[0], said[1]) if not said[0].lstrip().startswith("fix:") else ("", said[0])
    return lines[at], detail.strip(), fix.strip()


async def versions(fleet: Fleet) -> dict[str, Any]:
    """Every table's row versions, and where each sequence stands."""
    tables = "select tablename as name from pg_tables where schemaname = 'public' order by 1"
    found: dict[str, Any] = {}
    for table in await fleet.until(tables):
        query = f"select ctid::text, xmin::text from {table['name']} order by 1"  # noqa: S608  a name of the catalogue's
        found[table["name"]] = await (await fleet.sql.execute(query.encode())).fetchall()
    found["sequences"] = await fleet.until("select sequencename, last_value from pg_sequences order by 1")
    return found


def touched(home: Path) -> dict[str, tuple[int, int]]:
    """Every file and directory below: when it was last changed, and its size."""
    return {str(path): (path.stat().st_ctime_ns, path.stat().st_size) for path in home.rglob("*")}


async def test_a_backlog(incident: Incident) -> None:
    """What limits the fleet, when the queue would be done, and which variable to raise."""
    await incident.led()
    await incident.fleet.submit(*[LONG] * 4)
    await incident.fleet.until("select 1 from tasks where status = 'In Progress'")
    await incident.fleet.until('select 1 from decisions where blocked @> \'[{"kind": "max_active"}]\'')
    ran = await incident.diagnose()
    head, detail, fix = advice(ran, "Backlog in pool default: 3 tasks wait")
    assert "[MEDIUM] Scaling" in head
    assert "limited by: " in detail
    assert "MAX_ACTIVE_GPUS=1" in detail
    assert "ETA " in detail
    assert fix == "fix: raise MAX_ACTIVE_GPUS"


async def test_a_stitch_that_fails(incident: Incident) -> None:
    """The handler's own words, and that the segments come by depends_on."""
    await incident.led()
    [task] = await incident.fleet.submit(STITCH)
    await incident.fleet.until("select 1 from tasks where id = %s and status = 'Failed'", task)
    head, detail, fix = advice(await incident.diagnose(), "travel_stitch")
    assert head.endswith("Tasks: 1 task of type travel_stitch failed: ValueError: No valid segment videos found")
    assert "HANDLER_ERROR" in detail
    assert "Submit stitch tasks with depends_on" in fix
    assert f"explain {task}" in fix


async def test_tasks_that_are_all_blocked(incident: Incident) -> None:
    """By a task that nobody ever inserted: nothing runs, and nothing will."""
    await incident.led()
    await incident.sql("insert into tasks (task_type, depends_on) values ('work', array[gen_random_uuid()])")
    head, detail, fix = advice(await incident.diagnose(), "All 1 queued tasks are blocked")
    assert "[MEDIUM] Tasks" in head  # nothing that is ready waits
    assert "1 by dependencies" in detail
    assert fix == "fix: python -m orchestrator tasks list --status Queued; python -m orchestrator explain ID"


async def test_missing_and_mangled_keys(incident: Incident) -> None:
    """What is missing by its name; what the environment did to a key, and how to set it right."""
    key = incident.fleet.environment["RUNPOD_SSH_PRIVATE_KEY"]
    missing, mangled = await asyncio.gather(
        incident.diagnose(RUNPOD_API_KEY=None, RUNPOD_SSH_PUBLIC_KEY=None),
        incident.diagnose(RUNPOD_SSH_PRIVATE_KEY=key[: len(key) // 2]),
    )
    head, detail, fix = advice(missing, "Missing critical environment variables")
    assert head == "1. [HIGH] Environment: Missing critical environment variables"
    assert detail == "RUNPOD_API_KEY, RUNPOD_SSH_PUBLIC_KEY"
    assert fix == "fix: Add missing environment variables to Railway deployment"
    head, detail, fix = advice(mangled, "RUNPOD_SSH_PRIVATE_KEY")
    assert head == "1. [HIGH] SSH: RUNPOD_SSH_PRIVATE_KEY is mangled"
    assert "cut" in detail
    assert "RUNPOD_SSH_PRIVATE_KEY=" in fix
    assert (missing.code, mangled.code) == (1, 1)


async def test_the_wrong_key_pair(incident: Incident) -> None:
    """Two good keys that do not belong together."""
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    ran = await incident.diagnose(RUNPOD_SSH_PUBLIC_KEY=other)
    head, detail, fix = advice(ran, "does not match")
    assert head == "1. [HIGH] SSH: RUNPOD_SSH_PRIVATE_KEY does not match RUNPOD_SSH_PUBLIC_KEY"
    assert detail.count("SHA256:") == 2
    assert "ssh-keygen -y" in fix


async def test_tasks_that_are_not_processed(incident: Incident) -> None:
    """No process, no claims, no database: told apart, each with its own fix."""
    fleet = incident.fleet
    await incident.unled()
    await fleet.submit({**LONG, "pool": "nobody"})
    await incident.sql("revoke execute on function worker_claim from service_role")
    stopped, away = await asyncio.gather(incident.diagnose(), incident.diagnose(SUPABASE_URL="http://127.0.0.1:9"))
    await incident.sql("grant execute on function worker_claim to service_role")
    head, detail, fix = advice(stopped, "not running")
    assert head.endswith("[HIGH] Orchestrator: The orchestrator process is not running")
    assert detail == "queued tasks: 1, live workers: 1, leader: none"
    assert fix == "fix: Start it: python -m orchestrator run (on Railway: restart the service)"
    head, detail, fix = advice(stopped, "Tasks cannot be claimed")
    assert "permission denied for function worker_claim" in detail
    assert fix == "fix: python -m orchestrator migrate"
    head, detail, fix = advice(away, "The database is unreachable")
    assert "127.0.0.1:9" in detail
    assert "SUPABASE_URL" in fix


async def test_orphan_pods(incident: Incident) -> None:
    """Pods that cost money and that no worker names."""
    await incident.unled()
    stray = await incident.fleet.stray_pod()
    ran = await incident.fleet.script("sync_runpod_database.py")
    assert ran.code == 1
    assert ran.out.startswith("Pods without rows: 1, $0.69/h")
    assert ran.lines_with(stray)
    assert ran.err.splitlines() == ["fix: python -m orchestrator sync terminate_orphaned"]
    head, detail, fix = advice(await incident.diagnose(), "orphaned pod")
    assert head.endswith("[HIGH] RunPod: 1 orphaned pod costs $0.69/h and no worker names them")
    assert detail == stray
    assert fix == "fix: python -m orchestrator sync terminate_orphaned"
    await incident.fleet.stack.control("POST", f"pods/{stray}/kill", {"how": "vanish"})


async def test_cost_anomalies(incident: Incident) -> None:
    """A day that is more expensive than usual, and a worker that cost money without work."""
    await incident.unled()
    worker = await incident.fleet.active()
    await incident.sql(BOOKED, worker["id"], worker["fleet"])
    ran = await incident.diagnose()
    await incident.sql("delete from costs where to_at - from_at = interval '1 hour'")
    head, _, fix = advice(ran, "in the last 24 hours")
    assert "[MEDIUM] Cost: Cost anomaly: $6." in head
    assert head.endswith("usually $1.50 a day")
    assert fix == "fix: python -m orchestrator cost --since 24h --by worker"
    head, _, fix = advice(ran, f"Cost anomaly: worker {worker['id']}")
    assert head.endswith(" of it")
    assert fix == f"fix: python -m orchestrator explain {worker['id']}"


async def test_looking_changes_nothing(incident: Incident, tmp_path: Path) -> None:
    """No row has another version, no sequence has moved, no file on the pod is new or touched, whatever looked."""
    fleet = incident.fleet
    await incident.unled()
    worker = await fleet.active()
    pods = (await fleet.stack.control("GET", "ledger"))["pods"]
    [home] = [Path(pod["home"]) for pod in pods if pod["id"] == worker["pod_id"]]
    [agent] = [int(found.read_text().split()[0]) for found in home.glob(".orchestrator/run/*/agent.pid")]
    os.kill(agent, signal.SIGSTOP)  # it beats and writes logs by itself
    try:
        assert fleet.stack.postgrest is not None
        async with asyncio.timeout(60):
            await fleet.stack.postgrest.idle()  # what the agent had asked is done
        await fleet.submit(LONG)
        rows, files = await versions(fleet), touched(home)
        looks = (
            incident.diagnose("--save-report", cwd=tmp_path),
            fleet.script("spawn_gpu.py", "status", worker["id"]),
            fleet.script("fetch_worker_logs.py", worker["id"], S3_BUCKET=None),
            fleet.script("sync_runpod_database.py", "analyze"),
            fleet.script("shutdown_all_workers.py", "--dry-run"),
        )
        assert {ran.code for ran in await asyncio.gather(*looks)} == {0, 1}  # 1: nobody leads
        assert await versions(fleet) == rows
        assert touched(home) == files
        [report] = tmp_path.iterdir()
        assert "✅ Connected" in report.read_text()
    finally:
        os.kill(agent, signal.SIGCONT)


async def test_ssh_authentication(incident: Incident) -> None:
    """New pods refuse the key: whose half is wrong, and how to set it; once it works again it is a remark."""
    fleet = incident.fleet
    await incident.fault("ssh_auth_refused")
    await incident.led(MAX_ACTIVE_GPUS="2")
    await fleet.submit(LONG, LONG)
    await incident.workers("failure_code = 'AUTH_FAILED'")
    ran = await incident.diagnose()
    head, detail, fix = advice(ran, "SSH authentication fails")
    assert head.endswith("The pod refuses our key: it was given the public half of another.")
    assert re.search(r"\b[1-9]\d* attempts? within a day", detail)
    assert fix == 'fix: set RUNPOD_SSH_PUBLIC_KEY="$(ssh-keygen -y -f ~/.ssh/id_ed25519)"'
    await fleet.stack.control("DELETE", "faults")
    await incident.forget_failures()
    await fleet.until(
        "select 1 from workers where fleet = %s and status = 'active' having count(*) = 2",
        fleet.environment["FLEET_ID"],
    )
    later = await incident.diagnose()
    head, detail, fix = advice(later, "SSH authentication failed within a day, and works again")
    assert "[LOW]" in head
    assert "a later one succeeded" in detail
    assert (ran.code, later.code) == (0, 0), later.out  # the pool's first worker goes on


async def test_workers_stuck_in_their_stages(incident: Incident) -> None:
    """Each by its stage, with whom it waits for, what happens by itself and what to do sooner."""
    fleet = incident.fleet
    for number, kind in enumerate(STUCK, 1):
        await incident.fault(kind, nth=number)
    held = ",".join(f"{stage}=600" for stage, *_ in STUCK.values())
    await incident.led(MAX_ACTIVE_GPUS="9", BRINGUP_DEADLINES=held, WORKER_PYTHON="python3")  # the pod's own fails
    await incident.forget_failures()
    await fleet.submit(*[LONG] * (2 + len(STUCK)))
    for stage, *_ in STUCK.values():
        await incident.workers("status = 'spawning' and stage = %s", stage)
    tried = "select 1 from worker_attempts where worker_id = %s and failure_code = 'TCP_TIMEOUT'"
    [slow] = await incident.workers("stage = 'tcp'")
    await fleet.until(tried, slow["id"])
    await incident.sql("update workers set state_since = now() - interval '6 minutes' where status = 'spawning'")
    report, one = await asyncio.gather(incident.diagnose(), fleet.script("spawn_gpu.py", "status", slow["id"]))
    for stage, cause, fix in STUCK.values():
        head, detail, said = advice(report, f"1 worker stuck in spawning, stage {stage}: ")
        assert cause in head
        assert fix in said
        assert "terminate, respawn" in detail
    assert one.lines_with("spawning for 6m")
    assert one.lines_with("why           waiting on provider: The pod's SSH port does not answer, or accepts")
    assert one.lines_with(f"fix           python -m orchestrator timeline {slow['id']}")


async def test_stale_rows(incident: Incident) -> None:
    """Workers whose pods are gone, while nobody leads to see it."""
    fleet = incident.fleet
    worker = await fleet.active()
    await incident.unled()
    await fleet.stack.control("POST", f"pods/{worker['pod_id']}/kill", {"how": "vanish"})
    await incident.sql("update workers set created_at = created_at - interval '2 minutes' where id = %s", worker["id"])
    ran = await fleet.script("sync_runpod_database.py")
    assert ran.code == 1
    assert ran.out.startswith("Rows without pods: 1")
    assert re.search(rf"^{worker['id']} +(active|idle) +{worker['pod_id']} +not listed$", ran.out, re.MULTILINE)
    assert ran.err.splitlines() == ["fix: python -m orchestrator sync update_database"]
    head, detail, fix = advice(await incident.diagnose(), "stale worker row")
    assert head.endswith("[HIGH] Database: 1 stale worker row: its pod is gone")
    assert detail == f"{worker['id']} (not listed)"
    assert fix == "fix: python -m orchestrator sync update_database"
