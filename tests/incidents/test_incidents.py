"""Ten incidents, staged on real counterparts: the first command that the guide names tells the cause and the fix.

In the order of the guide's problems. Each leaves the fleet as it found it.
"""

import asyncio
from collections.abc import Sequence

import asyncssh

from tests.cli.builders import Ran
from tests.incidents.conftest import Scene

LONG = {"task_type": "work", "params": {"seconds": 600}, "timeout_s": 900}
STITCH = {"task_type": "travel_stitch", "params": {}, "max_attempts": 1}
# How a pod is born -> the stage at which it stays, and what a person reads there: the cause, and the fix.
STUCK = {
    "stuck_provisioning": ("pod_running", "RunPod shows it as PROVISIONING", "raise SPAWNING_TIMEOUT_SEC"),
    "no_ssh_details": ("ssh_details", "waiting on provider: a public address for SSH", "set RUNPOD_CLOUD or RUNPOD_D"),
    "ssh_silent": ("tcp", "accepted the TCP connection and sent no banner", "orchestrator terminate "),
    "agent_cut_off": ("heartbeat", "waiting on worker: its first heartbeat", "see that pods reach WORKER_API_URL"),
}
HELD = "bringup_deadlines"


def advice(ran: Ran, issue: str) -> tuple[str, str, str]:
    """The problem with these words in the report on a terminal: its head, its detail, its fix."""
    lines = ran.out.splitlines()
    assert lines[0].startswith("❌ UNHEALTHY") or "[HIGH]" not in ran.out
    [at] = [number for number, line in enumerate(lines) if issue in line and line[0].isdigit()] or [None]
    assert at is not None, f"{issue!r} is not in:\n{ran.out}\n{ran.err}"
    said = lines[at + 1 : at + 3]
    detail, fix = (said[0], said[1]) if not said[0].lstrip().startswith("fix:") else ("", said[0])
    return lines[at], detail.strip(), fix.strip()


