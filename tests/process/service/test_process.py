"""The service as a process: what it says of itself, and its end: soon, whatever hangs, and nothing is lost with it."""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median_high as median
from typing import Any

import httpx
import psutil
import pytest

from demo.scenario import submit
from orchestrator import __version__
from orchestrator.migrate import sql_files
from testbed.services.processes import Child
from testbed.shared_services import SharedServices
from testbed.stack import Stack
from tests.process.cli import forked
from tests.proofs import shutdown

LIMIT_S = 12.0  # a busy machine's 3 s; a call that hangs would take 15 s or more
CALL_S = 30.0
HANGING = "select 1 from worker_attempts where outcome is null limit 1"
HELD = "select 1 from fleet_lease where expires_at > now()"
TAKEN = "select fleet_lead('demo', 'gone', 600)"
FREED = "update fleet_lease set expires_at = now()"  # as of an orchestrator that was cut short before
LED = "select 1 from fleet_lease where holder <> 'gone'"
ASKED = """select query_start from pg_stat_activity where query like '%"fleet_lead"%' and pid <> pg_backend_pid()"""
ASKS = 8
WITH_AGENTS = "select 1 from workers where status in ('active', 'idle') limit 1"

TOKEN = "0123456789abcdef-of-the-metrics"
NUMBERS = (  # after one task on a fleet of two workers
    'orchestrator_role{role="leader"} 1.0',
    'orchestrator_provider_calls_total{operation="create",status="200"} 2.0',
    'orchestrator_stage_seconds_count{outcome="ok",stage="heartbeat"} 2.0',
    'orchestrator_gateway_calls_total{function="worker_complete",status="200"} 1.0',
    "orchestrator_task_claims_total 1.0",
    "orchestrator_task_completions_total 1.0",
)


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Light pods that stay; each test starts and ends an orchestrator of its own."""
    directory = tmp_path_factory.mktemp("signals") / "stack"
    async with Stack(directory, boot_s=(0.5, 1), light=True, start=forked.start) as it:
        it.environment |= {"MIN_ACTIVE_GPUS": "2", "MAX_ACTIVE_GPUS": "4", "TASKS_PER_GPU_THRESHOLD": "1"}
        await it.migrate()
        yield it


@contextlib.contextmanager
def frozen(*pids: int | None) -> Iterator[None]:
    """Stop processes and what they started in their tracks: connections stay, and nobody answers."""
    all_of_them = [
        p for pid in pids if pid for p in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))
    ]
    for process in all_of_them:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in all_of_them:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


async def ended(child: Child) -> tuple[int, float]:
    """The exit status after SIGTERM, and how long it took."""
    began_s = time.monotonic()
    child.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        status = await child.process.wait()
    return status, time.monotonic() - began_s


async def until(stack: Stack, query: str) -> None:
    async with await stack.connect() as sql, asyncio.timeout(60):
        while not await (await sql.execute(query)).fetchone():
            await asyncio.sleep(0.05)


async def test_it_ends_again_and_again_under_load_and_loses_nothing(shared: SharedServices, tmp_path: Path) -> None:
    """SIGTERM and SIGKILL at random moments, the start included: no task lost or doubled, no pod leaked."""
    servers = await shared.servers("shutdown")
    summary = await shutdown.run(tmp_path / "stack", terms=2, kills=2, seed=7, servers=servers, limit_s=LIMIT_S)
    assert summary["ok"], json.dumps(summary, indent=1)


async def test_it_says_what_it_is_and_what_it_did(stack: Stack) -> None:
    """Version, schema, dependencies and the fleet's numbers to callers with the token; to others only the status."""
    odd = {"DAILY_BUDGET": "3"}  # a variable that nothing reads
    child = await stack.start_orchestrator({"METRICS_TOKEN": TOKEN, "RAILWAY_GIT_COMMIT_SHA": "c0ffee", **odd})
    said = (stack.directory / "orchestrator.log").read_text()
    assert "setting_unread" in said
    assert "rename it DAILY_BUDGET_USD" in said
    await submit(stack, [{"task_type": "travel_segment", "params": {"seconds": 0.1}}])
    await until(stack, "select 1 from tasks where status = 'Complete'")
    await until(stack, "select 1 from log_objects where shipped_at is not null")
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, timeout=CALL_S) as client:
        assert (await client.get("/healthz")).json() == {"status": "ok"}  # to an outsider
        health = (await client.get("/healthz", headers={"Authorization": f"Bearer {TOKEN}"})).json()
        assert (health["role"], health["commit"], health["version"]) == ("leader", "c0ffee", __version__)
        assert health["schema"] == str(sql_files().version)
        assert health["depends_on"] == {"database": "up", "provider": "up", "s3": "up"}
        assert (await client.get("/metrics")).status_code == 401
        missing: Sequence[str] = NUMBERS
        deadline_s = time.monotonic() + 60
        while missing:  # the second worker comes up, and what tasks went through is counted every few seconds
            assert time.monotonic() < deadline_s, missing
            said = (await client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})).text
            missing = [line for line in NUMBERS if line not in said]
            await asyncio.sleep(0.2)
    assert "gpu-2" not in said
    assert (await ended(child))[0] == 0


