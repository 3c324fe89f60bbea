"""What one caller may cost before the door knows who it is."""

import asyncio
import contextlib
import time
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.requests import Request

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.observability.health import Health
from orchestrator.web import connections, limits
from orchestrator.web.wakeups import TaskSignal
from orchestrator.worker_tokens import mint
from testbed.services.postgres import EmbeddedPostgres
from tests.process.web.builders import DEADLINE_S, SECRET, Door, serving
from worker import protocol

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


async def test_idle_strangers_keep_nobody_out(
    postgres: EmbeddedPostgres, blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The house is full: the stranger that has been idle longest goes, and a worker's connections stay."""
    monkeypatch.setattr(connections, "MAX_STRANGERS", 4)
    db = await PostgresDb.open(postgres.url, pool_size=1)
    headers = {"Authorization": f"Bearer {mint(SECRET, 'gpu-1', 'j', time.time(), 60)}"}
    path = f"/rest/v1/rpc/{protocol.CLAIM}"
    async with (
        serving(db, blobs, TaskSignal(), Health(time.monotonic())) as url,
        httpx.AsyncClient(base_url=url, headers=headers) as worker,
    ):
        assert (await worker.post(path, json={})).status_code == 404  # answered: it is known from now on
        idle = [await _connect(url) for _ in range(20)]
        gone = asyncio.gather(*(_all(reader) for reader, _ in idle[:15]))
        assert await gone == [b""] * 15
        async with httpx.AsyncClient() as probe:
            assert (await probe.get(f"{url}/healthz")).status_code == 200
        (kept,) = worker._transport._pool.connections  # type: ignore[attr-defined]
        assert kept.is_idle()
        assert (await worker.post(path, json={})).status_code == 404
        for _, writer in idle:
            writer.close()
    await db.close()


@pytest.mark.parametrize(("hops", "left"), [(0, 2), (1, 6)])
async def test_an_address_has_its_share_unless_it_is_a_proxys(
    postgres: EmbeddedPostgres, blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch, hops: int, left: int
) -> None:
    """Behind a proxy everybody comes from one address."""
    monkeypatch.setattr(connections, "MAX_PER_ADDRESS", 2)
    opened = connections.Connections(hops)
    made = [Guest(("192.0.2.1", port), opened) for port in range(6)]
    for guest in made:
        opened.opened(guest)
    assert sum(not guest.gone for guest in made) == left
    assert not made[-1].gone


class Guest:
    """A connection that is idle."""

    busy = False

    def __init__(self, peer: connections.Peer, home: connections.Connections) -> None:
        self.peer, self._home = peer, home
        self.gone = self.is_known = False

    def know(self) -> None:
        """A worker's."""
        self.is_known = True

    def hang_up(self) -> None:
        """Closed."""
        self.gone = True
        self._home.closed(self)


def test_a_worker_is_counted_by_its_token_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many workers behind one address do not crowd each other out; one with too many connections loses its oldest."""
    monkeypatch.setattr(connections, "MAX_PER_ADDRESS", 2)
    monkeypatch.setattr(connections, "MAX_PER_TOKEN", 3)
    opened = connections.Connections()
    made = [Guest(("192.0.2.1", port), opened) for port in range(12)]
    for number, guest in enumerate(made):
        opened.opened(guest)
        opened.known(guest.peer, f"token-{number % 3}")
    assert [guest.gone for guest in made] == [True] * 3 + [False] * 9
    assert all(guest.is_known for guest in made)


@pytest.mark.parametrize(
    ("hops", "forwarded", "address"),
    [
        (0, "203.0.113.9", "192.0.2.1"),
        (1, "203.0.113.9", "203.0.113.9"),
        (1, "spoofed, 203.0.113.9", "203.0.113.9"),
        (2, "spoofed, 203.0.113.9, 10.0.0.1", "203.0.113.9"),
        (2, "203.0.113.9", "192.0.2.1"),
        (1, "", "192.0.2.1"),
    ],
)
def test_a_spoofed_address_does_not_help(hops: int, forwarded: str, address: str) -> None:
    """Each proxy appends; only what our own appended counts."""
    scope = {"type": "http", "client": ("192.0.2.1", 9), "headers": [(b"x-forwarded-for", forwarded.encode())]}
    assert connections.Connections(hops).address(Request(scope)) == address


async def test_a_stranger_that_keeps_asking_is_told_to_stop(door: Door) -> None:
    """429 for its address, while a worker at the same address is served."""
    worker = await door.worker()
    path, statuses = f"/rest/v1/rpc/{protocol.CLAIM}", []
    replies = await asyncio.gather(*(door.client.post(path, headers={"Authorization": "x"}) for _ in range(200)))
    statuses = [reply.status_code for reply in replies]
    assert set(statuses) == {401, 429}
    assert (await worker.call(protocol.HEARTBEAT, p_tasks=[], p_health={}, p_logs={})).status_code == 200


async def test_a_strangers_connection_closes_soon(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an answer; a worker's stays for its next heartbeat."""
    monkeypatch.setattr(limits, "STRANGER_KEEP_ALIVE_S", 0.2)
    worker = await door.worker()
    reader, writer = await _connect(str(door.client.base_url))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await _all(reader)).startswith(b"HTTP/1.1 ")
    writer.close()
    reader, writer = await _connect(str(door.client.base_url))
    writer.write(REQUEST + f"Authorization: Bearer {worker.token}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
    await reader.readuntil(b"\r\n\r\n")
    ended = asyncio.create_task(_all(reader))
    await asyncio.wait({ended}, timeout=0.6)
    assert not ended.done()
    ended.cancel()
    writer.close()
