"""Twenty workers, five of whose pods accept a connection and say nothing: the report is there, and says so of those."""

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.cli.output import Output
from orchestrator.cli.report_builder import gathered
from orchestrator.core.states import State
from orchestrator.diagnostics.collect import ReportLimits
from testbed.runpod.in_process_pod import LightSshd
from testbed.runpod.sshd import Mode
from testbed.stack import Stack
from tests.process.cli.builders import Fleet as Rows
from tests.process.guide.conftest import Fleet, fleet_of

HANGING, ALL = 5, 20
WHOLE_S = 25  # in which a busy machine asks those that answer
GPU = {"RUNPOD_GPU_NAME": "NVIDIA GeForce RTX 4090", "RUNPOD_GPU_COUNT": "1", "RUNPOD_POD_ID": "pod"}


@pytest.fixture
async def twenty(stack: Stack, tmp_path: Path) -> AsyncIterator[tuple[Fleet, Mapping[str, LightSshd]]]:
    """A fleet of twenty active workers, and the SSH server of each; the first five hang."""
    pods: dict[str, LightSshd] = {}
    async with fleet_of(stack) as fleet:
        db, fleet_id = await PostgresDb.open(stack.database_url), fleet.environment["FLEET_ID"]
        store = SqlStore(db, fleet_id)
        rows = Rows(store, db, None, (await store.lead("the test", 3_600)).term)
        for number in range(ALL):
            name = await rows.worker(upto=State.ACTIVE, worker_id=f"{fleet_id}-{number:02}")
            home = tmp_path / name
            (home / ".ssh").mkdir(parents=True)
            (home / ".ssh" / "authorized_keys").write_text(fleet.environment["RUNPOD_SSH_PUBLIC_KEY"] + "\n")
            pods[name] = LightSshd(home, lambda: GPU)
            await pods[name].open(Mode.SILENT if number < HANGING else Mode.NORMAL)
            address = "update workers set ssh_host = '127.0.0.1', ssh_port = %s where id = %s"
            await fleet.sql.execute(address, (pods[name].port, name))
        yield fleet, pods
        for pod in pods.values():
            pod.close()
        await db.close()


async def test_twenty_workers_of_which_five_hang(twenty: tuple[Fleet, Mapping[str, LightSshd]]) -> None:
    """All side by side: who hangs is named with its address, and costs the others nothing."""
    fleet, pods = twenty
    ran = await fleet.script("comprehensive_diagnostics.py", "--json")
    report = ran.json()
    seen = {name: one["ssh_analysis"]["connection_status"] for name, one in report["workers"].items()}
    assert seen.keys() == pods.keys()
    for number, (name, pod) in enumerate(sorted(pods.items())):
        silent = f"❌ Unavailable: no SSH session with 127.0.0.1:{pod.port} within 5 s"
        assert seen[name] == (silent if number < HANGING else "✅ Connected")
    [advice] = [one for one in report["recommendations"] if one["category"] == "SSH"]
    assert advice["issue"] == "5 workers work, but cannot be reached over SSH: the logs wait on the pods"
    assert ran.err.splitlines() == ["asking every part of the fleet, for at most 27 s"]


async def test_nothing_that_hangs_holds_the_report(
    twenty: tuple[Fleet, Mapping[str, LightSshd]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deadline is the product's own: with a day's patience for each pod it is there; a terminal shows it."""
    fleet, pods = twenty
    for name, value in fleet.environment.items():
        monkeypatch.setenv(name, value)
    day_s = 86_400.0
    output, shown = Output(), io.StringIO()
    output.err = Console(file=shown, force_terminal=True, width=120)
    report = await gathered(output, limits=ReportLimits(whole_s=WHOLE_S, part_s=WHOLE_S, connect_s=day_s, pod_s=day_s))
    hung = sorted(pods)[:HANGING]
    for name in hung:
        assert report["workers"][name]["error"].startswith("no answer within ")
    [unseen] = [one for one in report["recommendations"] if one["kind"] == "workers_unknown"]
    assert all(name in unseen["detail"] for name in hung)
    assert f"of at most {WHOLE_S} s" in shown.getvalue()
    assert f"{ALL + 4 - HANGING}/{ALL + 4}" in shown.getvalue()  # database, RunPod, network, code; then who hangs


async def test_a_thread_that_hangs_does_not_hold_the_end() -> None:
    """S3 and name servers are waited for in threads: the answer is out, and the exit code is its own."""
    program = (
        "import sys, threading, time; from orchestrator.cli.progress import leave\n"
        "from orchestrator.cli.output import Output; output = Output(); output.owns_process = True\n"
        "threading.Thread(target=time.sleep, args=(3600,)).start(); print('the report'); sys.exit(leave(output, 1))"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    assert (process.returncode, out) == (1, b"the report\n")
