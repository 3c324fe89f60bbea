"""One SSH connection per worker, shared by bring-up and shipping, re-made when it is gone."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from orchestrator.core.model import SSH_USER, Worker
from orchestrator.ports import Session, Shell, Unavailable


@dataclass(slots=True)
class _Line:
    """What is known of the way to one worker."""

    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)
    session: Session | None = None
    address: tuple[str, int] | None = None
    pinned: str | None = None  # the first key seen in this process, should the caller's row be older than the pin


class SshPool:
    """One SSH connection to each worker.

    The host key of the first contact holds for this process; bring-up writes it to the row.
    """

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._lines: defaultdict[str, _Line] = defaultdict(_Line)
        self._are_open = True

    @contextlib.asynccontextmanager
    async def session(self, worker: Worker, *, timeout_s: float) -> AsyncIterator[Session]:
        """A live session, made within `timeout_s` if there is none. What `Shell.connect` raises, this raises."""
        line = self._lines[worker.id]
        async with line.connecting:
            session = await self._live(line, worker, timeout_s)
        try:
            yield session
        except Unavailable:
            # Whatever did not answer may have been this connection: the next caller gets a new one.
            if line.session is session:
                line.session = None
                await session.close()
            raise

    async def drop(self, worker_id: str) -> None:
        """Hang up and forget a worker that will not come back."""
        line = self._lines.pop(worker_id, None)
        if line is not None and line.session is not None:
            await line.session.close()

    def open(self) -> None:
        """Connect again when asked to."""
        self._are_open = True

    async def close(self) -> None:
        """Hang up everywhere, and connect to nobody until `open`: another process may lead now."""
        self._are_open = False
        await asyncio.gather(*(self.drop(worker_id) for worker_id in tuple(self._lines)))

    async def _live(self, line: _Line, worker: Worker, timeout_s: float) -> Session:
        if worker.ssh_host is None or worker.ssh_port is None:
            raise Unavailable(f"{worker.id} has no SSH address yet")
        self._check_open()
        address = (worker.ssh_host, worker.ssh_port)
        if line.session is not None and (line.session.closed or line.address != address):
            await line.session.close()
            line.session = None
        if line.session is None:
            pinned = worker.host_key or line.pinned
            session = await self._shell.connect(
                *address, pinned=pinned, timeout_s=timeout_s, user=worker.metadata.get(SSH_USER)
            )
            if not self._are_open:  # closed while this connected
                await session.close()
            self._check_open()
            line.session, line.address, line.pinned = session, address, session.host_key
        return line.session

    def _check_open(self) -> None:
        if not self._are_open:
            raise Unavailable("this process holds no SSH connections: it does not lead")
