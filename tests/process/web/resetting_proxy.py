"""A TCP proxy that resets its connections each time that so many bytes have gone up through it."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

BLOCK_BYTES = 64 << 10


@dataclass
class ResettingProxy:
    """What passed, and how often it was cut."""

    port_behind: int
    every_bytes: int
    up_bytes: int = 0
    down_every_bytes: int = 1 << 60  # the same for what comes down
    down_bytes: int = 0
    resets: int = 0
    port: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side closes it or it is reset."""
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", self.port_behind)
        self._open.add(writer)
        try:
            up = asyncio.create_task(self._up(reader, behind_writer))
            down = asyncio.create_task(self._down(behind_reader, writer))
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            for one in (up, down):
                one.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
        finally:
            self._open.discard(writer)
            behind_writer.transport.abort()
            writer.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while block := await reader.read(BLOCK_BYTES):
            before, self.up_bytes = self.up_bytes, self.up_bytes + len(block)
            if before // self.every_bytes != self.up_bytes // self.every_bytes:
                self._reset()
                return
            writer.write(block)
            await writer.drain()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while block := await reader.read(BLOCK_BYTES):
            before, self.down_bytes = self.down_bytes, self.down_bytes + len(block)
            if before // self.down_every_bytes != self.down_bytes // self.down_every_bytes:
                self._reset()
                return
            writer.write(block)
            await writer.drain()

    def _reset(self) -> None:
        self.resets += 1
        for writer in self._open:
            taken: socket.socket = writer.get_extra_info("socket")
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a RST
            writer.transport.abort()


@asynccontextmanager
async def resetting(port_behind: int, every_bytes: int) -> AsyncIterator[ResettingProxy]:
    """A proxy before this port."""
    proxy = ResettingProxy(port_behind, every_bytes)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    async with server:
        yield proxy
