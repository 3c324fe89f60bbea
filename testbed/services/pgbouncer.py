"""PgBouncer in front of a PostgreSQL, on loopback: Debian's package, installed or unpacked (`debian.py`)."""

import asyncio
import os
import signal
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from testbed.services import debian
from testbed.services.child_process import ChildProcess
from testbed.services.free_port import free_port

PROGRAM = "pgbouncer"  # also the name of the package
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.02
UNPRIVILEGED = "nobody"  # it refuses to run as root
Mode = Literal["statement", "transaction", "session"]
CONFIGURATION = """
[databases]
* = host={host} port={port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
{user}
"""


class PgBouncer:
    """One pooler; an async context manager. `size` connections to the server serve all clients of a database."""

    def __init__(self, behind: str, mode: Mode, *, size: int = 4) -> None:
        self._behind, self._mode, self._size = conninfo_to_dict(behind), mode, size
        self._port = free_port()
        self._place = tempfile.TemporaryDirectory(prefix="orchestrator-pgbouncer-")
        self._server: ChildProcess | None = None

    @property
    def url(self) -> str:
        """The database behind it, as a client of the pooler sees it."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/{self._behind['dbname']}"

    async def __aenter__(self) -> Self:
        directory = Path(self._place.name)
        directory.chmod(0o755)
        configuration = directory / "pgbouncer.ini"
        text = CONFIGURATION.format(
            host=self._behind["host"],
            port=self._behind["port"],
            listen=self._port,
            mode=self._mode,
            size=self._size,
            user=f"user = {UNPRIVILEGED}" if os.geteuid() == 0 else "",
        )
        configuration.write_text(text)
        found = debian.find(PROGRAM, PROGRAM)
        if found is None:
            raise debian.NotInstalled(debian.lacking(PROGRAM, PROGRAM))
        self._server = ChildProcess(
            [str(found.path), str(configuration)], directory / "log", env=os.environ | found.environment
        )
        try:
            await self._until_it_answers()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _until_it_answers(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(make_conninfo(self.url), connect_timeout=5)
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._server is None or self._server.pid is None:
                    raise
                await asyncio.sleep(POLL_S)
            else:
                await connection.close()
                return

    async def _end(self) -> None:
        if self._server is not None:
            await self._server.end(signal.SIGTERM, STOP_TIMEOUT_S)
        self._place.cleanup()
