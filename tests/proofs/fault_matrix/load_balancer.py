"""One address for several orchestrators, as a platform's load balancer gives: who answers /healthz gets connections."""

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import httpx

from testbed.services.plain_http import NO_TLS
from testbed.tasks import ended

LOOK_EVERY_S = 0.5
LOOK_TIMEOUT_S = 1.0
CHUNK_BYTES = 65_536


class LoadBalancer:
    """Forwards each connection to one of the healthy backends in turn; with none, it hangs up."""

    def __init__(self, port: int, backends: Sequence[int]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._port, self._backends = port, tuple(backends)
        self._healthy = frozenset(backends)
        self._turn = itertools.count()
        self._watch: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._is_cut = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._watch = asyncio.create_task(self._look())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            await ended(self._watch)
        if self._server is not None:
            self._server.close()

    def cut(self) -> None:
        """Hang up on every connection, and on every new one until `mend`."""
        self._is_cut = True
        for writer in self._connections:
            writer.transport.abort()

    def mend(self) -> None:
        """Forward connections again."""
        self._is_cut = False

    async def _look(self) -> None:
        async with httpx.AsyncClient(timeout=LOOK_TIMEOUT_S, trust_env=False, verify=NO_TLS) as client:
            while True:
                answers = await asyncio.gather(*(self._answers(client, port) for port in self._backends))
                self._healthy = frozenset(port for port, up in zip(self._backends, answers, strict=True) if up)
                await asyncio.sleep(LOOK_EVERY_S)

    async def _answers(self, client: httpx.AsyncClient, port: int) -> bool:
        try:
            return (await client.get(f"http://127.0.0.1:{port}/healthz")).is_success
        except httpx.TransportError:
            return False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        healthy = () if self._is_cut else sorted(self._healthy)
        self._connections.add(writer)
        with contextlib.suppress(OSError):
            if healthy:
                port = healthy[next(self._turn) % len(healthy)]
                there, back = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(_copy(reader, back), _copy(there, writer))
        self._connections.discard(writer)
        writer.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await source.read(CHUNK_BYTES):
            sink.write(chunk)
            await sink.drain()
    sink.close()
