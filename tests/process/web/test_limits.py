"""What one caller may cost before the gateway knows who it is."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from starlette.requests import Request

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.observability.health import Health
from orchestrator.web import connections, limits
from orchestrator.web.token_buckets import Rate
from orchestrator.web.wakeups import WakeupHub
from orchestrator.worker_tokens import mint
from testbed.shared_services import Database
from tests.process.web.builders import DEADLINE_S, SECRET, ServerUnderTest, serving
from worker import protocol

REQUEST = b"POST /rest/v1/rpc/worker_claim HTTP/1.1\r\nHost: x\r\n"


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def _all(reader: asyncio.StreamReader) -> bytes:
    """Return what the other side sends until it closes the connection."""
    async with asyncio.timeout(DEADLINE_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def test_an_endless_head_is_cut_off(gateway: ServerUnderTest) -> None:
    """431, and the connection is gone; others are served."""
    reader, writer = await _connect(str(gateway.client.base_url))
    writer.write(REQUEST)
    try:
        for number in range(limits.MAX_HEAD_BYTES // 1_000 + 2):
            writer.write(f"X-{number}: ".encode() + b"x" * 1_000 + b"\r\n")
            await writer.drain()
    except ConnectionError:
        pass
    assert (await _all(reader)).startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))  # 400: another parser's own limit
    writer.close()
    assert (await gateway.client.get("/healthz")).status_code in {200, 503}


@pytest.mark.parametrize("sent", [b"", REQUEST], ids=["nothing", "half a head"])
async def test_a_connection_with_an_unfinished_head_is_closed(
    gateway: ServerUnderTest, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """A drop now and then buys no more time."""
    monkeypatch.setattr(limits, "HEAD_TIMEOUT_S", 0.3)
    began = time.monotonic()
    reader, writer = await _connect(str(gateway.client.base_url))
    writer.write(sent)
    gone = asyncio.create_task(_all(reader))
    while sent and not gone.done() and time.monotonic() - began < DEADLINE_S:
        writer.write(b"X: 1\r\n")
        await asyncio.wait({gone}, timeout=0.05)
    await gone
    assert time.monotonic() - began > 0.2  # _all has an upper bound
    writer.close()


async def test_the_rest_of_a_refused_body_is_not_read(gateway: ServerUnderTest) -> None:
    """After the refusal what still comes is not read for long."""
    worker = await gateway.worker()
    reader, writer = await _connect(str(gateway.client.base_url))
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


async def test_idle_outsiders_keep_no_worker_out(
    postgres: Database, blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server is full, the outsider that was idle longest loses its connection, and no worker does."""
    monkeypatch.setattr(connections, "MAX_ANONYMOUS", 4)
    db = await PostgresDb.open(postgres.url, pool_size=1)
    headers = {"Authorization": f"Bearer {mint(SECRET, 'gpu-1', 'j', time.time(), 60)}"}
    path = f"/rest/v1/rpc/{protocol.CLAIM}"
    async with (
        serving(db, blobs, WakeupHub(), Health(time.monotonic())) as url,
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
    postgres: Database, blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch, hops: int, left: int
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

    def mark_known(self) -> None:
        """A worker's."""
        self.is_known = True

    def close_now(self) -> None:
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


async def test_an_outsider_that_keeps_asking_is_refused_with_429(gateway: ServerUnderTest) -> None:
    """429 for its address, while a worker at the same address is served."""
    worker = await gateway.worker()
    path = f"/rest/v1/rpc/{protocol.CLAIM}"
    asked = (gateway.client.post(path, headers={"Authorization": "x"}) for _ in range(200))
    replies = await asyncio.gather(*asked, return_exceptions=True)  # a connection that is slow to ask is closed
    assert {reply.status_code for reply in replies if isinstance(reply, httpx.Response)} == {401, 429}
    assert all(isinstance(reply, httpx.Response | httpx.RemoteProtocolError) for reply in replies)
    assert (await worker.call(protocol.HEARTBEAT, p_tasks=[], p_health={}, p_logs={})).status_code == 200


async def test_the_connection_of_an_outsider_closes_soon(
    gateway: ServerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an answer; a worker's stays for its next heartbeat."""
    monkeypatch.setattr(limits, "ANONYMOUS_KEEP_ALIVE_S", 0.2)
    worker = await gateway.worker()
    reader, writer = await _connect(str(gateway.client.base_url))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await _all(reader)).startswith(b"HTTP/1.1 ")
    writer.close()
    reader, writer = await _connect(str(gateway.client.base_url))
    writer.write(REQUEST + f"Authorization: Bearer {worker.token}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
    await reader.readuntil(b"\r\n\r\n")
    ended = asyncio.create_task(_all(reader))
    await asyncio.wait({ended}, timeout=0.6)
    assert not ended.done()
    ended.cancel()
    writer.close()


PIPELINED = b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_one_request_of_a_read_is_answered_and_the_connection_closes() -> None:
    """No client of ours sends the next request before it has read the answer; others are served at once."""
    parsed = 0

    class Counting(limits.BoundedProtocol):
        callers = connections.Connections()

        def on_url(self, url: bytes) -> None:
            nonlocal parsed
            parsed += 1
            super().on_url(url)

    async with _server(Counting) as url:
        reader, writer = await _connect(url)
        writer.write(PIPELINED * 1_000)
        answers = await _all(reader)
    assert answers.count(b"HTTP/1.1 404") == 1
    assert b"connection: close" in answers.lower()
    assert parsed == 1
    writer.close()


async def test_a_request_before_the_answer_to_the_last_one_is_not_read(gateway: ServerUnderTest) -> None:
    """Also in a read of its own: the claim waits, is answered, and the connection closes."""
    worker = await gateway.worker()
    body = b'{"p_worker_id":"%s","p_nonce":"%s","p_claim_no":1,"p_batch":1,"p_wait_s":20}' % (
        worker.id.encode(), worker.nonce.encode(),
    )  # fmt: skip
    reader, writer = await _connect(str(gateway.client.base_url))
    head = f"Authorization: Bearer {worker.token}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    writer.write(REQUEST + head + body)
    await gateway.until(lambda: gateway.signal.waiting > 0)
    writer.write(REQUEST + head + body)
    await gateway.submit(worker.pool)  # what the claim waits for
    answers = await _all(reader)
    assert answers.count(b"HTTP/1.1 200") == answers.count(b"HTTP/1.1") == 1
    writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /a HTTP/1.1\r\n" + b"a:b\r\n" * 1_000 + b"\r\n",
        b"GET /" + b"a" * limits.MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n",
    ],
    ids=["lines", "path"],
)
async def test_a_head_in_one_read_is_bounded_too(gateway: ServerUnderTest, sent: bytes) -> None:
    """By its bytes and its lines, also when it is complete: each line costs a call."""
    reader, writer = await _connect(str(gateway.client.base_url))
    writer.write(sent)
    assert (await _all(reader)).startswith(b"HTTP/1.1 431")
    writer.close()


