"""Whose logs are fetched when: every few seconds, of each worker whose agent may have written; seldom of quiet ones."""

import asyncio
import contextlib
import time
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import partial

import structlog

from orchestrator.core.model import LOGS_LATE, Worker
from orchestrator.core.states import READY, Stage, State
from orchestrator.ports import PortError, Store
from orchestrator.shipping import Shipper

EVERY_S = 4.0  # with one upload's time this keeps the delay of a log line under 10 s
QUIET_S = 8.0  # for an idle worker, whose agent writes a line now and then …
QUIET_PER_S = 40  # … and longer in a fleet so large that looking for it would be work
DEADLINE_S = 60.0  # of one shipment
CONCURRENT = 16
WRITING = frozenset({Stage.PROCESS, Stage.HEARTBEAT, Stage.PROMOTED, Stage.DRAINING})  # an agent may be at it
log = structlog.get_logger()


class LogRounds:
    """The shipments under way."""

    def __init__(self, store: Store, shipper: Shipper) -> None:
        self._store, self._shipper = store, shipper
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._looked: dict[str, tuple[datetime, float]] = {}  # when its state, and its last shipment, began
        self._late: dict[str, str] = {}  # worker id -> what its row says of its logs, "" for nothing
        self._gate = asyncio.Semaphore(CONCURRENT)

    def begin(self, term: int, fleet: Sequence[Worker], in_flight: Collection[str]) -> None:
        """Begin a shipment for every worker that may have new bytes and has none under way."""
        here = {worker.id for worker in fleet}
        self._looked = {name: look for name, look in self._looked.items() if name in here}
        self._late = {name: kind for name, kind in self._late.items() if name in here}
        quiet_s = max(QUIET_S, len(fleet) / QUIET_PER_S)
        for worker in fleet:
            due = worker.nonce and worker.stage in WRITING and worker.id not in in_flight
            if due and worker.id not in self._under_way and self._may_have_written(worker, quiet_s):
                task = asyncio.create_task(self._ship(term, worker), name=f"ship:{worker.id}")
                self._under_way[worker.id] = task
                task.add_done_callback(partial(self._done, worker.id))

    def stop(self) -> None:
        """Give up what is under way; the next leader goes on from the ledger."""
        for shipment in self._under_way.values():
            shipment.cancel()

    def _may_have_written(self, worker: Worker, quiet_s: float) -> bool:
        """Whether its logs are worth a look: seldom where one was begun since its last task ended."""
        now_s, (since, at_s) = time.monotonic(), self._looked.get(worker.id, (None, 0.0))
        quiet = worker.state is State.IDLE and not worker.own_program and since == worker.state_since
        if quiet and now_s - at_s < quiet_s:
            return False
        self._looked[worker.id] = (worker.state_since, now_s)
        return True

    def _done(self, worker_id: str, _: asyncio.Task[None]) -> None:
        self._under_way.pop(worker_id, None)

    async def _ship(self, term: int, worker: Worker) -> None:
        try:
            async with self._gate, asyncio.timeout(DEADLINE_S):
                await self._shipper.ship(term, worker)
        except (PortError, TimeoutError) as error:
            why = f"{type(error).__name__}: {error}"[:300]
            log.info("logs_delayed", worker=worker.id, error=why)
            await self._say_late(term, worker, why)
        else:
            await self._say_late(term, worker, None)

    async def _say_late(self, term: int, worker: Worker, why: str | None) -> None:
        """In the row of a ready worker, that its logs are late, and that they are no longer: once for each kind."""
        kind, told = (why or "").partition(":")[0], str(worker.metadata.get(LOGS_LATE) or "").partition(":")[0]
        if self._late.get(worker.id, told) == kind:
            return
        reason = f"its logs are late: {why}" if why else "its logs arrive again"
        with contextlib.suppress(PortError):  # it ends, or nobody can be told
            await self._store.move(
                term, worker.id, from_states=sorted(READY), reason=reason, fields={"metadata": {LOGS_LATE: why}}
            )
            self._late[worker.id] = kind
