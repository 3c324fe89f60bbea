"""`comprehensive_diagnostics.py` and its kin on a fleet that runs: the whole report, and nothing changed by it."""

import asyncio
import json
import re
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from testbed.services.postgres import installed
from testbed.stack import Stack
from tests.process.guide.conftest import CaseTasks, Fleet, GuideCase, side_by_side

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
DIAGNOSE = str(SCRIPTS / "comprehensive_diagnostics.py")
KEYS = {
    "timestamp", "environment", "database_state", "runpod_state", "workers", "orchestrator_analysis", "network_tests",
    "deployment_verification", "recommendations", "missing_critical",
}  # fmt: skip
PARTS = {
    "environment": {"critical", "important", "aws", "all_runpod", "missing_critical", "missing_important"},
    "database_state": {"total_workers", "workers_by_status", "task_counts", "rpc_function_tests", "recent_workers"},
    "runpod_state": {"total_pods", "pods_by_status", "active_pods", "total_hourly_cost", "ssh_connectivity_tests"},
    "orchestrator_analysis": {"recent_cycles", "error_patterns", "scaling_decisions", "worker_lifecycle_events"},
    "deployment_verification": {"git_status", "railway_status", "code_consistency"},
}
LOOKS = (
    (str(SCRIPTS / "sync_runpod_database.py"), "analyze"),
    (str(SCRIPTS / "shutdown_all_workers.py"), "--status"),
    (str(SCRIPTS / "shutdown_all_workers.py"), "--dry-run"),
    ("-m", "orchestrator", "health"),
    (DIAGNOSE,),
)
PATTERNS = {"orphaned_tasks_reset", "ssh_errors", "auth_failures", "other_errors"}


async def dump(guided: Fleet) -> str:
    """Every row of the database."""
    command = [
        str(installed() / "bin" / "pg_dump"),
        "--data-only",
        "--restrict-key=guide",
        guided.environment["DATABASE_URL"],
    ]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(30):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def the_whole_report(guided: Fleet, tmp_path: Path) -> None:
    """Every key of the guide; saved for its owner alone, without a secret; what changed since the last one."""
    orchestrator = await guided.orchestrator()
    await guided.submit({"task_type": "work", "params": {"seconds": 0.1}})
    worker = await guided.active()
    await guided.until("select 1 from tasks where status = 'Complete'")
    await guided.until("select 1 from log_objects where worker_id = %s and shipped_at is not null", worker["id"])
    await guided.until("select 1 from workers where id = %s and status = 'idle'", worker["id"])
    ran = await guided.script(DIAGNOSE, "--save-report", cwd=tmp_path)
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.startswith("✅ HEALTHY")
    [path] = tmp_path.iterdir()
    assert re.fullmatch(r"diagnostic_report_\d{8}_\d{6}\.json", path.name)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    report = json.loads(path.read_text())
    assert report.keys() >= KEYS
    for name, keys in PARTS.items():
        assert report[name].keys() >= keys, name
    assert report["orchestrator_analysis"]["error_patterns"].keys() == PATTERNS
    assert report["missing_critical"] == []
    assert report["database_state"]["workers_by_status"] == {"idle": 1}
    assert {test["status"] for test in report["database_state"]["rpc_function_tests"].values()} == {"ok"}
    one = report["workers"][worker["id"]]
    assert one["database_record"]["status"] == "idle"
    assert one["ssh_analysis"]["connection_status"] == "✅ Connected"
    assert one["ssh_analysis"]["processes"]["exit_class"] == "running"
    assert one["ssh_analysis"]["worker_script"]["present"] is True
    assert one["log_analysis"]["s3_logs_available"] is True
    assert one["lifecycle_events"]
    pod = report["runpod_state"]["ssh_connectivity_tests"][worker["pod_id"]]
    assert pod == {
        "ssh_details": {"ip": worker["ssh_host"], "port": worker["ssh_port"]},
        "status": "RUNNING",
        "connection": "✅ Connected",
    }
    assert report["runpod_state"]["total_hourly_cost"] > 0
    assert report["network_tests"]["runpod_api"]["accessible"] is True
    assert report["network_tests"]["worker_api"]["status_code"] == 200
    _no_secret_in(path.read_text(), guided, every=True)
    await orchestrator.kill()
    await guided.submit({"task_type": "work", "params": {"seconds": 600}})
    before = await dump(guided)
    for ran in await asyncio.gather(*(guided.script(*look, cwd=tmp_path) for look in LOOKS)):
        assert ran.code in {0, 1}, ran.err
    assert await dump(guided) == before  # row by row, whatever looked
    await guided.sql.execute("update fleet_lease set expires_at = now()")  # it was killed, and would keep it for 15 s
    later = await guided.script(DIAGNOSE, worker["id"], "--since", "last", "--json", cwd=tmp_path)
    assert later.code == 1
    changes = later.json()["changes"]
    assert "The orchestrator process is not running" in changes["new_issues"]
    path.unlink()
    sensitive = await guided.script(DIAGNOSE, "--include-sensitive", "--save-report", cwd=tmp_path)
    _no_secret_in(sensitive.out, guided, every=True)
    [path] = tmp_path.iterdir()
    assert guided.environment["RUNPOD_API_KEY"] in path.read_text()
    _no_secret_in(path.read_text(), guided, every=False)
    assert (await guided.script(DIAGNOSE, "gpu-nobody", cwd=tmp_path)).code == 3


