"""Twelve secrets given to a running stack; what passes by and what stays is searched for them (canaries.py)."""

import asyncio
import base64
import contextlib
import gzip
import json
import secrets
import sys
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import httpx

from testbed.shared_services import SharedServices
from testbed.tasks import ended
from tests.process.cli.forked import command
from tests.proofs.fault_matrix.environment import Environment
from tests.proofs.fault_matrix.runner import Case, run
from tests.proofs.fault_matrix.secret_scan import (
    CONFIG,
    KEY,
    OUTPUT,
    PASSWORD,
    PODS,
    TOKEN,
    SecretScan,
    of_stack,
    search_what_stayed,
)

LOOK_EVERY_S = 0.3
SECRETS = 12
SETUP = "a password in WORKER_SETUP_COMMAND"
USERS_MAY = (SETUP, TOKEN)  # what the user's own programs know, and may say
ASKED = ("list --all --json", "tasks list", "explain scaling", "doctor")
SINKS = ("argv", "S3", "HTTP", "commands", OUTPUT, PODS)
EXIT_3 = "echo fetching https://user:CANARY@packages.example/simple; env; cat ~/.orchestrator/run/*/config.json; exit 3"


async def setup_failed(fleet_env: Environment) -> None:
    """Wait until a worker ended because its set-up command did."""
    await fleet_env.until("select 1 from workers where failure_code = 'SETUP_FAILED' or exit_cause = 'spawn_failed'")
    fleet_env.mark_fault()
    await fleet_env.rows("update tasks set status = 'Cancelled' where status = 'Queued' returning 1")


SETUP_FAILS = Case(
    "setup_fails", "the set-up command fails and says too much", "", "", setup_failed,
    settings={"WORKER_SETUP_COMMAND": EXIT_3}, tasks=2, keeps_logs=False, limit_s=60,
)  # fmt: skip


def over_supabase(case: Case) -> Case:
    """The same fault in a stack whose orchestrators and pods use the database only over PostgREST."""
    return replace(case, name=f"{case.name}_over_supabase", transport="supabase")


async def searched(case: Case, shared: SharedServices, directory: Path) -> list[str]:
    """Run a case with secrets in it; what leaked, and what was not looked at or would not have been found.

    Output, rows, objects, command lines, pods, commands and HTTP are searched; then one is planted in each sink, to be
    found.
    """
    canaries, planted, leaks = SecretScan(), dict[str, str](), None

    @contextlib.asynccontextmanager
    async def around(fleet_env: Environment) -> AsyncIterator[None]:
        nonlocal leaks
        async with released(fleet_env, canaries):
            yield
        leaks = sorted(canaries.hits)
        planted.update(await plant(fleet_env, canaries))
        await search_what_stayed(fleet_env, canaries, users_may=USERS_MAY)

    result = await run(replace(case, name=f"canary_{case.name}"), shared, directory, around)
    if leaks is None or result.recovered_s is None:
        return ["the fault was not injected", *result.wrong]
    wrong = [f"{name} is in {sink}" for name, sink in leaks]
    wrong += [f"{name} was given to nobody" for name in sorted({KEY, TOKEN, SETUP} - set(canaries.known))]
    wrong += [f"{sink} was empty" for sink in SINKS if not canaries.searched[sink]]
    wrong += [f"planted in {sink} and not found" for sink, name in planted.items() if (name, sink) not in canaries.hits]
    if len(canaries.known) < SECRETS:
        wrong.append(f"only {len(canaries.known)} secrets")
    return wrong


@contextlib.asynccontextmanager
async def released(fleet_env: Environment, canaries: SecretScan) -> AsyncIterator[SecretScan]:
    """Give the stack its secrets; watch what passes by; at the end search what stayed."""
    give(fleet_env, canaries)
    watching = asyncio.create_task(_watch(fleet_env, canaries))
    try:
        yield canaries
    finally:
        await ended(watching)
    await _ask(fleet_env, canaries)
    await search_what_stayed(fleet_env, canaries, users_may=USERS_MAY)


def give(fleet_env: Environment, canaries: SecretScan) -> None:
    """The secrets of the stack, and additional ones.

    Over Supabase's transport the service key is the real one, and there is no password of a database.
    """
    env, mark = fleet_env.stack.environment, secrets.token_hex(4)
    made = {
        name: f"canary/{name[:6]}+{mark}={secrets.token_hex(12)}"
        for name in ("SUPABASE_SERVICE_ROLE_KEY", "METRICS_TOKEN", "AWS_SESSION_TOKEN", "RAILWAY_TOKEN", "GITHUB_TOKEN")
    }
    # The store in these tests refuses a session token that it did not give: what the process inherits is enough.
    made["ORIGINAL_AWS_SESSION_TOKEN"] = made.pop("AWS_SESSION_TOKEN")
    setup = f"canary-pip-{secrets.token_hex(12)}"
    if fleet_env.stack.transport == "supabase":
        made |= {"SUPABASE_SERVICE_ROLE_KEY": env["SUPABASE_SERVICE_ROLE_KEY"], PASSWORD: secrets.token_hex(12)}
    env |= {name: value for name, value in made.items() if name != PASSWORD}
    command = env.get("WORKER_SETUP_COMMAND") or "true https://user:CANARY@packages.example/simple"
    env["WORKER_SETUP_COMMAND"] = command.replace("CANARY", setup)
    canaries.known |= {name: {value} for name, value in {**made, SETUP: setup}.items()}
    canaries.known |= of_stack(fleet_env.stack)


