"""A server or pooler that has no connection left is explained as that, and asked again until it has one."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orchestrator.adapters.connection_test import try_connection
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.errors import CONNECTION_LIMIT, from_port_error
from orchestrator.ports import TooManyConnections, Unavailable
from tests.db.conformance.builders import SOON_S

SSL_REQUEST = 80877103
FULL = [  # SQLSTATE, text: PostgreSQL, Supavisor (older and newer, session and transaction mode), PgBouncer
    ("53300", "sorry, too many clients already"),
    ("53300", "remaining connection slots are reserved for roles with the SUPERUSER attribute"),
    ("53300", 'too many connections for role "orchestrator"'),
    ("XX000", "MaxClientsInSessionMode: max clients reached - in Session mode max clients are limited to pool_size"),
    ("XX000", "(EMAXCONNSESSION) max clients reached in session mode - max clients are limited to pool_size: 15"),
    ("XX000", "Max client connections reached"),
    ("08P01", "no more connections allowed (max_client_conn)"),
]


class Refusing:
    """A server that answers each start of a session with one error, until it is told to forward sessions."""

    def __init__(self, code: str, text: str) -> None:
        fields = b"".join(
            name + value.encode() + b"\0"
            for name, value in ((b"S", "FATAL"), (b"V", "FATAL"), (b"C", code), (b"M", text))
        )
        self._error = b"E" + struct.pack("!i", 4 + len(fields) + 1) + fields + b"\0"
        self.refused = 0
        self.behind: int | None = None  # the port of a server with room
        self._copying: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start = await self._start(reader, writer)
        if self.behind is None:
            self.refused += 1
            writer.write(self._error)
            await writer.drain()
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self.behind)
        back.write(start)
        for source, sink in ((reader, back), (there, writer)):
            copying = asyncio.create_task(_copy(source, sink))
            self._copying.add(copying)
            copying.add_done_callback(self._copying.discard)

    async def _start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        while True:
            head = await reader.readexactly(8)
            length, code = struct.unpack("!ii", head)
            rest = await reader.readexactly(length - 8)
            if code != SSL_REQUEST:
                return head + rest
            writer.write(b"N")


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
    sink.close()


@asynccontextmanager
async def refusing(code: str, text: str, database: str = "orchestrator") -> AsyncIterator[tuple[Refusing, str]]:
    pooler = Refusing(code, text)
    server = await asyncio.start_server(pooler.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield pooler, f"postgresql://postgres:hunter2@127.0.0.1:{port}/{database}?sslmode=disable"
    server.close()


@pytest.mark.parametrize(("code", "text"), FULL, ids=[text[:24] for _, text in FULL])
async def test_a_full_pooler_is_not_reported_as_a_wrong_password(
    code: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service's calls and a command's first look name the limit, with what to do about it."""
    monkeypatch.setattr("orchestrator.adapters.postgres.POOL_SHARE", 0.1)  # the rest is for the look at the cause
    async with refusing(code, text) as (_, url):
        with pytest.raises(TooManyConnections, match="no connection left"):
            await try_connection(url)
        db = await PostgresDb.open(url, pool_size=1, call_timeout_s=5)
        with pytest.raises(TooManyConnections, match="no connection left") as refused:
            await db.call("fleet_describe")
        await db.close()
    shown = from_port_error(refused.value)
    assert shown.kind is CONNECTION_LIMIT
    assert text in shown.why
    assert "pool size" in shown.fix
    assert "DATABASE_URL to a user" not in str(refused.value)


async def test_a_full_pooler_is_asked_again_until_it_has_room(database: str) -> None:
    """A redeploy meets the old process's connections; they go, and the new process works without a restart."""
    async with refusing(*FULL[4], database.rpartition("/")[2]) as (pooler, url):
        db = await PostgresDb.open(url, pool_size=1, call_timeout_s=5)
        with pytest.raises(TooManyConnections):
            await db.call("fleet_describe")
        pooler.behind = int(database.rpartition(":")[2].partition("/")[0])
        async with asyncio.timeout(SOON_S):
            while True:
                try:
                    assert (await db.call("fleet_describe"))["functions"]
                    break
                except Unavailable:  # the pool's own pause between two tries
                    continue
        assert pooler.refused > 0
        await db.close()