async def test_a_body_in_pieces_of_a_byte_is_cut_off(gateway: ServerUnderTest) -> None:
    """43,000 chunks fit into one read."""
    worker = await gateway.worker()
    reader, writer = await _connect(str(gateway.client.base_url))
    head = REQUEST + f"Authorization: Bearer {worker.token}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    writer.write(head + b"1\r\n \r\n" * 5_000 + b"0\r\n\r\n")
    assert b"HTTP/1.1 200" not in await _all(reader)
    writer.close()


async def test_a_connection_whose_answers_are_not_read_is_closed(
    gateway: ServerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers wait in a buffer of fixed size, and not for ever."""
    monkeypatch.setattr(limits, "ANSWER_TIMEOUT_S", 0.2)
    lost = asyncio.Event()

    class Watched(limits.BoundedProtocol):
        callers = connections.Connections()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not lost.is_set():
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})

    async with _server(Watched, endless) as url:
        _, writer = await _connect(url)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(DEADLINE_S):
            await lost.wait()
        writer.close()


@pytest.mark.parametrize("path", ["/nowhere", "/metrics", "/rest/v1/rpc/worker_claim"])
async def test_every_refusal_of_an_outsider_counts(
    postgres: Database, blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """429 and the end of its connection, whatever it asked for; a probe from the same address is answered."""
    monkeypatch.setattr(connections, "ANONYMOUS_REQUESTS", Rate(burst=4, per_s=0))
    monkeypatch.setattr(connections, "PROBE_REQUESTS", Rate(burst=4, per_s=0))
    db = await PostgresDb.open(postgres.url, pool_size=1)
    async with (
        serving(db, blobs, WakeupHub(), Health(time.monotonic())) as url,
        httpx.AsyncClient(base_url=url) as outsider,
    ):
        replies = [await outsider.post(path) for _ in range(6)]
        assert replies[0].status_code in {401, 404, 405}
        assert replies[-1].status_code == 429
        assert replies[-1].headers["connection"] == "close"
        probes = [await outsider.get("/healthz") for _ in range(6)]
        assert {probe.status_code for probe in probes} == {200}
        assert probes[-1].headers["connection"] == "close"
    await db.close()


@contextlib.asynccontextmanager
async def _server(protocol: type[limits.BoundedProtocol], app: Any = None) -> AsyncIterator[str]:
    """Any application behind a protocol."""

    async def nowhere(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(app or nowhere, "127.0.0.1", 0, http=protocol, ws="none", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    async with asyncio.timeout(DEADLINE_S):
        while not server.started:
            await asyncio.sleep(0.005)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = server.force_exit = True
    await running
