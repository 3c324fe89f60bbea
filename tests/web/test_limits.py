"""What one caller may cost before the door knows who it is."""

import asyncio
import contextlib
import time
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import httpx
import pytest

from orchestrator.adapters.blobs import S3Blobs
from orchestrator.adapters.db_postgres import PostgresDb
from orchestrator.emulator.postgres import EmbeddedPostgres
from orchestrator.web import limits
from orchestrator.web.health import Health
from orchestrator.web.signal import TaskSignal
from tests.web.builders import DEADLINE_S, Door, serving

REQUEST = b"POST /rest/v1/rpc/worker_claim HTTP/1.1\r\nHost: x\r\n"


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def _all(reader: asyncio.StreamReader) -> bytes:
    """What is said until the other side hangs up."""
    async with asyncio.timeout(DEADLINE_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def test_a_head_without_end_is_cut_off(door: Door) -> None:
    """431, and the connection is gone; others are served."""
    reader, writer = await _connect(str(door.client.base_url))
    writer.write(REQUEST)
    try:
        for number in range(limits.MAX_HEAD_BYTES // 1_000 + 2):
            writer.write(f"X-{number}: ".encode() + b"x" * 1_000 + b"\r\n")
            await writer.drain()
    except ConnectionError:
        pass
    assert (await _all(reader)).startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))  # 400: another parser's own limit
    writer.close()
    assert (await door.client.get("/healthz")).status_code in {200, 503}


@pytest.mark.parametrize("sent", [b"", REQUEST], ids=["nothing", "half a head"])
async def test_who_does_not_finish_its_head_is_hung_up_on(
    door: Door, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """A drop now and then buys no more time."""
    monkeypatch.setattr(limits, "HEAD_TIMEOUT_S", 0.3)
    reader, writer = await _connect(str(door.client.base_url))
    began = time.monotonic()
    writer.write(sent)
    gone = asyncio.create_task(_all(reader))
    while sent and not gone.done() and time.monotonic() - began < DEADLINE_S:
        writer.write(b"X: 1\r\n")
        await asyncio.wait({gone}, timeout=0.05)
    await gone
    assert 0.2 < time.monotonic() - began < DEADLINE_S / 2
    writer.close()


async def test_a_body_goes_on_for_ever_for_nobody(door: Door) -> None:
    """After the refusal what still comes is not read for long."""
    worker = await door.worker()
    reader, writer = await _connect(str(door.client.base_url))
    writer.write(REQUEST + f"Authorization: Bearer {worker.token}\r\nContent-Length: {1 << 40}\r\n\r\n".encode())
    gone = asyncio.create_task(_all(reader))
    sent = 0
    while not gone.done() and sent < 64 << 20:
        with contextlib.suppress(ConnectionError):
            writer.write(b" " * 65_536)
            await writer.drain()
        sent += 65_536
        await asyncio.wait({gone}, timeout=0.001)
    assert (await gone).startswith((b"HTTP/1.1 413", b""))
    assert sent < 64 << 20
    writer.close()


async def test_too_many_connections_are_told_so(
    postgres: EmbeddedPostgres, blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503, which an agent takes for "try again"; when one has gone the next is served."""
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 4)
    db = await PostgresDb.open(postgres.url, pool_size=1)
    async with serving(db, blobs, TaskSignal(), Health(time.monotonic())) as url, AsyncExitStack() as stack:
        idle = [await _connect(url) for _ in range(3)]
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{url}/healthz")).text == "Service Unavailable"
        idle.pop()[1].close()
        async with asyncio.timeout(DEADLINE_S), httpx.AsyncClient() as client:
            while (await client.get(f"{url}/healthz")).text == "Service Unavailable":
                await asyncio.sleep(0.01)
        for _, writer in idle:
            stack.callback(writer.close)
    await db.close()
