"""The agent from nothing to its first call and ready line: wall and CPU seconds; the bar is 0.3 s."""

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from bench.figures import spread
from orchestrator.pods.bundle import build_bundle
from worker.protocol import CLAIM, REGISTER

TRIES = 30
GOALS = {"registered_p99_s": ("<=", 0.3)}
START_TIMEOUT_S = 20.0
ANSWER: Mapping[str, Any] = {"outcome": "ok", "wanted": "run", "heartbeat_s": 20, "lease_s": 60, "tasks": []}


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Seconds from `start` being run to its answer, to the agent's registration, and CPU seconds by then."""
    bundle = build_bundle(None)
    agent = directory / f"agent-{bundle.agent_sha}.pyz"
    agent.write_bytes(bundle.agent)
    started_s: list[float] = []
    registered_s: list[float] = []
    cpu_s: list[float] = []
    gateway = AgentGateway()
    async with gateway:
        for number in range(tries):
            run_dir = directory / f"run-{number}"
            began_s = time.monotonic()
            line = await run_agent(agent, run_dir, "start", agent_config(gateway.url, f"launch-{number}"))
            started_s.append(time.monotonic() - began_s)
            async with asyncio.timeout(START_TIMEOUT_S):
                registered_s.append(await gateway.registrations.get() - began_s)
            times = psutil.Process(json.loads(line)["pid"]).cpu_times()
            cpu_s.append(times.user + times.system)
            await run_agent(agent, run_dir, "stop", b"", "--grace-s", "0.1")
    return {
        "tries": tries,
        "agent_bytes": len(bundle.agent),
        **{f"answer_{name}": value for name, value in spread(started_s).items()},
        **{f"registered_{name}": value for name, value in spread(registered_s).items()},
        **{f"agent_cpu_{name}": value for name, value in spread(cpu_s).items()},
    }


async def run_agent(
    agent: Path, run_dir: Path, verb: str, stdin: bytes, *options: str, env: Mapping[str, str] | None = None
) -> bytes:
    """What a verb of an agent says; raises RuntimeError."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", str(agent), verb, "--run-dir", str(run_dir), *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=env,
    )
    async with asyncio.timeout(START_TIMEOUT_S):
        out, _ = await process.communicate(stdin)
    if process.returncode != 0:
        raise RuntimeError(f"agent {verb} ended with {process.returncode}: {out.decode()}")
    return out


def agent_config(url: str, nonce: str, **changed: float) -> bytes:
    """The configuration of an agent that waits for work."""
    config = {
        "worker_id": "gpu-20260101_000000-00000000",
        "nonce": nonce,
        "api_url": url,
        "token": "none",
        "pool": "default",
        "handlers": {"nothing": "cmd:true"},
        "user_code": None,
        "python": sys.executable,
        "setup_command": None,
        "start_command": None,
        "heartbeat_s": 20,
        "lease_s": 60,
        "deadman_s": 900,
        "claim_wait_s": 20,
        "batch": 1,
        "default_timeout_s": 3600,
        "env": {},
        **changed,
    }
    return json.dumps(config).encode()


class AgentGateway:
    """A worker gateway without a database: every call is answered at once, a claim with nothing after a second."""

    def __init__(self) -> None:
        self.registrations: asyncio.Queue[float] = asyncio.Queue()
        app = Starlette(routes=[Route("/rest/v1/rpc/{function}", self._answer, methods=["POST"])])
        self._server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_config=None, lifespan="off"))
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._serving = asyncio.create_task(self._server.serve())
        async with asyncio.timeout(START_TIMEOUT_S):
            while not self._server.started:
                await asyncio.sleep(0.01)

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    async def _answer(self, request: Request) -> JSONResponse:
        function = request.path_params["function"]
        if function == REGISTER:
            self.registrations.put_nowait(time.monotonic())
        elif function == CLAIM:
            await asyncio.sleep(1)
        return JSONResponse(dict(ANSWER))
