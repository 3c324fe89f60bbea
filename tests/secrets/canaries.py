"""Twelve secrets given to a running stack, and everything that it leaves behind searched for them.

Nothing here uses the product's own redaction: what a leak looks like is written down a second time.
"""

import asyncio
import base64
import contextlib
import gzip
import json
import secrets
import sys
import urllib.parse
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from orchestrator.demo.stack import BUCKET
from orchestrator.demo.trials.scene import Scene

LOOK_EVERY_S = 0.3
USERS_STREAMS = ("/handler/", "/system/")  # of the log objects: what the user's own programs say
TOKEN, SETUP, KEY = "a worker's token", "a password in WORKER_SETUP_COMMAND", "RUNPOD_SSH_PRIVATE_KEY"
ASKED = ("list --all --json", "tasks list", "explain scaling", "doctor")
TABLES = "select tablename as name from pg_tables where schemaname = 'public'"


@dataclass
class Canaries:
    """Who was looked for, and where one was found."""

    known: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # name -> values
    hits: set[tuple[str, str]] = field(default_factory=set)  # (name, sink)
    searched: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # sink -> characters

    def search(self, sink: str, text: str, *, but: Iterable[str] = ()) -> None:
        """Look for every secret, raw, in both alphabets of base64 and URL-encoded."""
        self.searched[sink] += len(text)
        for name, values in self.known.items():
            if name not in but and any(form in text for value in values for form in forms(value)):
                self.hits.add((name, sink))


def forms(value: str) -> Iterable[str]:
    """A value as a leak would show it."""
    yield value
    yield urllib.parse.quote(value, safe="")
    yield json.dumps(value)[1:-1]
    for before in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(b"\0" * before + value.encode()).decode().rstrip("=")
            yield text[4 if before else 0 : -2]


@contextlib.asynccontextmanager
async def released(scene: Scene, canaries: Canaries) -> AsyncIterator[Canaries]:
    """Give the stack its secrets; watch what passes by; at the end search what stayed."""
    give(scene, canaries)
    watching = asyncio.create_task(_watch(scene, canaries))
    try:
        yield canaries
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    await _ask(scene, canaries)
    await search_what_stayed(scene, canaries)


def give(scene: Scene, canaries: Canaries) -> None:
    """The secrets that the stack has anyway, and others beside them."""
    env, mark = scene.stack.environment, secrets.token_hex(4)
    made = {
        name: f"canary/{name[:6]}+{mark}={secrets.token_hex(12)}"
        for name in ("SUPABASE_SERVICE_ROLE_KEY", "ADMIN_TOKEN", "AWS_SESSION_TOKEN", "RAILWAY_TOKEN", "GITHUB_TOKEN")
    }
    # The store in these tests refuses a session token that it did not give: what the process inherits is enough.
    made["ORIGINAL_AWS_SESSION_TOKEN"] = made.pop("AWS_SESSION_TOKEN")
    password, setup = f"canary-db-{secrets.token_hex(12)}", f"canary-pip-{secrets.token_hex(12)}"
    env |= made
    env["DATABASE_URL"] = env["DATABASE_URL"].replace("://postgres@", f"://postgres:{password}@", 1)
    if "CANARY" in env.get("WORKER_SETUP_COMMAND", ""):
        env["WORKER_SETUP_COMMAND"] = env["WORKER_SETUP_COMMAND"].replace("CANARY", setup)
    values = {**made, "the database's password": password, SETUP: setup}
    values |= {name: env[name] for name in ("RUNPOD_API_KEY", "AWS_SECRET_ACCESS_KEY", "WORKER_JWT_SECRET")}
    canaries.known |= {name: {value} for name, value in values.items()}
    body = env[KEY].split("\n")[2:-2]  # its first line is the same in every key
    canaries.known[KEY] = {line for line in body if len(line) > 20}
    assert password in env["DATABASE_URL"]


async def search_what_stayed(scene: Scene, canaries: Canaries) -> None:
    """Logs of the processes, rows, objects, what agents wrote."""
    canaries.search("the orchestrators' output", _text(scene.stack.directory / "orchestrator.log"))
    for table in await scene.rows(TABLES):
        rows = await scene.rows(f'select to_jsonb(t)::text as row from "{table["name"]}" t')  # noqa: S608  our own names
        canaries.search(f"table {table['name']}", "\n".join(row["row"].replace("\\/", "/") for row in rows))
    for key, content in await asyncio.to_thread(_objects, scene):
        but = [SETUP, TOKEN] if any(stream in key for stream in USERS_STREAMS) else []
        canaries.search("S3", f"{key}\n{content}", but=but)
    for pod in (await scene.stack.control("GET", "ledger"))["pods"]:
        for log in Path(pod["home"]).glob("**/logs/agent.log"):
            canaries.search("agent.log on the pod", _text(log))


