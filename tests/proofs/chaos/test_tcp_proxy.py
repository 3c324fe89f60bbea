"""The line that harms are done to is itself a line: what it promises to break it breaks, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from testbed.tcp_proxy import Break, TcpProxy

PATIENCE_S = 30.0
SILENCE_S = 0.2


class Echo:
    """A server that answers what it hears, and remembers it."""

    def __init__(self) -> None:
        self.heard = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1024):
            self.heard += chunk
            writer.write(chunk)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def reached() -> AsyncIterator[tuple[Echo, TcpProxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    """An echo behind a line, and a connection to it through the line."""
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with server, TcpProxy(server.sockets[0].getsockname()[1]) as line, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
        yield echo, line, reader, writer
        writer.close()


async def ends(reader: asyncio.StreamReader) -> bool:
    """Whether the next thing that is heard is the end, a reset included."""
    try:
        return await reader.read(100) == b""
    except ConnectionError:
        return True


async def test_a_good_line_passes_everything_on() -> None:
    """In both directions."""
    async with reached() as (_, _, reader, writer):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"


@pytest.mark.parametrize("after", [False, True])
async def test_it_breaks_at_a_pattern(after: bool) -> None:
    """Before the message arrives, or after it with the answer lost; the next connection is whole again."""
    async with reached() as (echo, line, reader, writer):
        breaks = line.breaks = Break(b"complete", after)
        writer.write(b"claim")
        assert await reader.readexactly(5) == b"claim"
        writer.write(b"complete 7")
        assert await ends(reader)
        assert breaks.happened.is_set()
        assert echo.heard == (b"claimcomplete 7" if after else b"claim")
        reader_again, writer_again = await asyncio.open_connection("127.0.0.1", line.port)
        writer_again.write(b"complete 7")
        assert await reader_again.readexactly(10) == b"complete 7"
        writer_again.close()


async def test_what_was_swallowed_arrives_late() -> None:
    """As packets do that were on their way."""
    async with reached() as (echo, line, reader, writer):
        line.swallow()
        writer.write(b"late")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SILENCE_S):
                await reader.read(100)
        assert echo.heard == b""
        line.open()
        assert await reader.readexactly(4) == b"late"


async def test_a_line_that_refuses_hangs_up_on_everybody() -> None:
    """On who is there and on who comes."""
    async with reached() as (_, line, reader, _):
        line.refuse()
        for one in (reader, (await asyncio.open_connection("127.0.0.1", line.port))[0]):
            assert await ends(one)
