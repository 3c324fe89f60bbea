"""The wheel: what it contains, and that it is all that an operator needs."""

import asyncio
import subprocess
import zipfile
from pathlib import Path

import orchestrator
from demo.scenario import submit
from testbed.services.processes import Child
from testbed.stack import Stack
from tests.process.packaging.conftest import PIP, ROOT, STEP_TIMEOUT_S, Installation

PACKAGES = ("orchestrator", "worker", "gpu_orchestrator")
DONE_TIMEOUT_S = 120.0
POLL_S = 0.1
DONE = "select status from tasks where status in ('Complete', 'Failed')"


def test_the_wheel_contains_the_product_and_nothing_else(wheel: Path) -> None:
    """All modules, the types' marker, the SQL as data of the package; neither testbed nor demo nor tests."""
    tracked = subprocess.run(
        ("git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES, "migrations"),
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    present = {name for name in tracked if (ROOT / name).exists()}
    expected = {f"orchestrator/{name}" if name.startswith("migrations/") else name for name in present}
    assert {f"{package}/py.typed" for package in PACKAGES} <= expected
    with zipfile.ZipFile(wheel) as archive:
        contents = {name for name in archive.namelist() if ".dist-info/" not in name}
        information = {name.partition("/")[2] for name in archive.namelist() if ".dist-info/" in name}
    assert contents == expected
    assert {"METADATA", "entry_points.txt", "licenses/LICENSE"} <= information


def test_the_version_has_one_source(wheel: Path, installation: Installation) -> None:
    """The file's name, the metadata and the command agree with the package."""
    assert wheel.name == f"gpu_orchestrator-{orchestrator.__version__}-py3-none-any.whl"
    metadata = "import importlib.metadata as m; print(m.version('gpu-orchestrator'))"
    assert installation.run(installation.python, "-c", metadata).strip() == orchestrator.__version__
    assert installation.run(installation.program, "--version").strip() == orchestrator.__version__


def test_the_locked_requirements_are_all_that_the_wheel_asks_for(installation: Installation) -> None:
    """No requirement is missing, and no package comes from the checkout."""
    subprocess.run((*PIP, "--python", installation.python, "check"), check=True, timeout=STEP_TIMEOUT_S)
    where = "import orchestrator, worker; print(orchestrator.__file__, worker.__file__)"
    for path in installation.run(installation.python, "-c", where).split():
        assert Path(path).is_relative_to(installation.directory)
    for absent in ("testbed", "demo", "tests", "pytest"):
        look = f"import importlib.util; print(importlib.util.find_spec({absent!r}))"
        assert installation.run(installation.python, "-c", look).strip() == "None"


def test_operators_snippets_run_under_the_other_name(installation: Installation) -> None:
    """`gpu_orchestrator` is an alias of the modules that the snippets import."""
    snippet = (
        "from gpu_orchestrator.database import DatabaseClient\n"
        "from gpu_orchestrator.runpod_client import get_pod_ssh_details\n"
        "print(DatabaseClient.__module__, get_pod_ssh_details.__module__)"
    )
    said = installation.run(installation.python, "-c", snippet)
    assert said.split() == ["orchestrator.database", "orchestrator.runpod_client"]


async def test_an_installation_migrates_and_runs_a_task(installation: Installation, tmp_path: Path) -> None:
    """Real servers, a real pod's process with the agent from the wheel; the checkout is not on any path."""
    async with Stack(tmp_path / "stack", boot_s=(0.2, 0.5)) as stack:
        stack.environment |= {"WORKER_CODE_DIR": "", "WORKER_HANDLERS": "hello=cmd:echo hello", "MAX_ACTIVE_GPUS": "1"}
        environment = {name: value for name, value in stack.environment.items() if name not in {"PATH", "PYTHONPATH"}}
        await asyncio.to_thread(installation.run, installation.program, "migrate", **environment)
        child = await Child.start(
            "orchestrator",
            ["/usr/bin/env", "-C", str(tmp_path), str(installation.program), "run"],
            environment={"PATH": stack.environment["PATH"], **environment},
            log=tmp_path / "orchestrator.log",
        )
        try:
            await stack.until_ready(child)
            await submit(stack, [{"task_type": "hello", "params": {}}])
            async with await stack.connect() as sql, asyncio.timeout(DONE_TIMEOUT_S):
                while not (row := await (await sql.execute(DONE)).fetchone()):
                    await asyncio.sleep(POLL_S)
        finally:
            await child.stop()
        assert row == {"status": "Complete"}, (tmp_path / "orchestrator.log").read_text()[-4000:]
