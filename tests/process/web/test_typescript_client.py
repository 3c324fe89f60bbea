"""TypeScript in Node: the client's own tests, a program against the running service, and that of docs/webhooks.md."""

import asyncio
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.webhook_sender import WebhookSender
from orchestrator.adapters.webhook_signatures import receiver_key
from testbed.services import debian
from tests.process.service.test_webhooks import BODY, NEXT_SECRET, PAGE, SECRET, WRONG_HEADERS, Receiver, rules
from tests.process.web.api_rig import ApiRig
from tests.process.web.builders import done

CLIENT = Path(__file__).resolve().parents[3] / "clients" / "typescript"
GENERATED = ("schema.d.ts", "index.d.ts", "errors.d.ts", "events.d.ts")
TIMEOUT_S = 60
SIGNATURE = "(key: string, headers: Headers, body: string): Promise<boolean>"
RECEIVING = """
import { readFileSync } from "node:fs";
import { webcrypto } from "node:crypto";
globalThis.crypto ??= webcrypto; // the page asks for Node 20, which has it
const told = [];
for (const [key, headers, body] of JSON.parse(readFileSync(process.argv[2], "utf8"))) {
  told.push(await verify(key, new Headers(headers), body));
}
console.log(JSON.stringify(told));
"""


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


@pytest.mark.needs_program("node", "nodejs")
async def test_the_page_about_webhooks_verifies_what_is_sent(tmp_path: Path) -> None:
    """With the receiver's key, also during a rotation; other keys, bodies and headers are refused without an error."""
    (program,) = re.findall(r"```typescript\n(.*?)```", PAGE.read_text(), re.DOTALL)
    async with Receiver().open() as receiver:
        await WebhookSender(rules(secrets=(NEXT_SECRET, SECRET))).send("m-1", receiver.url, BODY)
        ((head, content),) = receiver.got
    key, body = receiver_key(SECRET, receiver.url), content.decode()
    sent = {name: value for name, value in head.items() if name.startswith("webhook-")}
    cases = [(key, sent, body), (receiver_key(NEXT_SECRET, receiver.url), sent, body)]
    others = [(receiver_key(SECRET, "https://another.example/"), sent, body), (key, sent, f"{body} "), (key, {}, body)]
    others += [(key, {**sent, name: value}, body) for name, value in WRONG_HEADERS]
    (tmp_path / "cases.json").write_text(json.dumps(cases + others))
    assert SIGNATURE in program
    (tmp_path / "verify.mjs").write_text(program.replace(SIGNATURE, "(key, headers, body)") + RECEIVING)
    status, out = await node(str(tmp_path / "verify.mjs"), str(tmp_path / "cases.json"))
    assert status == 0, out
    assert json.loads(out) == [True] * len(cases) + [False] * len(others)


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
