"""The TCP proxy of the chaos test breaks what it promises to break, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from testbed.tcp_proxy import Break, TcpProxy

PATIENCE_S = 30.0
SILENCE_S = 0.2


class Echo:
    """A server that answers with what it received, and remembers it."""

    def __init__(self) -> None:
        self.received = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1024):
            self.received += chunk
            writer.write(chunk)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def reached() -> AsyncIterator[tuple[Echo, TcpProxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    """An echo server behind a proxy, and a connection to it through the proxy."""
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with server, TcpProxy(server.sockets[0].getsockname()[1]) as proxy, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        yield echo, proxy, reader, writer
        writer.close()


async def ends(reader: asyncio.StreamReader) -> bool:
    """Whether the connection ends next, by its end or a reset."""
    try:
        return await reader.read(100) == b""
    except ConnectionError:
        return True


async def test_an_open_proxy_passes_everything_on_in_both_directions() -> None:
    async with reached() as (_, _, reader, writer):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"


@pytest.mark.parametrize("after", [False, True])
async def test_it_breaks_at_a_pattern(after: bool) -> None:
    """Before the message arrives, or afterwards with the answer lost. The next connection works."""
    async with reached() as (echo, proxy, reader, writer):
        breaks = proxy.breaks = Break(b"complete", after)
        writer.write(b"claim")
        assert await reader.readexactly(5) == b"claim"
        writer.write(b"complete 7")
        assert await ends(reader)
        assert breaks.happened.is_set()
        assert echo.received == (b"claimcomplete 7" if after else b"claim")
        reader_again, writer_again = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer_again.write(b"complete 7")
        assert await reader_again.readexactly(10) == b"complete 7"
        writer_again.close()


async def test_data_of_a_stalled_connection_arrives_late() -> None:
    """Like packets that were delayed in a network."""
    async with reached() as (echo, proxy, reader, writer):
        proxy.stall()
        writer.write(b"late")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SILENCE_S):
                await reader.read(100)
        assert echo.received == b""
        proxy.open()
        assert await reader.readexactly(4) == b"late"


async def test_a_refusing_proxy_closes_present_and_new_connections() -> None:
    async with reached() as (_, proxy, reader, _):
        proxy.refuse()
        for one in (reader, (await asyncio.open_connection("127.0.0.1", proxy.port))[0]):
            assert await ends(one)
