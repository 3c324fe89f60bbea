"""clients/typescript in Node: its own tests, and a program against the running service."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from testbed.services import debian
from tests.process.web.api_rig import ApiRig
from tests.process.web.builders import done

CLIENT = Path(__file__).resolve().parents[3] / "clients" / "typescript"
GENERATED = ("schema.d.ts", "index.d.ts", "errors.d.ts", "events.d.ts")
TIMEOUT_S = 60


async def node(*arguments: str, **environment: str) -> tuple[int, str]:
    """Node's exit status and output."""
    program = debian.find("node", "nodejs")
    assert program is not None
    process = await asyncio.create_subprocess_exec(
        *(str(program.path), *arguments),
        cwd=CLIENT,
        env={**os.environ, **program.environment, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(TIMEOUT_S):
        out, _ = await process.communicate()
    return await process.wait(), out.decode()


@pytest.mark.needs_program("node", "nodejs")
async def test_lost_answers_busy_services_and_broken_streams() -> None:
    """The tests that the client has for itself."""
    status, out = await node("--test", "test/client.test.js")
    assert status == 0, out


@pytest.mark.needs_program("node", "nodejs")
async def test_a_program_in_node_from_a_submission_to_the_output(rig: ApiRig) -> None:
    """Against the running service, with a worker that runs the task."""
    worker, token = await rig.worker(), await rig.token("submit", "read", pools=[rig.pool])
    environment = {"SERVICE_URL": rig.url, "SERVICE_TOKEN": token, "POOL": rig.pool}
    running = asyncio.create_task(node("--test", "test/service.test.js", **environment))
    number = 1
    tasks: list[Any] = []
    while not tasks and not running.done():
        tasks = (await worker.claim(number, wait_s=0.2))["tasks"]
        number += 1
    for task in tasks:
        key = f"outputs/{task['id']}/1/film.mp4"
        await rig.blobs.put(key, b"a film", content_type="video/mp4")
        await worker.call("worker_complete", **done(task["id"], rig.blobs.location(key)))
    status, out = await running
    assert status == 0, out


@pytest.mark.full
@pytest.mark.needs_program("openapi-typescript", "npm", "fix: .ci/typescript")
def test_the_types_are_those_of_the_document(tmp_path: Path) -> None:
    """Generated again, they are the same; a program with wrong types is refused."""
    copy = tmp_path / "clients" / "typescript"
    shutil.copytree(CLIENT, copy, symlinks=True)
    shutil.copy(CLIENT.parent / "openapi.json", copy.parent)
    for path in GENERATED:
        (copy / "src" / path).unlink()
    for script in ("generate", "check"):
        ran = subprocess.run(("npm", "run", script), cwd=copy, capture_output=True, text=True, check=False, timeout=120)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    for path in GENERATED:
        assert (copy / "src" / path).read_text() == (CLIENT / "src" / path).read_text(), path
