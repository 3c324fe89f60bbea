"""One SSH connection per worker, shared by bring-up and log shipping, and made again after a loss."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from orchestrator.core.model import Worker
from orchestrator.ports import Session, Shell, Unavailable


@dataclass(slots=True)
class _PooledSession:
    """The connection to one worker."""

    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)
    session: Session | None = None
    address: tuple[str, int] | None = None
    pinned: str | None = None  # the first key that this process saw, if the caller's row is older than the pin


class SshPool:
    """One SSH connection to each worker.

    This process trusts the host key of the first contact; bring-up writes it to the row.
    """

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._sessions: defaultdict[str, _PooledSession] = defaultdict(_PooledSession)
        self._are_open = True

    @contextlib.asynccontextmanager
    async def session(self, worker: Worker, *, timeout_s: float) -> AsyncIterator[Session]:
        """Return a live session; connect within `timeout_s` if there is none. Raises the errors of `Shell.connect`."""
        pooled = self._sessions[worker.id]
        async with pooled.connecting:
            session = await self._live(pooled, worker, timeout_s)
        try:
            yield session
        except Unavailable:
            # The fault may be this connection's: the next caller gets a new one.
            if pooled.session is session:
                pooled.session = None
                await session.close()
            raise

    async def drop(self, worker_id: str) -> None:
        """Close the connection of a worker that has ended, and forget the worker."""
        pooled = self._sessions.pop(worker_id, None)
        if pooled is not None and pooled.session is not None:
            await pooled.session.close()

    def open(self) -> None:
        """Allow connections again."""
        self._are_open = True

    async def close(self) -> None:
        """Close all connections, and make none until `open`, because another process may lead now."""
        self._are_open = False
        await asyncio.gather(*(self.drop(worker_id) for worker_id in tuple(self._sessions)))

    async def _live(self, pooled: _PooledSession, worker: Worker, timeout_s: float) -> Session:
        if worker.ssh_host is None or worker.ssh_port is None:
            raise Unavailable(f"{worker.id} has no SSH address yet")
        self._check_open()
        address = (worker.ssh_host, worker.ssh_port)
        if pooled.session is not None and (pooled.session.closed or pooled.address != address):
            await pooled.session.close()
            pooled.session = None
        if pooled.session is None:
            pinned = worker.host_key or pooled.pinned
            session = await self._shell.connect(
                *address, pinned=pinned, timeout_s=timeout_s, user=worker.metadata.ssh_user
            )
            if not self._are_open:  # the pool was closed while this connected
                await session.close()
            self._check_open()
            pooled.session, pooled.address, pooled.pinned = session, address, session.host_key
        return pooled.session

    def _check_open(self) -> None:
        if not self._are_open:
            raise Unavailable("this process holds no SSH connections: it does not lead")
