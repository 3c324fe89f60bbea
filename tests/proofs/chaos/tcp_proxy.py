"""A TCP proxy on loopback whose line can be slow, swallow everything, refuse, or break at a chosen byte pattern."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

CHUNK_BYTES = 65_536


@dataclass(slots=True)
class Break:
    """The line breaks at the next message with this pattern: before it is passed on, or with its answer lost."""

    pattern: bytes
    after: bool
    struck: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class _Call:
    """One connection through the line."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    deaf: bool = False  # the answer to what was just passed on is not to arrive

    def abort(self) -> None:
        for writer in (self.client, self.server):
            writer.transport.abort()


class TcpProxy:
    """An async context manager; `port` is where clients are to come instead of the server's own."""

    def __init__(self, name: str, target_port: int) -> None:
        self.name = name
        self.port = 0
        self.delay_s = 0.0  # of each piece, in each direction
        self.shut = False  # hangs up on whoever comes
        self.breaks: Break | None = None
        self._target_port = target_port
        self._flows = asyncio.Event()  # cleared: a black hole; what is swallowed arrives when it ends, as packets do
        self._flows.set()
        self._calls: set[_Call] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        self.open()
        self.hang_up()

    def open(self) -> None:
        """As a line should be."""
        self.delay_s, self.shut, self.breaks = 0.0, False, None
        self._flows.set()

    def swallow(self) -> None:
        """Nothing arrives any more, in either direction, and nobody is told; until `open`."""
        self._flows.clear()

    def refuse(self) -> None:
        """Hang up on everybody, now and until `open`."""
        self.shut = True
        self.hang_up()

    def hang_up(self) -> None:
        """Cut every connection."""
        for call in list(self._calls):
            call.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flows.wait()
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        call = _Call(writer, back)
        if self.shut:
            call.abort()
            return
        self._calls.add(call)
        try:
            await asyncio.gather(self._ask(call, reader), self._answer(call, there))
        finally:
            self._calls.discard(call)

    async def _ask(self, call: _Call, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while chunk := await self._next(reader):
                breaks = self.breaks
                if breaks is not None and breaks.pattern in chunk:
                    self.breaks, call.deaf = None, True
                    breaks.struck.set()
                    if not breaks.after:
                        call.abort()
                        return
                call.server.write(chunk)
                await call.server.drain()
        call.server.close()

    async def _answer(self, call: _Call, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while chunk := await self._next(reader):
                if call.deaf:
                    call.abort()
                    return
                call.client.write(chunk)
                await call.client.drain()
        call.client.close()

    async def _next(self, reader: asyncio.StreamReader) -> bytes:
        chunk = await reader.read(CHUNK_BYTES)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self._flows.wait()
        return chunk
