"""Postgres, S3 and the RunPod emulator on loopback, and an orchestrator that knows them by its environment alone."""

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import asyncssh
import httpx
import psycopg
from psycopg.rows import dict_row

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.adapters.supabase import SupabaseDb
from orchestrator.ports import Db
from testbed.services.free_port import free_port
from testbed.services.plain_http import NO_TLS
from testbed.services.postgres import EmbeddedPostgres
from testbed.services.postgrest import EmbeddedPostgrest
from testbed.services.processes import Child, ChildFailed
from testbed.services.s3 import EmbeddedS3
from testbed.services.supabase_roles import become_project, create_roles

Transport = Literal["direct", "supabase"]  # DATABASE_URL, or SUPABASE_URL and a key
ROOT = Path(__file__).resolve().parents[1]
FLEET = "demo"
BUCKET = "demo"
PREFIX = "gpu"
REGION = "us-east-1"
START_TIMEOUT_S = 60.0
POLL_S = 0.05
# The settings of the demo's operator: a fleet for two cores, whose workers end soon.
OPERATOR = {
    "MAX_ACTIVE_GPUS": "4",
    "TASKS_PER_GPU_THRESHOLD": "2",
    "GPU_IDLE_TIMEOUT_SEC": "5",
    "GPU_OVERCAPACITY_IDLE_TIMEOUT_SEC": "5",
    "SPAWNING_GRACE_PERIOD_SEC": "10",
    "SCALE_DOWN_GRACE_PERIOD_SEC": "5",
    "GRACEFUL_SHUTDOWN_TIMEOUT_SEC": "30",
    "ORCHESTRATOR_POLL_SEC": "3",
    "HEARTBEAT_TIMEOUT_SEC": "30",  # a heartbeat every 10 s, so that it is known how long a dead pod's logs were
    "WORKER_HANDLERS": "travel_segment=travel:segment,travel_stitch=travel:stitch",
    "WORKER_CODE_DIR": str(ROOT / "examples" / "travel"),
    "WORKER_PYTHON": sys.executable,  # Pillow and imageio-ffmpeg are there; on a real pod the image brings them
}


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers that run already, for a stack that shares them: a database and a prefix of its own keep it apart."""

    postgres: EmbeddedPostgres
    s3: EmbeddedS3
    database: str
    prefix: str


class Stack:
    """An async context manager. At its end, the orchestrator stops first and Postgres last."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int = 1,
        boot_s: tuple[float, float] = (2, 4),
        servers: Servers | None = None,
        light: bool = False,
        transport: Transport = "direct",
        start: Callable[..., Awaitable[Child]] = Child.start,
    ) -> None:
        self._start = start  # of the emulator's and the orchestrators' processes
        self.directory = directory
        self.light = light  # pods without processes
        self.seed = seed
        self.boot_s = boot_s
        self.postgres = (
            servers.postgres if servers else EmbeddedPostgres(directory / "postgres", durable=False, keep=False)
        )
        self.s3 = servers.s3 if servers else EmbeddedS3(directory / "s3")
        self.prefix = servers.prefix if servers else PREFIX
        self._servers = servers
        self._jwt_secret = secrets.token_hex(32)
        self.transport = transport
        self.postgrest: EmbeddedPostgrest | None = None
        self.environment: dict[str, str] = {}  # what the orchestrator gets, and nothing else
        self.control_url = ""
        self.emulator: Child
        self._children: list[Child] = []
        self._exits = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            if self._servers is None:
                await self._exits.enter_async_context(self.postgres)
                await self._exits.enter_async_context(self.s3)
                await self.s3.create_bucket(BUCKET)
            if self.transport == "supabase":
                await (create_roles if self._servers else become_project)(self.database_url)
                rest = EmbeddedPostgrest(self.database_url, self._jwt_secret)
                self.postgrest = await self._exits.enter_async_context(rest)
            api = await self._start_emulator()
            self.control_url = api["control_url"].rstrip("/")
            self.environment = self._environment(api)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    @property
    def url(self) -> str:
        """Return the URL of the orchestrator's HTTP server."""
        return f"http://127.0.0.1:{self.environment['PORT']}"

    @property
    def database_url(self) -> str:
        """This stack's database."""
        return self.postgres.url_of(self._servers.database) if self._servers else self.postgres.url

    async def run(self, *arguments: str, overrides: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """`python -m orchestrator …` to its end: exit status, stdout, stderr."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "orchestrator", *arguments,
            env={**self.environment, "PYTHONPATH": str(ROOT), **(overrides or {})},
            cwd=self.directory,  # not the user's, whose .env is for another fleet
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(START_TIMEOUT_S):
            out, err = await process.communicate()
        return await process.wait(), out.decode(), err.decode()

    async def migrate(self) -> str:
        """Bring the schema up as an operator would; what the command said."""
        status, out, err = await self.run("migrate", overrides={"DATABASE_URL": self.database_url})
        if status != 0:
            raise ChildFailed(f"orchestrator migrate ended with {status}: {err or out}")
        return (out + err).strip()

    async def start_orchestrator(self, overrides: Mapping[str, str] | None = None) -> Child:
        """`python -m orchestrator run` as its own process, ready to lead or standing by."""
        child = await self.begin_orchestrator(overrides)
        port = (overrides or {}).get("PORT", self.environment["PORT"])
        await self.until_ready(child, f"http://127.0.0.1:{port}")
        return child

    async def begin_orchestrator(self, overrides: Mapping[str, str] | None = None, *, root: Path = ROOT) -> Child:
        """The same, only just started; `root`: of another version's files."""
        start = self._start if root == ROOT else Child.start
        child = await start(
            "orchestrator",
            [sys.executable, "-m", "orchestrator", "run"],
            # Safe path: the working directory must not come first.
            environment={**self.environment, "PYTHONPATH": str(root), "PYTHONSAFEPATH": "1", **(overrides or {})},
            log=self.directory / "orchestrator.log",
            cwd=self.directory,  # not the user's, whose .env is for another fleet
        )
        self._children.append(child)
        return child

    async def until_ready(self, child: Child, url: str | None = None) -> None:
        """Wait for /readyz; ChildFailed if the process ends first or takes too long."""
        deadline = time.monotonic() + START_TIMEOUT_S
        async with httpx.AsyncClient(base_url=url or self.url, timeout=5, trust_env=False, verify=NO_TLS) as client:
            while time.monotonic() < deadline:
                if not child.alive:
                    raise ChildFailed(f"{child.name} ended with {child.process.returncode}{child.output_tail()}")
                try:
                    if (await client.get("/readyz")).is_success:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(POLL_S)
        raise ChildFailed(f"{child.name} is not ready after {START_TIMEOUT_S:.0f} s{child.output_tail()}")

    async def control(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The emulator's control API, `/__emulator__/…`: the truth behind what the provider reports."""
        async with httpx.AsyncClient(timeout=60, trust_env=False, verify=NO_TLS) as client:
            answer = await client.request(method, f"{self.control_url}/{path}", json=body)
            answer.raise_for_status()
            return answer.json() if answer.content else None

    async def connect(self) -> psycopg.AsyncConnection[dict[str, Any]]:
        """Open a separate connection to the database, so that checks do not use the code that they check."""
        return await psycopg.AsyncConnection.connect(self.database_url, autocommit=True, row_factory=dict_row)

    async def open_db(self) -> Db:
        """The transport that the orchestrator uses."""
        if self.postgrest is None:
            return await PostgresDb.open(self.database_url)
        return await SupabaseDb.open(self.postgrest.project_url, self.postgrest.secret_key)

    def blobs(self) -> S3Blobs:
        """The bucket as the orchestrator sees it."""
        return S3Blobs(self.s3.endpoint_url, self.s3.access_key, self.s3.secret_key, BUCKET, self.prefix, REGION)

    def write_env(self) -> Path:
        """Write the orchestrator's environment as a file to source, readable by its owner alone."""
        path = self.directory / "env"
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            for name, value in sorted(self.environment.items()):
                if name not in {"PATH", "HOME", "PYTHONPATH"}:
                    file.write(f"export {name}={shlex.quote(value)}\n")
        return path

    async def _start_emulator(self) -> dict[str, Any]:
        low, high = self.boot_s
        self.emulator = await self._start(
            "emulator",
            [
                sys.executable, "-m", "testbed.runpod", "--port", "0", "--seed", str(self.seed),
                "--state-dir", str(self.directory / "runpod"), "--boot-s", f"{low}", f"{high}",
                *(["--light"] if self.light else []),
            ],
            environment=self._base(),
            log=self.directory / "emulator.log",
            death_signal=signal.SIGTERM,  # it takes its pods with it
            piped=True,
        )  # fmt: skip
        self._children.append(self.emulator)
        return dict(json.loads(await self.emulator.first_line(START_TIMEOUT_S)))

    def _base(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.directory), "PYTHONPATH": str(ROOT)}

    def _environment(self, api: Mapping[str, Any]) -> dict[str, str]:
        key = asyncssh.generate_private_key("ssh-ed25519", comment="demo")
        port = free_port()
        return {
            **self._base(),
            **OPERATOR,
            "FLEET_ID": FLEET,
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "WORKER_JWT_SECRET": self._jwt_secret,
            **self._transport(port),
            "RUNPOD_API_BASE_URL": api["url"],
            "RUNPOD_API_KEY": api["api_key"],
            "RUNPOD_SSH_PRIVATE_KEY": key.export_private_key().decode(),
            "RUNPOD_SSH_PUBLIC_KEY": key.export_public_key().decode().strip(),
            "AWS_ACCESS_KEY_ID": self.s3.access_key,
            "AWS_SECRET_ACCESS_KEY": self.s3.secret_key,
            "AWS_REGION": REGION,
            "S3_ENDPOINT_URL": self.s3.endpoint_url,
            "S3_BUCKET": BUCKET,
            "S3_PREFIX": self.prefix,
        }

    def _transport(self, port: int) -> dict[str, str]:
        if self.postgrest is None:
            return {"DATABASE_URL": self.database_url, "WORKER_API_URL": f"http://127.0.0.1:{port}"}
        return {
            "SUPABASE_URL": self.postgrest.project_url,
            "SUPABASE_SERVICE_ROLE_KEY": self.postgrest.secret_key,
            "SUPABASE_PUBLISHABLE_KEY": self.postgrest.publishable_key,
        }

    async def _stop(self) -> None:
        for child in reversed(self._children):
            await child.stop()
        await self._exits.aclose()
