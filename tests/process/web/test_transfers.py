"""Large files, many files and broken connections: the pod's transfers against a real bucket and gateway."""

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.observability.health import Health
from orchestrator.web.wakeups import WakeupHub
from testbed.services.s3 import EmbeddedS3
from testbed.shared_services import Database
from tests.process.web.builders import Caller, ServerUnderTest, done, serving
from tests.process.web.conftest import BUCKET
from tests.process.web.resetting_proxy import ResettingProxy, resetting
from worker import content, folders, protocol, transfers
from worker import task as task_module
from worker.task import Task
from worker.transfer_errors import TransferError

MB = 1_000_000


@dataclass
class Line:
    """The agent's end of a handler's channel, as worker/runner.py answers it, to the gateway."""

    caller: Caller
    url: str
    told: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0

    def __post_init__(self) -> None:
        self._client = httpx.Client(base_url=self.url, timeout=40)

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)

    def ask(self, message: dict[str, Any], _timeout_s: float) -> dict[str, Any]:
        self.asked += 1
        who = {"p_worker_id": self.caller.id, "p_nonce": self.caller.nonce}
        headers = {"Authorization": f"Bearer {self.caller.token}"}
        reply = self._client.post(
            f"/rest/v1/rpc/{protocol.GRANTS}", json={**who, "p_items": message["items"]}, headers=headers
        )
        assert reply.status_code == 200, reply.text
        return {name: reply.json().get(name) or [] for name in ("items", "refused", "replaced")}

    def ledger(self) -> dict[str, int]:
        """The last entry of the byte ledger."""
        stored = [message for message in self.told if message["op"] == "stored"]
        return {name: stored[-1][name] for name in ("files", "bytes", "sent")}


@dataclass
class Pod:
    """A claimed task, and what its handler transfers files with."""

    gateway: transfers.Transfers
    line: Line
    prefix: str
    folder: Path
    blobs: S3Blobs
    proxy: ResettingProxy

    async def follow(self, key: str) -> tuple[transfers.Transfers, str]:
        """What the handler of a task gets files with that depends on this one; the id of this one."""
        first = key.split("/")[1]
        await self.line.caller.call(protocol.COMPLETE, **done(first, self.blobs.location(key)))
        (task,) = (await self.line.caller.claim(2))["tasks"]
        return transfers.Transfers(self.line, task["id"], self.folder, patience_s=60), first  # type: ignore[arg-type]

    async def put(self, path: Path) -> str:
        """The key of the stored file."""
        location, size = await asyncio.to_thread(self.gateway.put, self.prefix + path.name, path)
        assert size == path.stat().st_size
        key = self.blobs.key_of(location)
        assert key is not None
        return key


@pytest.fixture
async def proxy(s3: EmbeddedS3) -> AsyncIterator[ResettingProxy]:
    """In front of the bucket; it resets nothing unless told."""
    async with resetting(urlsplit(s3.endpoint_url).port or 0, 1 << 60) as proxy:
        yield proxy


@pytest.fixture
async def pod(
    gateway: ServerUnderTest, postgres: Database, s3: EmbeddedS3, proxy: ResettingProxy, tmp_path: Path
) -> AsyncIterator[Pod]:
    """A worker with a task, whose bucket is behind the proxy."""
    blobs = S3Blobs(f"http://127.0.0.1:{proxy.port}", s3.access_key, s3.secret_key, BUCKET, "fleet", "us-east-1")
    db = await PostgresDb.open(postgres.url, pool_size=2)
    caller = await gateway.worker()
    (first,) = await gateway.submit(caller.pool)
    await gateway.submit(caller.pool, depends_on=[first])
    (task,) = (await caller.claim())["tasks"]
    async with serving(db, blobs, WakeupHub(), Health(started_at_s=0)) as url:
        line = Line(caller, url)
        one = transfers.Transfers(line, task["id"], tmp_path, patience_s=60)  # type: ignore[arg-type]
        yield Pod(one, line, task["output_prefix"], tmp_path, gateway.blobs, proxy)
    await blobs.close()
    await db.close()


def written(path: Path, size: int) -> tuple[Path, str]:
    """A file of so many bytes that repeat nowhere near each other, and its SHA-256."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for number in itertools.count():
            block = hashlib.shake_128(str(number).encode()).digest(64) * min(16 << 10, -(-(size - file.tell()) // 64))
            block = block[: size - file.tell()]
            if not block:
                return path, digest.hexdigest()
            digest.update(block)
            file.write(block)
    raise AssertionError


async def read(blobs: S3Blobs, key: str) -> str:
    """The SHA-256 of an object, block by block."""
    digest = hashlib.sha256()
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("GET", blobs.sign("GET", key, expires_s=300)) as reply,
    ):
        assert reply.status_code == 200
        async for block in reply.aiter_bytes():
            digest.update(block)
    return digest.hexdigest()


async def _survives(pod: Pod, size: int, every_bytes: int) -> dict[str, int]:
    """Store a file of this size while connections break; the byte ledger."""
    path, sha256 = written(pod.folder / "film.bin", size)
    pod.proxy.every_bytes = every_bytes
    key = await pod.put(path)
    assert await read(pod.blobs, key) == sha256
    assert pod.proxy.resets >= size // every_bytes
    ledger = pod.line.ledger()
    assert (ledger["files"], ledger["bytes"]) == (1, size)
    assert ledger["sent"] > size
    return ledger


async def test_a_large_file_survives_resets_and_loses_a_part_by_each(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's smallest parts, 64 MiB: what it has is not sent again, and the agent's log says what was sent."""
    monkeypatch.setattr(content, "MIN_PART_BYTES", 5 << 20)
    ledger = await _survives(pod, 64 << 20, 20 * MB)
    lost = pod.proxy.resets * transfers.PARTS_AT_ONCE * (5 << 20)
    assert ledger["sent"] <= (64 << 20) + lost