def _no_secret_in(text: str, guided: Fleet, *, every: bool) -> None:
    names = ["RUNPOD_API_KEY", "AWS_SECRET_ACCESS_KEY", "WORKER_JWT_SECRET", "DATABASE_URL"] if every else []
    for name in names:
        assert guided.environment[name] not in text, name
    for line in guided.environment["RUNPOD_SSH_PRIVATE_KEY"].splitlines():
        assert len(line) < 40 or line not in text


async def a_system_that_is_completely_down(guided: Fleet, tmp_path: Path) -> None:
    """The first command says what it is: settings, the database, the process; started again, all is well."""
    await guided.submit({"task_type": "work", "params": {"seconds": 0.1}})
    missing, away, stopped = await asyncio.gather(
        guided.script(DIAGNOSE, "--json", cwd=tmp_path, RUNPOD_SSH_PRIVATE_KEY=None),
        guided.script(DIAGNOSE, cwd=tmp_path, DATABASE_URL="postgresql://nobody@127.0.0.1:9/none"),
        guided.cli("health"),
    )
    assert missing.code == 1
    document = missing.json()
    assert document["missing_critical"] == ["RUNPOD_SSH_PRIVATE_KEY"]
    assert {name: document["recommendations"][0][name] for name in ("priority", "category", "issue", "action")} == {
        "priority": "HIGH",
        "category": "Environment",
        "issue": "Missing critical environment variables",
        "action": "Add missing environment variables to Railway deployment",
    }
    assert away.code == 1
    assert away.out.startswith("❌ UNHEALTHY")
    assert away.lines_with("The database is unreachable")
    assert stopped.code == 1
    assert stopped.lines_with("The orchestrator process is not running")
    await guided.orchestrator()
    well = await guided.cli("health")
    assert well.code == 0, well.out
    assert well.out.startswith("✅ HEALTHY")


async def tasks_that_are_backed_up(guided: Fleet, tmp_path: Path) -> None:
    """The report names the limit; a worker more can be had by hand, and the table of efficiency shows the queue."""
    await guided.orchestrator(MAX_ACTIVE_GPUS="0")
    await guided.submit(*({"task_type": "work", "params": {"seconds": 0.1}} for _ in range(4)))
    ran = await guided.script(DIAGNOSE, "--json", cwd=tmp_path, MAX_ACTIVE_GPUS="0")
    off, backlog = (one for one in ran.json()["recommendations"] if one["category"] == "Scaling")
    assert (off["kind"], off["action"], off["priority"]) == ("pool_off", "raise MAX_ACTIVE_GPUS", "HIGH")
    assert backlog["issue"].startswith("Backlog in pool default: 4 tasks wait")
    assert "MAX_ACTIVE_GPUS=0" in backlog["detail"]
    assert backlog["action"] == "raise MAX_ACTIVE_GPUS"
    shown = await guided.cli("efficiency", "--window", "1h", "--json")
    [window] = shown.json()["windows"]
    assert window["queue_now"] == 4
    table = await guided.cli("efficiency")
    assert [line.split()[0] for line in table.out.splitlines()] == ["window", "1h", "6h", "24h", "7d"]


async def a_key_that_runpod_refuses(guided: Fleet, tmp_path: Path) -> None:
    """The log has the phrase that operators search for, and the report says whose key it is."""
    await guided.submit({"task_type": "work", "params": {"seconds": 0.1}})
    await guided.orchestrator(RUNPOD_API_KEY="rpa_of_somebody_else")
    log = guided.stack.directory / "orchestrator.log"
    began = log.stat().st_size
    deadline = time.monotonic() + 60
    while b"Authentication failed" not in log.read_bytes()[began:]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    ran = await guided.script(DIAGNOSE, cwd=tmp_path, RUNPOD_API_KEY="rpa_of_somebody_else")
    assert ran.code == 1
    assert ran.lines_with("[HIGH] RunPod: Authentication failed: RunPod refuses the API key")


CASES: tuple[GuideCase, ...] = (
    the_whole_report,
    a_system_that_is_completely_down,
    tasks_that_are_backed_up,
    a_key_that_runpod_refuses,
)


@pytest.fixture(scope="module")
async def running(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CaseTasks]:
    """All of them under way."""
    async with side_by_side(stack, CASES, tmp_path_factory.mktemp("reports")) as cases:
        yield cases


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
async def test_a_report_says_what_is(running: CaseTasks, case: str) -> None:
    """The docstring of the case says what holds."""
    await running[case]