async def test_missing_and_mangled_keys(scene: Scene) -> None:
    """What is missing by its name; what the environment did to a key, and how to set it right."""
    key = scene.fleet.environment["RUNPOD_SSH_PRIVATE_KEY"]
    missing, mangled = await asyncio.gather(
        scene.diagnose(RUNPOD_API_KEY=None, RUNPOD_SSH_PUBLIC_KEY=None),
        scene.diagnose(RUNPOD_SSH_PRIVATE_KEY=key[: len(key) // 2]),
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


async def test_the_wrong_key_pair(scene: Scene) -> None:
    """Two good keys that do not belong together."""
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    ran = await scene.diagnose(RUNPOD_SSH_PUBLIC_KEY=other)
    head, detail, fix = advice(ran, "does not match")
    assert head == "1. [HIGH] SSH: RUNPOD_SSH_PRIVATE_KEY does not match RUNPOD_SSH_PUBLIC_KEY"
    assert detail.count("SHA256:") == 2
    assert "ssh-keygen -y" in fix


async def test_workers_stuck_in_their_stages(scene: Scene) -> None:
    """Each by its stage, with whom it waits for, what happens by itself and what to do sooner."""
    fleet = scene.fleet
    for number, kind in enumerate(STUCK, 1):
        await scene.fault(kind, nth=number)
    held = ",".join(f"{stage}=600" for stage, *_ in STUCK.values())
    await scene.led(MAX_ACTIVE_GPUS=str(1 + len(STUCK)), BRINGUP_DEADLINES=held)
    await fleet.submit(*[LONG] * (1 + len(STUCK)))
    for stage, *_ in STUCK.values():
        await fleet.until("select 1 from workers where status = 'spawning' and stage = %s", stage)
    await scene.sql("update workers set state_since = now() - interval '6 minutes' where status = 'spawning'")
    [slow] = await fleet.until("select * from workers where stage = 'tcp'")
    report, one = await asyncio.gather(scene.diagnose(), fleet.script("spawn_gpu.py", "status", slow["id"]))
    for stage, cause, fix in STUCK.values():
        head, detail, said = advice(report, f"1 worker(s) stuck in spawning, stage {stage}: ")
        assert cause in head
        assert fix in said
        assert "terminate, respawn" in detail
    assert one.lines_with("spawning for 6m")
    assert one.lines_with("accepted the TCP connection and sent no banner")
    assert one.lines_with("TCP_TIMEOUT: terminate, respawn")
    assert (await fleet.script("shutdown_all_workers.py", "--force")).code == 0


async def test_ssh_authentication(scene: Scene) -> None:
    """The pods refuse the key: whose half is wrong, and how to set it; once it works again it is not urgent."""
    fleet = scene.fleet
    await scene.fault("ssh_auth_refused", times=1)
    await scene.led()
    await fleet.submit(LONG)
    await fleet.until("select 1 from workers where failure_code = 'AUTH_FAILED'")
    ran = await scene.diagnose()
    head, detail, fix = advice(ran, "SSH authentication fails")
    assert head.endswith("The pod refuses our key: it was given the public half of another.")
    assert "1 attempt(s) within a day" in detail
    assert fix == 'fix: set RUNPOD_SSH_PUBLIC_KEY="$(ssh-keygen -y -f ~/.ssh/id_ed25519)"'
    await fleet.until("select 1 from tasks where status = 'In Progress'")
    later = await scene.diagnose()
    head, detail, fix = advice(later, "SSH authentication failed within a day, and works again")
    assert "[LOW]" in head
    assert "a later one succeeded" in detail
    assert (ran.code, later.code) == (1, 0), later.out


async def test_a_backlog(scene: Scene) -> None:
    """What limits the fleet, when the queue would be done, and which variable to raise."""
    await scene.led()
    await scene.fleet.submit(*[LONG] * 4)
    await scene.fleet.until("select 1 from tasks where status = 'In Progress'")
    await scene.fleet.until("select 1 from decisions where blocked::text like '%MAX_ACTIVE_GPUS%'")
    ran = await scene.diagnose()
    head, detail, fix = advice(ran, "Backlog in pool default: 3 tasks wait")
    assert "[MEDIUM] Scaling" in head
    assert "limited by: " in detail
    assert "MAX_ACTIVE_GPUS=1" in detail
    assert "ETA " in detail
    assert fix == "fix: raise MAX_ACTIVE_GPUS"


async def test_a_stitch_that_fails(scene: Scene) -> None:
    """The handler's own words, and that the segments come by depends_on."""
    await scene.led()
    [task] = await scene.fleet.submit(STITCH)
    await scene.fleet.until("select 1 from tasks where id = %s and status = 'Failed'", task)
    head, detail, fix = advice(await scene.diagnose(), "travel_stitch")
    assert head.endswith("[HIGH] Tasks: 1 travel_stitch task(s) failed: ValueError: No valid segment videos found")
    assert "HANDLER_ERROR" in detail
    assert "Submit stitch tasks with depends_on" in fix
    assert f"explain {task}" in fix


async def test_tasks_that_are_not_processed(scene: Scene) -> None:
    """No process; no database; no claims; every task blocked: told apart, each with its own fix."""
    fleet = scene.fleet
    await scene.unled()
    [task] = await fleet.submit({"task_type": "work", "params": {}, "run_after_s": 3600})
    await fleet.submit({"task_type": "work", "params": {}, "depends_on": [task]})
    await scene.sql("revoke execute on function worker_claim from service_role")
    stopped, away = await asyncio.gather(scene.diagnose(), scene.diagnose(SUPABASE_URL="http://127.0.0.1:9"))
    await scene.sql("grant execute on function worker_claim to service_role")
    head, detail, fix = advice(stopped, "not running")
    assert head.endswith("[HIGH] Orchestrator: The orchestrator process is not running")
    assert detail == "2 queued task(s), 1 live worker(s) and nobody who leads"
    assert fix == "fix: Start it: python -m orchestrator run (on Railway: restart the service)"
    head, detail, fix = advice(stopped, "Tasks cannot be claimed")
    assert "permission denied for function worker_claim" in detail
    assert fix == "fix: python -m orchestrator migrate"
    head, detail, fix = advice(away, "The database is unreachable")
    assert "127.0.0.1:9" in detail
    assert "SUPABASE_URL" in fix
    await scene.led()
    blocked = await scene.diagnose()
    head, detail, fix = advice(blocked, "All 2 queued tasks are blocked")
    assert "1 by dependencies, 1 by scheduled" in detail
    assert "in 60 minutes" in detail or "in 59 minutes" in detail
    assert fix == "fix: python -m orchestrator tasks list --status Queued, then explain one of them"


async def test_orphan_pods(scene: Scene) -> None:
    """Pods that cost money and that no worker names."""
    await scene.unled()
    stray = await scene.fleet.stray_pod()
    ran = await scene.fleet.script("sync_runpod_database.py")
    assert ran.code == 1
    assert ran.out.startswith("Pods without rows: 1, $0.69/h")
    assert ran.lines_with(stray)
    assert ran.err.splitlines() == ["fix: python -m orchestrator sync terminate_orphaned"]
    head, detail, fix = advice(await scene.diagnose(), "orphaned pod(s)")
    assert head.endswith("[HIGH] RunPod: 1 orphaned pod(s) cost $0.69/h and no worker names them")
    assert detail == stray
    assert fix == "fix: python -m orchestrator sync terminate_orphaned"
    await scene.fleet.stack.control("POST", f"pods/{stray}/kill", {"how": "vanish"})


async def test_cost_anomalies(scene: Scene) -> None:
    """A day that is dearer than usual, and a worker that was paid for nothing."""
    await scene.unled()
    worker = await scene.fleet.active()
    booked = """insert into costs (worker_id, fleet, kind, from_at, to_at, usd) select %s, %s, 'idle', at, at, usd
                from (values (now() - interval '3 days', 1.5), (now() - interval '1 hour', 6)) as past (at, usd)"""
    await scene.sql(booked, worker["id"], worker["fleet"])
    ran = await scene.diagnose()
    await scene.sql("delete from costs where from_at = to_at and worker_id = %s", worker["id"])
    head, _, fix = advice(ran, "in the last 24 hours")
    assert "[MEDIUM] Cost: Cost anomaly: $6." in head
    assert head.endswith("usually $1.50 a day")
    assert fix == "fix: python -m orchestrator cost --since 24h --by worker"
    head, _, fix = advice(ran, f"Cost anomaly: worker {worker['id']}")
    assert head.endswith(" of it")
    assert fix == f"fix: python -m orchestrator explain {worker['id']}"


async def test_stale_rows(scene: Scene) -> None:
    """Workers whose pods are gone, while nobody leads to see it."""
    fleet = scene.fleet
    worker = await fleet.active()
    await scene.unled()
    await fleet.stack.control("POST", f"pods/{worker['pod_id']}/kill", {"how": "vanish"})
    await scene.sql("update workers set created_at = created_at - interval '2 minutes' where id = %s", worker["id"])
    ran = await fleet.script("sync_runpod_database.py")
    assert ran.code == 1
    assert ran.out.startswith("Rows without pods: 1")
    assert ran.lines_with(worker["id"])[0].split() == [worker["id"], worker["status"], worker["pod_id"], "not", "listed"]
    assert ran.err.splitlines() == ["fix: python -m orchestrator sync update_database"]
    head, detail, fix = advice(await scene.diagnose(), "stale worker row(s)")
    assert head.endswith("[HIGH] Database: 1 stale worker row(s): their pods are gone")
    assert detail == f"{worker['id']} (not listed)"
    assert fix == "fix: python -m orchestrator sync update_database"
