"""A TCP proxy that can delay, stall, refuse or break connections, or answer in place of the server."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

CHUNK_BYTES = 65_536


@dataclass(slots=True)
class Break:
    """Breaks a connection at the n-th message with this pattern: before it is passed on, or at its answer."""

    pattern: bytes
    after: bool
    message: int = 1
    answered: bytes = b""  # bytes near the end of the last piece of the answer; empty: the first piece is enough
    happened: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class _Call:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    loses_answer: Break | None = None  # the answer to the message that was just passed on is dropped

    def abort(self) -> None:
        for writer in (self.client, self.server):
            writer.transport.abort()


class TcpProxy:
    """An async context manager. Clients connect to `port` in place of the server's own."""

    def __init__(self, target_port: int, *, name: str = "", at: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.name = name
        self.port = 0
        self.delay_s = 0.0  # of each piece, in each direction
        self.shut = False  # closes every new connection
        self.breaks: Break | None = None
        self.canned: list[bytes] = []  # answers to the next HTTP requests, which do not reach the server
        self.messages = 0  # of clients
        self._target_port, self._at = target_port, at
        self._flows = (
            asyncio.Event()
        )  # cleared: the proxy stalls; waiting data arrives when the stall ends, as packets do
        self._flows.set()
        self._calls: set[_Call] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, *self._at)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        self.open()
        self.cut()

    def open(self) -> None:
        """Pass everything on: no delay, no stall, no refusal, no break."""
        self.delay_s, self.shut, self.breaks = 0.0, False, None
        self._flows.set()

    def stall(self) -> None:
        """Hold all data in both directions back without closing connections, until `open`."""
        self._flows.clear()

    def refuse(self) -> None:
        """Close every connection, present and new, until `open`."""
        self.shut = True
        self.cut()

    def cut(self) -> None:
        """Cut every present connection."""
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
                self.messages += 1
                if self.canned and b"\r\n\r\n" in chunk:
                    call.client.write(self.canned.pop(0))
                    call.client.close()
                    break
                breaks = self._breaks(chunk)
                if breaks is not None and not breaks.after:
                    breaks.happened.set()
                    call.abort()
                    return
                call.loses_answer = breaks or call.loses_answer
                call.server.write(chunk)
                await call.server.drain()
        call.server.close()

    def _breaks(self, chunk: bytes) -> Break | None:
        breaks = self.breaks
        if breaks is None or breaks.pattern not in chunk:
            return None
        breaks.message -= 1
        if breaks.message > 0:
            return None
        self.breaks = None
        return breaks

    async def _answer(self, call: _Call, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while chunk := await self._next(reader):
                if call.loses_answer is None:
                    call.client.write(chunk)
                    await call.client.drain()
                elif call.loses_answer.answered in chunk[-len(call.loses_answer.answered) - 1 :]:
                    call.loses_answer.happened.set()
                    call.abort()
                    return
        call.client.close()

    async def _next(self, reader: asyncio.StreamReader) -> bytes:
        chunk = await reader.read(CHUNK_BYTES)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self._flows.wait()
        return chunk