@pytest.mark.full
async def test_two_gigabytes_through_resets_every_200_mb_send_a_tenth_more_at_most(pod: Pod) -> None:
    """Parts as they are in production; what went through the proxy counts, and what the ledger says agrees with it."""
    ledger = await _survives(pod, 2_000 * MB, 200 * MB)
    assert ledger["sent"] <= 1.1 * 2_000 * MB
    assert pod.proxy.up_bytes <= 1.1 * 2_000 * MB


@pytest.mark.parametrize("folder", ["here", "not/yet/there"])
async def test_a_download_continues_where_it_broke(pod: Pod, folder: str) -> None:
    """From its beginning it would never end: each reset costs only what the connection had not delivered yet."""
    path, sha256 = written(pod.folder / "film.bin", 15 << 20)
    key = await pod.put(path)
    gateway, first = await pod.follow(key)
    pod.proxy.down_every_bytes, pod.proxy.down_bytes = 4 * MB, 0
    target = pod.folder / folder / "input"
    await asyncio.to_thread(gateway.get_all, [(pod.blobs.location(key), target, None)], first)
    assert hashlib.sha256(target.read_bytes()).hexdigest() == sha256
    assert pod.proxy.resets >= 3
    assert [file.name for file in target.parent.iterdir() if file.suffix == ".part"] == []


async def test_a_dependant_gets_a_folder_as_it_was_stored(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single files and tar files, through a list that is too long for the result; and nothing of another attempt."""
    monkeypatch.setattr(folders, "MAX_SINGLE", 20)
    monkeypatch.setattr(folders, "SHARD_BYTES", 1_000)
    monkeypatch.setattr(task_module, "MAX_LISTED", 3)
    frames, line = pod.folder / "frames", pod.line
    content = {f"{number % 3}/{number}.txt": b"%d" % number * number for number in range(60)}
    for name, text in content.items():
        (frames / name).parent.mkdir(parents=True, exist_ok=True)
        (frames / name).write_bytes(text)
    (held,) = (await line.caller.claim(1))["tasks"]
    parent = Task({"task": held, "dir": str(pod.folder), "patience_s": 60}, line)  # type: ignore[arg-type]
    await asyncio.to_thread(parent.upload_folder, frames, "made")
    ended = await asyncio.to_thread(parent.ended, {"ok": True})
    arguments = {"p_output_location": ended["output_location"], "p_result_data": ended["result_data"]}
    await line.caller.call(protocol.COMPLETE, **(done(parent.id) | arguments))
    (held,) = (await line.caller.claim(2))["tasks"]
    child = Task({"task": held, "dir": str(pod.folder / "child"), "patience_s": 60}, line)  # type: ignore[arg-type]
    [before] = child.dependencies
    assert "outputs_list" in before.result_data
    got = await asyncio.to_thread(before.download_folder)
    made = got / "made"
    assert {str(path.relative_to(made)): path.read_bytes() for path in made.rglob("*") if path.is_file()} == content
    assert [path.name for path in got.iterdir()] == ["made"]
    assert before.output_location
    gateway = transfers.Transfers(line, child.id, pod.folder, patience_s=60)  # type: ignore[arg-type]
    other = before.output_location.replace(f"/{parent.id}/1", f"/{parent.id}/2")
    with pytest.raises(TransferError, match="not granted"):
        await asyncio.to_thread(gateway.get_all, [(other, got / "other", None)], before.id)


@pytest.mark.parametrize("files", [600, pytest.param(10_000, marks=pytest.mark.full)])
async def test_every_small_file_is_stored(pod: Pod, blobs: S3Blobs, files: int) -> None:
    """A call for every 300 files, and each of them is there with its bytes."""
    folder = pod.folder / "frames"
    folder.mkdir()
    for number in range(files):
        (folder / f"{number}.txt").write_bytes(b"%d" % number)
    wanted = [(f"{pod.prefix}{path.name}", path) for path in sorted(folder.iterdir())]
    stored = await asyncio.to_thread(pod.gateway.put_all, wanted)
    assert [location for location, _ in stored] == [blobs.location(key) for key, _ in wanted]
    assert pod.line.asked <= files / 300 + 2
    assert pod.line.ledger() == {"files": files, **dict.fromkeys(("bytes", "sent"), sum(size for _, size in stored))}
    for key, path in wanted[:: files // 50]:
        assert await blobs.get(key) == path.read_bytes()
