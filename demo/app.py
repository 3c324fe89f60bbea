"""`./run demo --app`: the system with examples/webapp, until Ctrl-C."""

import asyncio
import contextlib
import sys
import time
from pathlib import Path

import click
import httpx

from demo.narrator import Narrator
from testbed.services.free_port import free_port
from testbed.services.processes import Child, ChildFailed
from testbed.stack import ROOT, START_TIMEOUT_S, Stack, Transport

POLL_S = 0.2
HEARTBEATS = {"HEARTBEAT_TIMEOUT_SEC": "15"}  # a heartbeat, and with it the progress, every 5 s
PATHS = (ROOT / "clients" / "python", ROOT / "examples")  # of the project, the app imports only the client


async def run_app(directory: Path, seed: int, transport: Transport, *, verbose: bool) -> None:
    """Start everything, print the address of the app, and print events until cancelled. Raises ChildFailed."""
    narrator = Narrator(verbose=verbose)
    status = asyncio.create_task(narrator.accompany())
    try:
        async with contextlib.AsyncExitStack() as exits:
            stack = await exits.enter_async_context(Stack(directory, seed=seed, transport=transport))
            await stack.migrate()
            sql = await exits.enter_async_context(await stack.connect())
            narrator.begin(sql, 0)
            orchestrator = await stack.start_orchestrator(HEARTBEATS)
            app, url = await start_app(stack)
            exits.push_async_callback(app.stop)
            status.cancel()
            click.echo(f"Open {url} and choose some pictures. Ctrl-C stops everything.")
            while orchestrator.alive and app.alive:
                await narrator.look()
                await asyncio.sleep(POLL_S)
            ended = app if orchestrator.alive else orchestrator
            raise ChildFailed(f"{ended.name} ended{ended.output_tail()}")
    finally:
        status.cancel()


async def start_app(stack: Stack) -> tuple[Child, str]:
    """Start examples/webapp against a stack whose orchestrator runs; its process and address. Raises ChildFailed."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        **{name: stack.environment[name] for name in ("PATH", "HOME")},
        "PYTHONPATH": ":".join(map(str, PATHS)),
        "GPU_ORCHESTRATOR_URL": stack.url,
        "GPU_ORCHESTRATOR_TOKEN": await _token(stack),
        "PICTURES_DIR": str(stack.directory / "pictures"),
        "PUBLIC_URL": url,
    }
    command = ["-m", "uvicorn", "--factory", "webapp.app:create", "--port", str(port), "--no-access-log"]
    stop = ["--timeout-graceful-shutdown", "1"]  # open streams of events would keep it
    log = stack.directory / "webapp.log"
    app = await Child.start("the web app", [sys.executable, *command, *stop], environment=environment, log=log)
    try:
        await _until_answers(app, url)
    except BaseException:
        await app.stop()
        raise
    return app, url


async def _token(stack: Stack) -> str:
    status, out, err = await stack.run("tokens", "create", "webapp", "--tenant", "webapp")
    if status != 0:
        raise ChildFailed(f"orchestrator tokens create ended with {status}: {err or out}")
    return out.split()[0]


async def _until_answers(app: Child, url: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
        while app.alive and time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get(url)).is_success:
                    return
            await asyncio.sleep(POLL_S)
    raise ChildFailed(f"the web app does not answer{app.output_tail()}")
