"""A relay on loopback that cuts connections at a chosen moment, or answers in the server's place."""

import asyncio
from types import TracebackType
from typing import Literal, Self

CHUNK_BYTES = 65_536


class Relay:
    """Between a client and a server; an async context manager.

    `cut = "before"`: what the client says next does not reach the server, and the connection ends. `cut = "after"`: it
    does, and the connection ends when the server has answered, with the answer. `canned`: the answers to the next
    requests, which do not reach the server either.
    """

    def __init__(self, host: str, port: int, *, at: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._target = (host, port)
        self._at = at
        self.cut: Literal["before", "after"] | None = None
        self.canned: list[bytes] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, *self._at)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        try:
            done, rest = await asyncio.wait(
                {
                    asyncio.create_task(self._requests(reader, writer, up_writer)),
                    asyncio.create_task(self._answers(up_reader, writer)),
                },
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in rest:
                task.cancel()
            await asyncio.gather(*done, *rest, return_exceptions=True)
        finally:
            writer.close()
            up_writer.close()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, up_writer: asyncio.StreamWriter
    ) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            if self.cut == "before":
                self.cut = None
                return
            if self.canned and b"\r\n\r\n" in chunk:
                writer.write(self.canned.pop(0))
                await writer.drain()
                return
            up_writer.write(chunk)
            await up_writer.drain()

    async def _answers(self, up_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await up_reader.read(CHUNK_BYTES):
            if self.cut == "after":
                self.cut = None
                return
            writer.write(chunk)
            await writer.drain()


def answer(status: str, body: str, kind: str = "application/json") -> bytes:
    """A whole HTTP response that ends its connection."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body.encode())}\r\nConnection: close\r\n"
    return f"{head}\r\n{body}".encode()
