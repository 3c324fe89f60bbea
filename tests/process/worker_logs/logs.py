"""A pod's log files, what was shipped of them, and crashes at chosen moments."""

import gzip
import hashlib
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.adapters.ssh import AsyncSshShell
from orchestrator.adapters.ssh_pool import SshPool
from orchestrator.core.model import Worker
from orchestrator.core.states import Stage, State
from orchestrator.pods import agent_commands
from orchestrator.worker_logs.shipper import Shipper
from tests.process.bringup.rig import Rig
from tests.process.bringup.sshd import Sshd, pem_of

Row = Mapping[str, Any]


class Crash(Exception):
    """The process dies here."""


class Crashing:
    """A real part whose caller dies just before, or just after, one of its methods does its work."""

    def __init__(self, real: Any, method: str, when: str) -> None:
        self._real, self._method, self._when = real, method, when

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name != self._method:
            return real

        async def dying(*args: Any, **given: Any) -> None:
            if self._when == "after":
                await real(*args, **given)
            raise Crash(f"{self._when} {name}")

        return dying


class Counting:
    """Real blobs that remember which keys were put."""

    def __init__(self, real: S3Blobs) -> None:
        self._real = real
        self.put_keys: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def put(self, key: str, content: bytes, *, content_type: str) -> None:
        self.put_keys.append(key)
        await self._real.put(key, content, content_type=content_type)


@dataclass
class Hauling:
    """One active worker, its pod and its logs."""

    rig: Rig
    db: PostgresDb
    blobs: S3Blobs
    sshd: Sshd
    worker: Worker
    dice: random.Random = field(default_factory=lambda: random.Random(7))

    @classmethod
    async def begun(cls, rig: Rig, db: PostgresDb, blobs: S3Blobs) -> "Hauling":
        """A worker that was promoted, with an agent that could be stopped if it ran."""
        worker, sshd = await rig.worker()
        agent = sshd.home / agent_commands.agent_path(rig.bundle.agent_sha)
        agent.parent.mkdir(parents=True)
        agent.write_bytes(rig.bundle.agent)
        where = {"ssh_host": "127.0.0.1", "ssh_port": sshd.port, "host_key": sshd.host_key}
        agent_of = {"nonce": uuid.uuid4().hex, "code_sha": rig.bundle.agent_sha, "token_jti": "j"}
        ready = {"waiting_on": "worker", "deadline_s": 60}
        row = await rig.move(
            worker.id, to_state=State.ACTIVE, stage=Stage.PROMOTED, fields={**where, **agent_of, **ready}
        )
        return cls(rig, db, blobs, sshd, row)

    @property
    def nonce(self) -> str:
        """The launch."""
        assert self.worker.nonce is not None
        return self.worker.nonce

    def file(self, stream: str, boot_id: str | None = None) -> Path:
        """A log file on the pod."""
        path = self.sshd.home / agent_commands.run_dir(boot_id or self.nonce) / "logs" / f"{stream}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, stream: str, size: int, boot_id: str | None = None) -> None:
        """Append random bytes."""
        with self.file(stream, boot_id).open("ab") as file:
            file.write(self.dice.randbytes(size))

    def shipper(self, *, store: Any = None, blobs: Any = None) -> Shipper:
        """A new process's shipper: it knows what the database knows."""
        lines = self.rig.lines = self.rig.lines or SshPool(AsyncSshShell(pem_of(self.rig.key)))
        return Shipper(store or self.rig.store, lines, blobs or self.blobs, python=self.rig.config.python)

    async def pieces(self, stream: str, boot_id: str | None = None) -> list[Row]:
        """The ledger of a stream."""
        rows = await self.rig.store.log_pieces(self.worker.id)
        return [row for row in rows if (row["boot_id"], row["stream"]) == (boot_id or self.nonce, stream)]

    async def shipped(self, stream: str, boot_id: str | None = None) -> bytes:
        """What S3 has of a stream, put together; every piece follows the one before and is what its row says."""
        parts: list[bytes] = []
        for row in await self.pieces(stream, boot_id):
            assert row["first"] == sum(map(len, parts))
            assert row["shipped_at"] is not None
            packed = await self.blobs.get(row["key"])
            content = gzip.decompress(packed)
            assert len(content) == row["last"] - row["first"]
            assert hashlib.sha256(content).hexdigest() == row["sha256"]
            parts.append(content)
        return b"".join(parts)

    async def tells(self, **sizes: int) -> None:
        """A heartbeat that tells of log sizes; the worker as the next snapshot has it."""
        said = {"p_worker_id": self.worker.id, "p_nonce": self.nonce, "p_tasks": [], "p_health": {}, "p_logs": sizes}
        await self.db.call("worker_heartbeat", **said)
        rows = (await self.rig.store.snapshot()).workers
        self.worker = next(row for row in rows if row.id == self.worker.id)
