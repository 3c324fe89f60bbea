"""RunPod answers a byte now and then: no read ever times out, but every call ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version

import pytest
from urllib3.connection import HTTPConnection, HTTPSConnection

from orchestrator import ports
from orchestrator.adapters import http_deadline, runpod_logs, runpod_transport
from orchestrator.adapters.runpod import RunPodCloud

LIMIT_S, ANSWERED_S = 0.2, 10.0
SLOW: dict[str, tuple[str, bytes, bytes]] = {  # the scheme, what comes first, and what is repeated
    "the first line": ("http", b"HTTP/1.1 200 O", b"K"),
    "a header": ("http", b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
    "headers without end": ("http", b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
    "interim replies": ("http", b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "the body": ("http", b'HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n{"pods": [', b" "),
    "the TLS handshake": ("https", b"\x16\x03\x03\x40\x00", b"\x02"),
}


@contextlib.asynccontextmanager
async def slow_server(first: bytes, again: bytes) -> AsyncIterator[int]:
    """Its port."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(first)
            while True:
                writer.write(again)
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


CALLS: dict[str, Callable[[RunPodCloud], object]] = {
    "list": lambda cloud: cloud.list_pods(),
    "log": lambda cloud: cloud.pod_log("p0"),
    "delete": lambda cloud: cloud.delete_pod("p0"),
}


@pytest.mark.parametrize("slow", SLOW)
async def test_every_call_ends_however_slowly_the_reply_arrives(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight calls that hang would be all that the adapter makes at once."""
    monkeypatch.setattr(runpod_transport, "MAX_REPLY_S", LIMIT_S)
    monkeypatch.setattr(runpod_logs, "MAX_CALL_S", LIMIT_S)
    scheme, first, again = SLOW[slow]
    async with slow_server(first, again) as port:
        cloud = RunPodCloud("key", base_url=f"{scheme}://127.0.0.1:{port}", call_timeout_s=5)
        async with asyncio.timeout(ANSWERED_S):
            answers = await asyncio.gather(*(call(cloud) for call in CALLS.values()), return_exceptions=True)  # type: ignore[call-overload]
    for answer in answers:
        assert isinstance(answer, ports.Unavailable)
        assert "no answer in time (ReadTimeout)" in str(answer)  # and not: the call goes on, and is not waited for


async def test_urllib3_makes_its_connections_where_the_time_limit_watches_them() -> None:
    """By a method that urllib3 does not document. After an upgrade that renames it, calls would have no limit."""

    def watched(port: int) -> int:
        with http_deadline.response("GET", f"http://127.0.0.1:{port}", ANSWERED_S) as reply:
            reply.content  # noqa: B018  it is read
            limit = http_deadline._call.deadline
            return len(limit._connections) if limit else 0

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    why = f"urllib3 {version('urllib3')} makes its connections in another way: adapt adapters/http_deadline.py"
    for kind in (HTTPConnection, HTTPSConnection):
        assert callable(getattr(kind, "_new_conn", None)), why
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        assert await asyncio.to_thread(watched, server.sockets[0].getsockname()[1]) == 1, why
