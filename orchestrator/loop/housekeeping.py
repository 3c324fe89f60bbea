"""Periodic work of the leader on the database's rows: maintain the queue, count finished tasks, delete old rows."""

from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from orchestrator.loop.runtime import Runtime
from orchestrator.ports import Lease, PortError

log = structlog.get_logger()


class Housekeeping:
    """Maintains the queue, counts finished tasks for the metrics, and deletes old rows."""

    def __init__(self, runtime: Runtime, on_retention: Callable[[], Awaitable[None]] | None) -> None:
        """`on_retention` is called after old rows were deleted."""
        self._store, self._metrics, self._on_retention = runtime.store, runtime.metrics, on_retention
        self._days = runtime.policy.retention_days
        self._failure: str | None = None  # of the last maintenance: an outage is logged once, not each second
        self._counted_to: datetime | None = None  # finished tasks are counted up to this time, in this term

    async def maintain(self, term: int) -> None:
        """Make due tasks ready, publish what could not be published, and look again at what was locked."""
        failure = None
        try:
            await self._store.maintain(term)
        except PortError as error:
            failure = f"{type(error).__name__}: {error}"
        if failure and failure != self._failure:
            log.warning("maintenance_failed", error=failure)
        self._failure = failure

    async def count(self, lease: Lease | None) -> None:
        """Count the tasks that finished since the last count, or since this process leads.

        Without a lease, the next count begins again.
        """
        if lease is None or not lease.leader:
            self._counted_to = None
            return
        try:
            row = await self._store.metrics(self._counted_to or lease.since)
        except PortError as error:
            log.info("metrics_delayed", error=f"{type(error).__name__}: {error}")
            return
        self._metrics.counted(row)
        self._counted_to = row["until"]

    async def retain(self, term: int) -> None:
        """Delete old rows, if that is due: the database stores when it was last done."""
        try:
            deleted = await self._store.retention(term, self._days)
        except PortError as error:
            log.warning("retention_failed", error=f"{type(error).__name__}: {error}")
            return
        if deleted is not None:
            log.info("rows_retained", deleted=dict(deleted))
            if self._on_retention:
                await self._on_retention()
