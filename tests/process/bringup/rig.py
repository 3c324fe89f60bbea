"""The real parts of a bring-up: database, gateway, SSH servers in front of directories, the agent itself."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import asyncssh
import uvicorn

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.adapters.ssh import AsyncSshShell
from orchestrator.adapters.ssh_pool import SshPool
from orchestrator.adapters.store import SqlStore
from orchestrator.core.model import Worker
from orchestrator.core.provider import Pod
from orchestrator.core.states import Stage, State, WaitingOn
from orchestrator.core.worker_metadata import metadata
from orchestrator.observability.health import Health
from orchestrator.pods import host_identity
from orchestrator.pods.bringup import BringUp, Credentials, LaunchConfig
from orchestrator.pods.bundle import Bundle, build_bundle
from orchestrator.pods.latest import Latest, PodView, WorkerView
from orchestrator.ports import Unavailable
from orchestrator.web.app import build_app
from orchestrator.web.wakeups import WakeupHub
from orchestrator.worker_tokens import mint, verifier
from testbed.runpod.fake_tools import write_facts, write_host_keys, write_programs
from testbed.tasks import ended
from tests.process.bringup.builders import a_pod
from tests.process.bringup.sshd import Sshd, pem_of

SECRET = "a secret for tests, of more than 32 bytes"
GPU = "NVIDIA GeForce RTX 4090"
PATH = "/usr/local/bin:/usr/bin:/bin"
nonce_for = host_identity.nonces(b"a private key")
DEADLINE_S = 60.0  # of what should take a second
SNAPSHOT_EVERY_S = 0.05


@dataclass
class Rig:
    """One orchestrator's parts, and the pods it can see."""

    store: SqlStore
    term: int
    key: asyncssh.SSHKey
    config: LaunchConfig
    directory: Path
    bundle: Bundle = field(default_factory=lambda: build_bundle(None))
    pods: PodView = field(default_factory=PodView)
    workers: WorkerView = field(default_factory=WorkerView)
    tokens: list[str] = field(default_factory=list)
    listed: dict[str, Pod] = field(default_factory=dict)
    servers: dict[str, Sshd] = field(default_factory=dict)
    pod_logs: dict[str, list[str]] = field(default_factory=dict)  # pod -> what its log says each time it is read
    lines: SshPool | None = None

    def bring_up(
        self,
        *,
        pem: str | None = None,
        public: str | None = None,
        workers: WorkerView | None = None,
        pod_log: Callable[[str], Awaitable[str]] | None = None,
        **changed: Any,
    ) -> BringUp:
        """A new process's bring-up: nothing is remembered but what the database has."""
        shell = AsyncSshShell(pem_of(self.key) if pem is None else pem, public)
        self.lines = SshPool(shell)
        config = replace(self.config, **changed)
        seen = workers or self.workers
        return BringUp(
            self.store,
            self.lines,
            shell,
            self.bundle,
            Latest(self.pods, seen),
            config,
            Credentials(self._token, nonce_for),
            pod_log=pod_log or self._pod_log,
        )

    async def worker(
        self,
        *,
        server: bool = True,
        pod: Mapping[str, Any] | None = None,
        gpus: tuple[str, int] = (GPU, 1),
        faults: Mapping[str, str] | None = None,
    ) -> tuple[Worker, Sshd]:
        """A worker whose pod was just created, and the pod; `faults`: what is wrong with its machine."""
        worker_id, pod_id = await self.intent(*gpus), f"pod-{uuid.uuid4().hex[:8]}"
        home, machine = self.directory / pod_id, self.directory / f"{pod_id}.machine"
        home.mkdir()
        machine.mkdir()
        write_facts(machine, *gpus, faults)
        env = {"RUNPOD_POD_ID": pod_id, "EMULATED_POD": str(machine), "PATH": f"{self.directory / 'bin'}:{PATH}"}
        env[host_identity.VARIABLE] = nonce_for(worker_id)
        sshd = Sshd(home, self.key, [asyncssh.generate_private_key("ssh-ed25519")], env)
        write_host_keys(machine, sshd.host_key)
        self.servers[worker_id] = sshd
        await sshd.start()
        if not server:
            await sshd.stop()
        row = await self.created(worker_id, pod_id)
        seen = {"gpu_type": gpus[0], "gpu_count": gpus[1], "machine_id": f"machine-{pod_id}", **(pod or {})}
        self.show(replace(a_pod(pod_id, worker_id, sshd.port), **seen))
        return row, sshd

    async def intent(self, gpu_type: str = GPU, gpu_count: int = 1) -> str:
        """A worker without a pod; its id."""
        worker_id = f"gpu-{uuid.uuid4().hex[:12]}"
        intent = {"id": worker_id, "pool": worker_id, "gpu_type": gpu_type, "gpu_count": gpu_count, "reserved_usd": 0}
        intent |= {"heartbeat_s": self.config.heartbeat_s, "lease_s": 60, "own_program": False, "deadline_s": 30}
        await self.store.spawn(self.term, {**intent, "actor": "test", "reason": "test"})
        return worker_id

    async def created(self, worker_id: str, pod_id: str) -> Worker:
        """The row once its pod was created."""
        sent = metadata(bootstrap=True)
        fields = {"metadata": sent, "pod_id": pod_id, "waiting_on": WaitingOn.PROVIDER, "deadline_s": 600}
        return await self.move(worker_id, stage=Stage.POD_RUNNING, fields=fields)

    async def move(self, worker_id: str, **given: Any) -> Worker:
        """Any move of a spawning worker."""
        plain: dict[str, Any] = {"from_states": [State.SPAWNING], "reason": "test"}
        return await self.store.move(self.term, worker_id, **(plain | given))

    def show(self, pod: Pod) -> None:
        """Put a pod into the provider's list."""
        self.listed[pod.id] = pod
        self.pods.update(self.listed.values())

    async def row(self, worker_id: str) -> Mapping[str, Any]:
        """The row as an operator sees it."""
        found: Mapping[str, Any] = (await self.store.worker(worker_id))["worker"]
        return found

    async def attempts(self, worker_id: str) -> list[Mapping[str, Any]]:
        """The attempts, in order."""
        return sorted((await self.store.worker(worker_id))["attempts"], key=lambda row: int(row["id"]))

    async def reaches(self, worker_id: str, stage: Stage) -> None:
        """Wait until an attempt at a stage is under way."""
        async with asyncio.timeout(DEADLINE_S):
            while not any(a["stage"] == stage for a in await self.attempts(worker_id)):
                await asyncio.sleep(SNAPSHOT_EVERY_S)

    async def meets(self, worker_id: str, code: str) -> None:
        """Wait until an attempt has noted a code, whether it goes on or not."""
        async with asyncio.timeout(DEADLINE_S):
            while code not in {attempt["failure_code"] for attempt in await self.attempts(worker_id)}:
                await asyncio.sleep(SNAPSHOT_EVERY_S)

    def shorten(self, *stages: Stage, seconds: float) -> None:
        """Let these stages end soon; those that a test sees pass keep the time that a busy machine may need."""
        self.config = replace(self.config, deadlines_s={**self.config.deadlines_s, **dict.fromkeys(stages, seconds)})

    def install(self, sshd: Sshd, name: str, script: str) -> Path:
        """Put a program of this name before the pod's own; its path."""
        folder = sshd.home / "bin"
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        sshd.env["PATH"] = f"{folder}:{self.directory / 'bin'}:{PATH}"
        return path

    def agents(self, sshd: Sshd) -> list[Mapping[str, Any]]:
        """What the launches on a pod wrote down, alive or not."""
        return [json.loads(path.read_text()) for path in sshd.home.glob(".orchestrator/run/*/agent.json")]

    async def _pod_log(self, pod_id: str) -> str:
        said = self.pod_logs.get(pod_id)
        if not said:
            raise Unavailable("there is no log")
        return said.pop(0)

    def _token(self, worker: Worker, jti: str) -> str:
        self.tokens.append(mint(SECRET, worker.id, jti, time.time(), 600))
        return self.tokens[-1]

    async def _observe(self) -> None:
        while True:
            self.workers.update((await self.store.snapshot()).workers)
            await asyncio.sleep(SNAPSHOT_EVERY_S)

    async def _end(self) -> None:
        for sshd in self.servers.values():
            await sshd.stop()
            for agent in self.agents(sshd):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(agent["pid"], signal.SIGKILL)


@asynccontextmanager
async def rigged(db: PostgresDb, api_url: str, directory: Path) -> AsyncIterator[Rig]:
    """A rig; its agents end with it."""
    store = SqlStore(db, "default")
    lease = await store.lead("tests", 3_600)
    config = LaunchConfig(api_url, python=sys.executable, heartbeat_s=2, lease_s=60, deadman_s=30, claim_wait_s=1)
    write_programs(directory / "bin", sys.executable)
    rig = Rig(store, lease.term, asyncssh.generate_private_key("ssh-ed25519"), config, directory)
    observing = asyncio.create_task(rig._observe())
    try:
        yield rig
    finally:
        await ended(observing)
        await rig._end()
        if rig.lines is not None:
            await rig.lines.close()


@asynccontextmanager
async def gateway_url(db: PostgresDb) -> AsyncIterator[str]:
    """The URL of the workers' gateway."""
    blobs = S3Blobs("http://127.0.0.1:9", "nobody", "nothing", "none", "", "us-east-1")  # no test here stores anything
    health = Health(started_at_s=time.monotonic())
    app = build_app(db=db, blobs=blobs, verifier=verifier(SECRET), health=health, wakeups=WakeupHub())
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(DEADLINE_S):
        while not server.started:
            await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await serving
