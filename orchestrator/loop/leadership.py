"""The lease of one process: request it, renew it, release it.

The database grants the lease for LEASE_TTL_S and numbers each grant with a term, the fencing token of every write. A
process that was stopped for longer than the lease sees by its own clock that the lease may have expired.
"""

import asyncio
import time

import structlog

from orchestrator.loop.observe import Observer
from orchestrator.loop.runtime import Runtime
from orchestrator.ports import LEASE_TTL_S, Lease, PortError

LEAD_AGAIN_S = 1.0  # between two requests of a standby, which does not listen for notifications
LEAD_RETRY_S = (0.5, 1.0, 2.0)  # after the first failed request, the second, and all later ones
RESIGN_S = 1.0  # without an answer by then, the lease expires by itself
log = structlog.get_logger()


class Leadership:
    """Whether this process leads, and in which term."""

    def __init__(self, runtime: Runtime, observer: Observer) -> None:
        self._runtime, self._observer = runtime, observer
        self.lease: Lease | None = None  # the last answer, also if another process leads
        self.has_changed = False  # the last answer has another leader or another term
        self.error: PortError | None = None  # why the last request got no lease
        self.ask_again_s: float | None = None  # earlier than the timer
        self._answered_at_s = time.monotonic()
        self._unanswered = 0  # requests in a row

    @property
    def term(self) -> int | None:
        """Return the term in which this process leads, by the last answer. None if another process leads."""
        return self.lease.term if self.lease and self.lease.leader else None

    @property
    def is_over(self) -> bool:
        """Whether the lease has expired by this process's own clock, for example after a suspension."""
        return time.monotonic() - self._answered_at_s > LEASE_TTL_S

    async def ask(self) -> Lease | None:
        """Request or renew the lease. None if the database does not answer. Raises nothing."""
        health, before = self._runtime.health, self.lease
        try:
            lease = await self._runtime.store.lead(self._runtime.holder, LEASE_TTL_S)
        except PortError as error:
            self.error = error
            self._observer.gap()
            health.failed(f"database: {error}")
            log.warning("lease_unanswered", error=f"{type(error).__name__}: {error}")
            # After an outage, ask early: the first answer keeps this lease, or takes an expired one.
            self.ask_again_s = LEAD_RETRY_S[min(self._unanswered, len(LEAD_RETRY_S) - 1)]
            self._unanswered += 1
            return None
        if self.is_over:
            self._observer.gap()
        self._unanswered, self._answered_at_s, self.lease, self.error = 0, time.monotonic(), lease, None
        if lease.leader:
            health.leads(lease.term, lease.holder)
        else:
            health.stands_by(lease.term, lease.holder)
        self.ask_again_s = None if lease.leader else LEAD_AGAIN_S
        self._runtime.metrics.set_role(health.role)
        self.has_changed = before is None or (before.leader, before.term) != (lease.leader, lease.term)
        return lease

    async def resign(self) -> None:
        """Release the lease, so that the next leader need not wait for its expiry. Raises nothing."""
        if self.term is None:
            return
        try:
            async with asyncio.timeout(RESIGN_S):
                await self._runtime.store.resign(self._runtime.holder, self.term)
        except (PortError, TimeoutError) as error:
            log.warning("lease_kept", message=f"the lease will expire by itself: {error}")
