"""How the leader reaches the members of clusters: by the rows of the last tick, over the shared SSH connections."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from orchestrator.core.model import Worker
from orchestrator.ports import Session, SessionPool, Unavailable

CONNECT_S = 8.0


@dataclass(frozen=True, slots=True)
class Members:
    """The pods of members. Only a worker's own row has its transport address and its pinned host key."""

    sessions: SessionPool
    worker: Callable[[str], Worker | None]  # worker id -> its live row in the last tick

    @contextlib.asynccontextmanager
    async def session(self, worker_id: str) -> AsyncIterator[Session]:
        """Return a session with a member's pod. Raises the errors of `Shell.connect`, and Unavailable without a row."""
        worker = self.worker(worker_id)
        if worker is None:
            raise Unavailable(f"no live row of {worker_id} in the last tick")
        async with self.sessions.session(worker, timeout_s=CONNECT_S) as session:
            yield session
