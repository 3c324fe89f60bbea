"""The emulator: the API, the control API and the pods in one process, on loopback."""

import asyncio
import fcntl
import os
import secrets
import time
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.server import ServerState

from testbed.runpod import cluster_controls, control
from testbed.runpod.api import Core
from testbed.runpod.faults import FaultTable
from testbed.runpod.in_process_pod import LightSshd
from testbed.runpod.operations import routes
from testbed.runpod.pods import PodHost
from testbed.runpod.replies import cuttable, problem
from testbed.runpod.sshd import PodSshd
from testbed.runpod.state import World

HOST = "127.0.0.1"
ACCOUNT_POLL_S = 1.0
BACKLOG = 512
CONTROLS = (*control.CONTROLS, *cluster_controls.CONTROLS)


class Emulator:
    """`async with Emulator(state_dir) as emulator`: serves until the block is left, then nothing of it runs.

    `state_dir` keeps the pods' homes; two emulators cannot share one. `boot_s` is (least, most) seconds from the create
    call until the pod's SSH server answers. Everything random comes from `seed`. `light`: pods without processes.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        seed: int = 0,
        boot_s: tuple[float, float] = (2.0, 4.0),
        port: int = 0,
        api_key: str | None = None,
        light: bool = False,
    ) -> None:
        self.state_dir = state_dir.resolve()
        self.api_key = api_key or f"rpa_{secrets.token_hex(16)}"
        self._port = port
        world = World(self.state_dir, seed=seed)
        self.core = Core(world, FaultTable(seed), PodHost(world, boot_s, LightSshd if light else PodSshd), self.api_key)
        self._lock = -1
        self._account: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._state = ServerState()

    @property
    def url(self) -> str:
        """The base URL, to be given as RUNPOD_API_BASE_URL."""
        return f"http://{HOST}:{self._port}"

    @property
    def control_url(self) -> str:
        """The base URL of the control API."""
        return self.url + control.PREFIX

    async def __aenter__(self) -> Self:
        self.state_dir.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.state_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a second one would kill the first one's pods
        except OSError as error:
            os.close(self._lock)
            message = f"another emulator uses {self.state_dir}; give it a state directory of its own"
            raise RuntimeError(message) from error
        config = uvicorn.Config(_application(self.core), ws="none", lifespan="off", log_config=None, access_log=False)
        config.load()
        # uvicorn's protocol without its Server: that one owns the process's signals and takes 0.2 s to stop. The loop
        # makes the socket itself, or it would not turn Nagle's algorithm off, and each call would wait for 40 ms.
        protocol = cuttable(self.core.transports)
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: protocol(config, self._state, {}), HOST, self._port, backlog=BACKLOG, start_serving=False
            )
        except OSError:
            os.close(self._lock)
            raise
        self._port = self._server.sockets[0].getsockname()[1]
        self.core.host.api_url = self.url
        await self.core.host.open()
        await self._server.start_serving()
        self._account = asyncio.create_task(self._watch_account())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        for task in (self._account, *self.core.endings):
            if task is not None:
                task.cancel()
        if self._server is not None:
            self._server.close()
        for transport in list(self.core.transports.values()):
            transport.abort()
        answering = list(self._state.tasks)
        for answer in answering:
            answer.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        await self.core.host.close()
        os.close(self._lock)

    async def _watch_account(self) -> None:
        """Delete every pod without a network volume once the money is gone, as RunPod does."""
        while True:
            await asyncio.sleep(ACCOUNT_POLL_S)
            world = self.core.world
            if world.pods and world.remaining_usd(time.time()) <= 0:
                for pod in world.live():
                    if not pod.request.mounts.network:
                        self.core.end_pod(pod)

    async def control(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Call the control API without HTTP, as in `control("POST", "/faults", {"kind": "no_capacity"})`."""
        for known_method, template, function in CONTROLS:
            found = compile_path(template)[0].match(path)
            if method == known_method and found:
                return await function(self.core, body or {}, found.groupdict())
        message = f"no such control call: {method} {path}"
        raise LookupError(message)


def _application(core: Core) -> ASGIApp:
    async def answer(request: Request, error: Exception) -> Response:
        del request
        status = error.status_code if isinstance(error, HTTPException) else 500
        return problem(status, str(error)).response()

    app = Starlette(routes=[*control.routes(core, CONTROLS), *routes(core)], exception_handlers={HTTPException: answer})

    async def dated(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_dated(message: Message) -> None:
            if message["type"] == "http.response.start":
                date = formatdate(time.time() + core.clock_s, usegmt=True).encode()
                message = {**message, "headers": [*message["headers"], (b"date", date)]}
            await send(message)

        await app(scope, receive, send_dated)

    return dated
