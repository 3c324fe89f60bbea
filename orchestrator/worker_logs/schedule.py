"""When each worker's logs are shipped: every few seconds if its agent may have written, rarely if it is quiet."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import structlog

from orchestrator.core.failures import FailureCode
from orchestrator.core.model import Worker
from orchestrator.core.states import READY, Stage, State
from orchestrator.core.worker_metadata import metadata
from orchestrator.ports import HostKeyChanged, PortError, StageAttempt, Store
from orchestrator.worker_logs.budget import Round
from orchestrator.worker_logs.shipper import Shipper

EVERY_S = 4.0  # with one upload's time this keeps the delay of a log line under 10 s
QUIET_S = 8.0  # for an idle worker, whose agent writes a line now and then …
QUIET_PER_S = 10  # … and longer in a large fleet, where checking all would take too long; heartbeats report new bytes
DEADLINE_S = 60.0  # of one shipment
CONCURRENT = 16
FREE_WAIT_S = 3.0  # that a pod's answers may take in one round; for each second more …
PAUSE_FACTOR = 3.0  # … the worker pauses so many: a pod that answers slowly or never holds a small part of one shipment
WRITING = frozenset({Stage.PROCESS, Stage.HEARTBEAT, Stage.PROMOTED, Stage.DRAINING})  # an agent may write logs
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Shipment:
    """A shipment that began."""

    at_s: float
    seen: tuple[datetime, Mapping[str, Any]]  # since when the worker was in its state, and its logs' sizes by its row


class LogSchedule:
    """The running shipments."""

    def __init__(self, store: Store, shipper: Shipper, on_late: Callable[[], object] = lambda: None) -> None:
        """`on_late` is called when a worker's logs begin to be late: the provider's list may show the cause."""
        self._store, self._shipper, self._on_late = store, shipper, on_late
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._shipments: dict[str, _Shipment] = {}
        self._late: dict[str, str] = {}  # worker id -> the kind of lateness in its row, "" for none
        self._paused_until: dict[str, float] = {}  # worker id -> time.monotonic()
        self._gate = asyncio.Semaphore(CONCURRENT)

    def begin(self, term: int, fleet: Sequence[Worker], in_flight: Collection[str]) -> None:
        """Begin a shipment for every worker that may have new bytes and has none under way."""
        here = {worker.id for worker in fleet}
        self._shipments = {name: one for name, one in self._shipments.items() if name in here}
        self._late = {name: kind for name, kind in self._late.items() if name in here}
        now_s = time.monotonic()
        self._paused_until = {name: at_s for name, at_s in self._paused_until.items() if name in here and at_s > now_s}
        quiet_s = max(QUIET_S, len(fleet) / QUIET_PER_S)
        for worker in fleet:
            due = worker.nonce and worker.stage in WRITING and worker.id not in in_flight
            waits = worker.id in self._under_way or worker.id in self._paused_until
            if due and not waits and self._may_have_written(worker, quiet_s):
                task = asyncio.create_task(self._ship(term, worker), name=f"ship:{worker.id}")
                self._under_way[worker.id] = task
                task.add_done_callback(partial(self._done, worker.id))

    def stop(self) -> None:
        """Cancel the running shipments. The next leader continues from the ledger."""
        for shipment in self._under_way.values():
            shipment.cancel()

    def _may_have_written(self, worker: Worker, quiet_s: float) -> bool:
        """Whether to ship its logs: rarely while it is idle and its heartbeats report no more bytes."""
        now = _Shipment(time.monotonic(), (worker.state_since, worker.log_bytes))
        last = self._shipments.get(worker.id)
        quiet = last and last.seen == now.seen and worker.state is State.IDLE and not worker.own_program
        if last and quiet and now.at_s - last.at_s < quiet_s:
            return False
        self._shipments[worker.id] = now
        return True

    def _done(self, worker_id: str, _: asyncio.Task[None]) -> None:
        self._under_way.pop(worker_id, None)

    async def _ship(self, term: int, worker: Worker) -> None:
        turn = Round()
        try:
            try:
                async with self._gate, asyncio.timeout(DEADLINE_S):
                    await self._shipper.ship(term, worker, turn)
            finally:
                pause_s = PAUSE_FACTOR * max(0.0, turn.waited_s - FREE_WAIT_S)
                self._paused_until[worker.id] = time.monotonic() + pause_s
        except (PortError, TimeoutError) as error:
            why = f"{type(error).__name__}: {error}"[:300]
            log.info("logs_delayed", worker=worker.id, error=why)
            if await self._record_lateness(term, worker, why):
                self._on_late()
                if isinstance(error, HostKeyChanged):
                    await self._record_changed_host(term, worker, str(error))
        else:
            await self._record_lateness(term, worker, None)

    async def _record_changed_host(self, term: int, worker: Worker, text: str) -> None:
        """Record a failed ssh_auth attempt: another machine answers at the worker's address.

        The worker may still run.
        """
        log.warning("host_key_changed", worker=worker.id, error=text)
        refused = StageAttempt("failed", FailureCode.HOST_KEY_CHANGED, HostKeyChanged.__name__, {"error": text[:300]})
        with contextlib.suppress(PortError):  # the row already names the cause
            attempt = await self._store.open_attempt(term, worker.id, Stage.SSH_AUTH)
            await self._store.close_attempt(term, attempt, refused)

    async def _record_lateness(self, term: int, worker: Worker, why: str | None) -> bool:
        """Record in the row of a ready worker that its logs are late, or no longer late: once for each kind."""
        kind, known = (why or "").partition(":")[0], (worker.metadata.logs_late or "").partition(":")[0]
        if self._late.get(worker.id, known) == kind:
            return False
        reason = f"its logs are late: {why}" if why else "its logs arrive again"
        with contextlib.suppress(PortError):  # the worker ends, or the database is unreachable
            await self._store.move(
                term, worker.id, from_states=sorted(READY), reason=reason, fields={"metadata": metadata(logs_late=why)}
            )
            self._late[worker.id] = kind
            return True
        return False