@pytest.mark.parametrize("with_the_database", [False, True], ids=["the_rest_hangs", "everything_hangs"])
async def test_it_ends_in_time_whatever_hangs(stack: Stack, *, with_the_database: bool) -> None:
    """Provider and SSH, S3, and the database stand still, bring-ups and long polls are open: soon, exit status 0."""
    child = await stack.start_orchestrator()
    await until(stack, WITH_AGENTS)
    await stack.control("POST", "settings", {"boot_s": [600, 600]})
    await submit(stack, [{"task_type": "travel_segment", "params": {"seconds": 60}}] * 4)
    await until(stack, HANGING)
    with frozen(stack.emulator.pid, stack.s3.pid, stack.postgres.pid if with_the_database else None):
        status, took_s = await ended(child)
    assert (status, took_s < LIMIT_S) == (0, True), f"{status} after {took_s:.1f} s{child.output_tail()}"
    if not with_the_database and "lease_kept" not in child.output_tail():  # its last second was too short for it
        async with await stack.connect() as sql:
            assert not await (await sql.execute(HELD)).fetchone(), "the lease was kept"


async def test_a_second_signal_ends_it_at_once(stack: Stack) -> None:
    """Somebody is impatient: no further waiting, and the status says that it was cut short."""
    child = await stack.start_orchestrator()
    with frozen(stack.postgres.pid):
        async with asyncio.timeout(30):
            while child.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(signal.SIGTERM)
                    child.process.send_signal(signal.SIGINT)
                await asyncio.sleep(0.02)  # one signal alone takes a second here
    signals = (signal.SIGTERM, signal.SIGINT)
    assert child.process.returncode in {128 + one for one in signals} | {
        -one for one in signals
    }  # -: no handler any more


async def test_a_standby_leads_as_soon_as_the_lease_is_over(stack: Stack) -> None:
    """It asks every second: a leader that is gone without a word is missed for its lease, and no round of 5 s more."""
    asked_at: set[datetime] = set()
    async with await stack.connect() as sql:
        await sql.execute(FREED)
        await sql.execute(TAKEN)
        child = await stack.start_orchestrator()
        async with asyncio.timeout(120):
            while len(asked_at) < ASKS:
                asked_at |= {row["query_start"] for row in await (await sql.execute(ASKED)).fetchall()}
                await asyncio.sleep(0.05)
        await sql.execute(FREED)
        await until(stack, LED)
    # The median: a busy machine delays some of them, and the first ones may come together.
    assert median(later - sooner for sooner, later in pairwise(sorted(asked_at))) < timedelta(seconds=3)
    assert (await ended(child))[0] == 0


async def test_it_can_be_ended_before_it_is_up(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's first process ignores what it has no handler for: there is one from the first line on."""
    monkeypatch.setattr(stack, "_start", Child.start)  # no fork: it is about the start
    child = await stack.begin_orchestrator()
    status_of = psutil.Process(child.pid)
    async with asyncio.timeout(60):
        while not _catches(status_of.pid, signal.SIGTERM):
            await asyncio.sleep(0.005)
    status, took_s = await ended(child)
    assert status == 0
    assert took_s < LIMIT_S


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, as the kernel sees it."""
    if not Path("/proc/self/status").exists():
        return True
    lines: dict[str, Any] = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(lines["SigCgt"].strip(), 16) >> (number - 1) & 1)