def _objects(scene: Scene) -> list[tuple[str, str]]:
    client, found = scene.stack.blobs()._client, []
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{scene.stack.prefix}/"):
        for item in page.get("Contents", []):
            raw = client.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read()
            raw = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
            found.append((item["Key"], raw.decode("utf-8", "replace")))
    return found


async def _watch(scene: Scene, canaries: Canaries) -> None:
    """Command lines of all processes, pods as the provider shows them, and workers' tokens as they are born."""
    env = scene.stack.environment
    headers = {"Authorization": f"Bearer {env['RUNPOD_API_KEY']}"}
    async with httpx.AsyncClient(base_url=env["RUNPOD_API_BASE_URL"], headers=headers, trust_env=False) as client:
        while True:
            canaries.search("argv", await asyncio.to_thread(_command_lines), but=[SETUP])
            with contextlib.suppress(httpx.HTTPError):
                canaries.search(
                    "the pods as RunPod shows them", (await client.get("/v2/pods")).text, but=["RUNPOD_API_KEY"]
                )
            with contextlib.suppress(httpx.HTTPError):
                for pod in (await scene.stack.control("GET", "ledger"))["pods"]:
                    for config in Path(pod["home"]).glob("**/run/*/config.json"):
                        _learn(config, canaries)
            await asyncio.sleep(LOOK_EVERY_S)


def _learn(config: Path, canaries: Canaries) -> None:
    with contextlib.suppress(OSError, ValueError):  # written, or deleted, at this moment
        canaries.known[TOKEN].add(json.loads(config.read_text())["token"])
        assert config.stat().st_mode & 0o077 == 0


def _command_lines() -> str:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    return "\n".join(found)


async def _ask(scene: Scene, canaries: Canaries) -> None:
    """What commands and HTTP answer, to those who may ask and to those who may not."""
    workers = await scene.rows("select id from workers order by created_at limit 1")
    told = [f"{verb} {row['id']}" for row in workers for verb in ("explain", "timeline", "status --json")]
    for ended in await asyncio.gather(*(scene.stack.run(*command.split()) for command in (*ASKED, *told))):
        canaries.search("commands", f"{ended[1]}\n{ended[2]}")
    wrong = {"RUNPOD_API_KEY": "rpa_" + "x" * 20, "AWS_SECRET_ACCESS_KEY": "y" * 40}
    for changes in (wrong, {"DATABASE_URL": scene.stack.environment["DATABASE_URL"].replace("@", "@nowhere.invalid,")}):
        _, out, err = await scene.stack.run("doctor", overrides=changes)
        canaries.search("commands", f"{out}\n{err}")
    token = next(iter(canaries.known.get(TOKEN, {"none"})))
    address = f"http://127.0.0.1:{scene.ports[0]}"
    async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=10) as client:
        for path in ("/", "/healthz", "/readyz", "/metrics", "/rest/v1/rpc/worker_claim", "/rest/v1/workers"):
            for headers in ({}, {"Authorization": "Bearer x.y.z"}, {"Authorization": f"Bearer {token}"}):
                for method in ("GET", "POST"):
                    reply = await client.request(method, path, headers=headers, content=b'{"p_odd": 1}')
                    canaries.search("HTTP", f"{dict(reply.headers)}\n{reply.text}")


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


async def plant(scene: Scene, canaries: Canaries) -> Mapping[str, str]:
    """Leak one secret into each sink, each in another encoding: sink -> whose."""
    name = "GITHUB_TOKEN"
    (value,) = canaries.known[name]
    encoded = base64.b64encode(f"ab{value}cd".encode()).decode()
    with (scene.stack.directory / "orchestrator.log").open("a") as log:
        log.write(json.dumps({"message": urllib.parse.quote(value, safe="")}) + "\n")
    await scene.rows("update tasks set result_data = jsonb_build_object('x', %s::text) returning 1", encoded)
    await scene.stack.blobs().put("logs/planted/agent/0.log.gz", gzip.compress(value.encode()), content_type="x")
    sleeper = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(20)", value)
    try:
        async with asyncio.timeout(10):  # its command line may be empty for a moment after it has begun
            while value not in (lines := await asyncio.to_thread(_command_lines)):
                await asyncio.sleep(0.05)
        canaries.search("argv", lines, but=[SETUP])
    finally:
        sleeper.kill()
        await sleeper.wait()
    return dict.fromkeys(("the orchestrators' output", "table tasks", "S3", "argv"), name)


def report(canaries: Canaries) -> dict[str, Any]:
    """For a failure's message."""
    return {"hits": sorted(canaries.hits), "searched": dict(canaries.searched), "known": sorted(canaries.known)}
