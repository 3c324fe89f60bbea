"""The command line as a process of its own, and a fleet in the database for it to show."""

import asyncio
import gzip
import hashlib
import json
import os
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.adapters.store import SqlStore
from orchestrator.core.failures import FailureCode
from orchestrator.core.states import Stage, State
from orchestrator.ports import LogRange, StageAttempt
from tests.process.cli import forked, json_schemas

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 60.0
PROGRAM = (sys.executable, "-m", "orchestrator")
NOTHING: Mapping[str, str | None] = MappingProxyType({})
INHERITED = ("PATH", "HOME", "LANG", "PYTHONDONTWRITEBYTECODE", "TMPDIR")


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """The one object on stdout."""
        document: dict[str, Any] = json.loads(self.out)
        assert document["schema_version"] == 1
        return document

    def lines_with(self, text: str) -> list[str]:
        """The lines of stdout that have this in them."""
        return [line for line in self.out.splitlines() if text in line]


async def run(*command: str, stdin: str = "", cwd: Path = ROOT, environment: Mapping[str, str | None] = NOTHING) -> Ran:
    """A program with this environment and hardly any of ours, to its end."""
    return await ended(await start(*command, cwd=cwd, environment=environment), stdin)


async def start(*command: str, cwd: Path = ROOT, environment: Mapping[str, str | None]) -> asyncio.subprocess.Process:
    """The same, started; its streams are pipes."""
    pipe, env = asyncio.subprocess.PIPE, _environment(environment)
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=cwd)


def _environment(wanted: Mapping[str, str | None]) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {**inherited, **{name: value for name, value in wanted.items() if value is not None}}


async def ended(process: asyncio.subprocess.Process, stdin: str = "") -> Ran:
    """What is left of a program's output, and its exit code; it does not outlive the wait."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, err = await process.communicate(stdin.encode())
    finally:
        if process.returncode is None:
            process.kill()
    return Ran(process.returncode or 0, out.decode(), err.decode())


@dataclass(frozen=True, slots=True)
class Cli:
    """`python -m orchestrator` on one fleet of one database."""

    environment: Mapping[str, str | None]
    cwd: Path = ROOT

    async def __call__(self, *arguments: str, stdin: str = "", **changes: str | None) -> Ran:
        """Run it; `changes` to the environment, None removes."""
        env = _environment({**self.environment, **changes})
        words = ("-m", "orchestrator", *arguments)
        ran = Ran(*await forked.run(words, stdin=stdin, cwd=self.cwd, environment=env, timeout_s=TIMEOUT_S))
        if "--json" in arguments and ran.out.count("\n") == 1:
            json_schemas.check(arguments, ran.json())
        return ran


@dataclass(frozen=True, slots=True)
class Fleet:
    """Rows, written as the loop writes them."""

    store: SqlStore
    db: PostgresDb
    blobs: S3Blobs | None
    term: int

    async def worker(
        self,
        *,
        upto: State = State.SPAWNING,
        worker_id: str | None = None,
        price: float | None = 0.44,
        cluster: str | None = None,
    ) -> str:
        """A worker that has come so far, and that a cluster may reserve; its id."""
        name = uuid.uuid4().hex
        worker_id = worker_id or f"gpu-20261120_223104-{name[:8]}"
        what = {"pool": "default", "gpu_type": "NVIDIA GeForce RTX 4090", "gpu_count": 1, "data_center": "EU-RO-1"}
        terms = {"reserved_usd": 0, "heartbeat_s": 20, "lease_s": 60, "own_program": False, "deadline_s": 600}
        intent = {"id": worker_id, **what, **terms, "actor": "test", "reason": "2 tasks, 0 workers", "metadata": {}}
        assert await self.store.spawn(self.term, intent | ({"cluster": cluster} if cluster else {}))
        pod: dict[str, Any] = {
            "pod_id": f"pod{name[:11]}",
            "price_usd_per_hour": price,
            "nonce": "boot-1",
            "token_jti": name,
        }
        ssh: dict[str, Any] = {"ssh_host": "213.173.110.7", "ssh_port": 12086}
        await self.move(worker_id, State.SPAWNING, stage=Stage.POD_RUNNING, waiting_on="provider", **pod)
        await self.move(worker_id, State.SPAWNING, stage=Stage.SSH_AUTH, waiting_on="operator", **ssh)
        if upto in {State.ACTIVE, State.IDLE}:
            await self.move(worker_id, State.SPAWNING, State.ACTIVE, stage=Stage.PROMOTED, waiting_on="worker")
        if upto in {State.TERMINATING, State.TERMINATED}:
            cause: dict[str, Any] = {"exit_cause": "spawn_failed", "failure_code": FailureCode.AUTH_FAILED}
            attempt = await self.store.open_attempt(self.term, worker_id, Stage.SSH_AUTH)
            result = StageAttempt("failed", FailureCode.AUTH_FAILED, "PermissionDenied", {"why": "PAIR_MISMATCH"})
            await self.store.close_attempt(self.term, attempt, result)
            await self.move(worker_id, State.SPAWNING, State.TERMINATING, stage=Stage.DELETING, **cause)
        if upto is State.TERMINATED:
            await self.move(worker_id, State.TERMINATING, State.TERMINATED, stage=Stage.GONE)
        return worker_id

    async def move(
        self, worker_id: str, before: State, after: State | None = None, *, stage: Stage, **fields: Any
    ) -> None:
        """One step of a worker's life."""
        await self.store.move(
            self.term, worker_id, from_states=[before], to_state=after, stage=stage, reason="test", fields=fields
        )

    async def row(self, worker_id: str) -> Mapping[str, Any]:
        """The worker as the database has it."""
        row: Mapping[str, Any] = (await self.store.worker(worker_id))["worker"]
        return row

    async def ship(self, worker_id: str, stream: str, seq: int, first: int, content: bytes) -> LogRange:
        """A piece of a log, in the bucket and in the ledger."""
        assert self.blobs is not None
        last, sha = first + len(content), hashlib.sha256(content).hexdigest()
        key = f"logs/{worker_id}/boot-1/{stream}/{seq:08d}-{first}-{last}.log.gz"
        piece = LogRange(worker_id, "boot-1", stream, seq, first, last, sha, key)
        await self.store.log_begin(self.term, piece)
        await self.blobs.put(key, gzip.compress(content), content_type="application/gzip")
        await self.store.log_shipped(self.term, piece)
        return piece
