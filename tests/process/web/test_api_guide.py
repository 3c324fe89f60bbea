"""docs/api.md: each command is run against the service, and each fact that it names is one."""

import asyncio
import json
import os
import re
import uuid
from pathlib import Path

import pytest

from orchestrator.core.api_tokens import TokenScope
from orchestrator.web.api.routes import OPERATIONS
from orchestrator.web.api.waiting import MAX_WAITS_PER_TOKEN
from orchestrator.web.token_buckets import API_REQUESTS
from tests.process.web.api_rig import ApiRig
from tests.process.web.builders import done

DOC = (Path(__file__).resolve().parents[3] / "docs" / "api.md").read_text()
WORDS = " ".join(DOC.split())  # independent of line breaks
COMMANDS = re.findall(r"```sh\n(.*?)```", DOC, re.DOTALL)
TIMEOUT_S = 30.0


@pytest.mark.needs_program("curl", "curl")
async def test_every_command_does_what_the_page_says(rig: ApiRig, tmp_path: Path) -> None:
    """With a token of a tenant, as the page has created it. The first answer is the one that is shown."""
    token = await rig.token("submit", "read", name="webapp", tenant="acme")
    worker, task, finished = await rig.worker(), await rig.submit(token), await rig.submit(token, priority=1)
    (claimed,) = (await worker.claim())["tasks"]
    assert claimed["id"] == finished
    key = f"outputs/{finished}/1/video.mp4"
    await rig.blobs.put(key, b"a video", content_type="video/mp4")
    reply = await worker.call("worker_complete", **done(finished, rig.blobs.location(key)))
    assert reply.json()["outcome"] == "ok", reply.text
    given = {"API": f"{rig.url}/api/v1", "TOKEN": token, "TASK": task, "DONE": finished, "PATH": os.environ["PATH"]}
    said = []
    for command in COMMANDS:
        shell = await asyncio.create_subprocess_exec(
            "sh", "-eu", "-c", command, env=given, cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(TIMEOUT_S):
            out, err = await shell.communicate()
        assert shell.returncode == 0, f"{command}\n{out.decode()}\n{err.decode()}"
        said.append(out.decode())
    assert json.loads(said[0])["created"] is True
    uuid.UUID(json.loads(said[0])["id"])
    assert (tmp_path / "video.mp4").read_bytes() == b"a video"
    assert json.loads(said[4].partition("\n")[2] or said[4])["bytes"] == 7


async def test_the_program_does_what_the_page_says(
    rig: ApiRig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its address and token from the environment."""
    (program,) = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
    monkeypatch.setenv("GPU_ORCHESTRATOR_URL", rig.url)
    monkeypatch.setenv("GPU_ORCHESTRATOR_TOKEN", await rig.token("submit", "read", tenant="acme"))
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.to_thread(exec, program, {})
    assert capsys.readouterr().out == "Queued Cancelled\n"


async def test_the_refusal_that_it_shows_is_the_one_that_comes(rig: ApiRig) -> None:
    """Word for word."""
    (shown,) = re.findall(r"```json\n(.*?)```", DOC, re.DOTALL)
    assert (await rig.call("GET", f"/tasks/{uuid.uuid4()}")).json() == json.loads(shown)


def test_what_it_names_is_there() -> None:
    """Scopes, addresses and limits."""
    assert set(re.findall(r"`--scope (\w+)`", DOC)) == set(TokenScope)
    named = set(re.findall(r"`(GET|POST|DELETE) (/[\w/{}-]+)", DOC))
    known = {(one.method, re.sub(r"{\w+}", "{id}", one.path)) for one in OPERATIONS}
    assert named <= known | {("GET", "/api/v1/tasks")}
    assert f"{MAX_WAITS_PER_TOKEN} waiting calls" in WORDS
    assert f"{API_REQUESTS.per_s} requests per second, and {API_REQUESTS.burst} at once" in WORDS