async def _watch(fleet_env: Environment, canaries: SecretScan) -> None:
    """Command lines of all processes, pods as the provider shows them, and workers' tokens as they are born."""
    env = fleet_env.stack.environment
    headers = {"Authorization": f"Bearer {env['RUNPOD_API_KEY']}"}
    async with httpx.AsyncClient(base_url=env["RUNPOD_API_BASE_URL"], headers=headers, trust_env=False) as client:
        while True:
            canaries.search("argv", await asyncio.to_thread(_command_lines), but=[SETUP])
            with contextlib.suppress(httpx.HTTPError):
                canaries.search(
                    "the pods as RunPod shows them", (await client.get("/v2/pods")).text, but=["RUNPOD_API_KEY"]
                )
            with contextlib.suppress(httpx.HTTPError):
                for pod in (await fleet_env.stack.control("GET", "ledger"))["pods"]:
                    for config in Path(pod["home"]).glob(CONFIG):
                        with contextlib.suppress(OSError, ValueError):  # written, or deleted, at this moment
                            canaries.learn(config)
            await asyncio.sleep(LOOK_EVERY_S)


def _command_lines() -> str:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    return "\n".join(found)


async def _ask(fleet_env: Environment, canaries: SecretScan) -> None:
    """What commands and HTTP answer, to those who may ask and to those who may not."""
    workers = await fleet_env.rows("select id from workers order by created_at limit 1")
    told = [f"{verb} {row['id']}" for row in workers for verb in ("explain", "timeline", "status --json")]
    for ran in await asyncio.gather(*(command(fleet_env.stack, *words.split()) for words in (*ASKED, *told))):
        canaries.search("commands", f"{ran[1]}\n{ran[2]}")
    wrong = {"RUNPOD_API_KEY": f"rpa_{secrets.token_hex(10)}", "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20)}
    where = "DATABASE_URL" if fleet_env.stack.transport == "direct" else "SUPABASE_URL"
    elsewhere = fleet_env.stack.environment[where].replace("127.0.0.1", "nowhere.invalid")
    for changes in (wrong, {where: elsewhere}):
        _, out, err = await command(fleet_env.stack, "doctor", overrides=changes)
        canaries.search("commands", f"{out}\n{err}")
    token = next(iter(canaries.known.get(TOKEN, {"none"})))
    address = f"http://127.0.0.1:{fleet_env.ports[0]}"
    async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=10) as client:
        for path in ("/", "/healthz", "/readyz", "/metrics", "/rest/v1/rpc/worker_claim", "/rest/v1/workers"):
            for headers in ({}, {"Authorization": "Bearer x.y.z"}, {"Authorization": f"Bearer {token}"}):
                for method in ("GET", "POST"):
                    reply = await client.request(method, path, headers=headers, content=b'{"p_odd": 1}')
                    canaries.search("HTTP", f"{dict(reply.headers)}\n{reply.text}")


async def plant(fleet_env: Environment, canaries: SecretScan) -> Mapping[str, str]:
    """Leak one secret into each sink, each in another encoding: sink -> whose."""
    name = "GITHUB_TOKEN"
    (value,) = canaries.known[name]
    encoded = base64.b64encode(f"ab{value}cd".encode()).decode()
    with (fleet_env.stack.directory / "orchestrator.log").open("a") as log:
        log.write(json.dumps({"message": urllib.parse.quote(value, safe="")}) + "\n")
    await fleet_env.rows("update tasks set result_data = jsonb_build_object('x', %s::text) returning 1", encoded)
    await fleet_env.stack.blobs().put("logs/planted/agent/0.log.gz", gzip.compress(value.encode()), content_type="x")
    homes = [Path(pod["home"]) for pod in (await fleet_env.stack.control("GET", "ledger"))["pods"]]
    (next(home for home in homes if home.exists()) / "left.txt").write_text(encoded)  # one that never ran has none
    sleeper = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(120)", value)
    try:
        async with asyncio.timeout(60):  # its command line may be empty for a moment after it has begun
            while value not in (lines := await asyncio.to_thread(_command_lines)):
                await asyncio.sleep(0.05)
        canaries.search("argv", lines, but=[SETUP])
    finally:
        sleeper.kill()
        await sleeper.wait()
    return dict.fromkeys((OUTPUT, "table tasks", "S3", PODS, "argv"), name)
