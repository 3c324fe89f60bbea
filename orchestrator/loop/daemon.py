"""The loop of one process: its timers, its lease, and its end. tick.py runs one tick.

APScheduler owns the timers: the lease (every LEAD_EVERY_S), the tick (every ORCHESTRATOR_POLL_SEC, every TRANSITION_S
while a worker starts or ends, at once on a NOTIFY), log shipping and retention. A standby only asks for the lease,
every second, on its only connection. On SIGTERM, the loop makes no new decision, finishes its writes (at most
SETTLE_S), releases the lease, and leaves the pods running.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from orchestrator.core.actions import Plan
from orchestrator.core.model import Snapshot
from orchestrator.core.plan import plan
from orchestrator.core.policy import Policy
from orchestrator.loop.execute import Executor
from orchestrator.loop.hooks import NO_HOOKS, Hooks
from orchestrator.loop.housekeeping import Housekeeping
from orchestrator.loop.jobs import ONE_AT_A_TIME, JobTimers
from orchestrator.loop.leadership import Leadership
from orchestrator.loop.observe import Observer
from orchestrator.loop.runtime import Runtime
from orchestrator.loop.tick import Tick
from orchestrator.pods.provider_cache import Catalog
from orchestrator.ports import LEAD_EVERY_S, NotLeader, PortError, Unavailable
from orchestrator.worker_logs.schedule import EVERY_S as SHIP_EVERY_S
from orchestrator.worker_logs.schedule import LogSchedule
from orchestrator.worker_logs.shipper import Shipper

TRANSITION_S = 2.0
SET_BACK_S = 1.0  # a larger step back than clock slewing causes in LEAD_EVERY_S
TICK_GAP_S = 0.05  # the least pause between two ticks, so that a burst of wake-ups causes one tick
TICK_PAUSE_FACTOR = 3.0  # times the last tick's duration, up to TRANSITION_S: short ticks use at most a quarter
RETENTION_CHECK_S = 60.0  # between two checks whether retention is due; the database stores when it last ran
RETENTION_FIRST_S = 10.0  # after the begin of leadership, so that a process that is replaced often runs it too
MAINTAIN_EVERY_S = 1.0
COUNT_EVERY_S = 10.0  # how often finished tasks are counted; Prometheus asks every 15 s or more
CATALOG_EVERY_S = 60.0  # how often it is checked whether prices and volumes must be read again
PROBE_CHECK_S = 2.0  # how often the need for a probe of the object store is checked
TICK_NOTE_S = 300.0  # for how long a failed tick stays noted in the database
SETTLE_S = 0.6  # a standby leads at most 1 s after SIGTERM; the next leader finds what was cut off
CLOSE_S = 0.2  # for the listening connection to close
log = structlog.get_logger()


class Daemon:
    """One orchestrator process."""

    def __init__(
        self,
        runtime: Runtime,
        observer: Observer,
        executor: Executor,
        *,
        catalog: Catalog,
        shipper: Shipper,
        hooks: Hooks = NO_HOOKS,
        planner: Callable[[Snapshot, Policy], Plan] = plan,
    ) -> None:
        """Connect the wake-ups of the observer and the executor to the tick."""
        self._store, self._policy = runtime.store, runtime.policy
        self._health, self._metrics = runtime.health, runtime.metrics
        self._runtime, self._hooks = runtime, hooks
        self._observer, self._executor, self._catalog = observer, executor, catalog
        observer.wake = executor.wake = self.wake
        self._leadership = Leadership(runtime, observer)
        self._log_schedule = LogSchedule(runtime.store, shipper, self.wake)
        self._housekeeping = Housekeeping(runtime, hooks.on_retention)
        self._tick = Tick(
            runtime, observer, executor, on_plan=hooks.on_plan, planner=planner, is_stopping=lambda: self._stopping
        )
        self._scheduler = AsyncIOScheduler(timezone=UTC)
        self._jobs = JobTimers(hooks.jobs, self._scheduler, self._term)
        self._listening: asyncio.Task[None] | None = None  # only a leader listens
        self._stopping = False
        self._no_tick_runs = asyncio.Event()  # no tick runs
        self._no_tick_runs.set()
        self._woken = False
        self._failure_noted = False  # the database knows that ticks fail
        self._next_tick_from = datetime.now(UTC)  # the next tick is not earlier

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""
        async with self._timers():
            await self._until(stop)
            self._stopping = True
            self._health.stops()
            self._metrics.set_role("stopping")
            self._log_schedule.stop()
            self._executor.stop_bringups()
            left_s = await self._finish_tick(SETTLE_S)
        listening = self._stop_listening()
        await self._executor.settle(left_s)
        await self._leadership.resign()
        if listening is not None:
            await asyncio.wait({listening}, timeout=CLOSE_S)

    async def _until(self, stop: asyncio.Event) -> None:
        """Wait for `stop`.

        The timers use the wall clock. If it is set back, they would wait longer by that time, so they run at once.
        """
        while not stop.is_set():
            wall_s, steady_s = time.time(), time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAD_EVERY_S):
                    await stop.wait()
            back_s = (time.monotonic() - steady_s) - (time.time() - wall_s)
            if back_s > SET_BACK_S:
                log.warning("clock_set_back", message=f"this machine's clock was set back by {back_s:.0f} s")
                for job in self._scheduler.get_jobs():
                    job.modify(next_run_time=datetime.now(UTC))

    async def _finish_tick(self, timeout_s: float) -> float:
        """Let the running tick write its decisions. Return the rest of the time."""
        began_s = time.monotonic()
        with suppress(TimeoutError):  # a cut-off tick is like a crash, which the next leader handles
            async with asyncio.timeout(timeout_s):
                await self._no_tick_runs.wait()
        return max(0.0, timeout_s - (time.monotonic() - began_s))

    async def once(self) -> Plan | None:
        """Run one tick and wait for its actions. None if another orchestrator leads.

        Raises the database's error if it grants no lease.
        """
        await self._lead()
        if self._leadership.error:
            raise self._leadership.error
        term = self._leadership.term
        if term is None:
            return None
        await self._catalog.refresh()
        await self._housekeeping.maintain(term)
        made = await self._tick.run(term)
        await self._executor.settle(self._policy.flush_deadline_s)
        await self._store.resign(self._runtime.holder, term)
        return made

    def wake(self) -> None:
        """Start the next tick at once."""
        self._woken = True
        if not self._no_tick_runs.is_set() or self._stopping or not self._scheduler.running:
            return
        job = self._scheduler.get_job("tick")
        if job is not None:
            soon = max(datetime.now(UTC) + timedelta(seconds=TICK_GAP_S), self._next_tick_from)
            if job.next_run_time > soon:
                job.modify(next_run_time=soon)

    @asynccontextmanager
    async def _timers(self) -> AsyncIterator[None]:
        once, now = ONE_AT_A_TIME, datetime.now(UTC)
        lead = self._lead_and_wake
        self._scheduler.add_job(lead, "interval", seconds=LEAD_EVERY_S, id="lead", next_run_time=now, **once)
        self._scheduler.add_job(
            self._tick_if_leader, "interval", seconds=self._runtime.poll_s, id="tick", next_run_time=now, **once
        )
        self._scheduler.add_job(self._ship, "interval", seconds=SHIP_EVERY_S, **once)
        if probe := self._hooks.probe_store:
            every_s = PROBE_CHECK_S
            self._scheduler.add_job(probe, "interval", seconds=every_s, next_run_time=now, **once)
        self._scheduler.add_job(self._maintain, "interval", seconds=MAINTAIN_EVERY_S, **once)
        self._scheduler.add_job(self._count, "interval", seconds=COUNT_EVERY_S, **once)
        self._scheduler.add_job(self._retain, "interval", seconds=RETENTION_CHECK_S, id="retain", **once)
        self._jobs.add()
        if self._catalog.needed:
            refresh = self._refresh_catalog
            self._scheduler.add_job(refresh, "interval", seconds=CATALOG_EVERY_S, next_run_time=now, **once)
        self._scheduler.start()
        try:
            yield
        finally:
            self._scheduler.shutdown(wait=False)

    async def _listen(self) -> None:
        async for channel, payload in self._runtime.db.notifications():
            if not self._jobs.on_notification(channel):
                self._hooks.on_notify(channel, payload)
                self.wake()

    async def _lead_and_wake(self) -> None:
        before = self._leadership.term
        await self._lead()
        if self._leadership.term not in (None, before):
            self.wake()

    async def _lead(self) -> None:
        lease = await self._leadership.ask()
        if self._leadership.ask_again_s is not None and self._scheduler.running and not self._stopping:
            next_at = datetime.now(UTC) + timedelta(seconds=self._leadership.ask_again_s)
            self._scheduler.modify_job("lead", next_run_time=next_at)
        if lease is None:
            return
        if self._leadership.has_changed:
            self._observer.forget()
            self._executor.stop_bringups()
            log.info("lease_taken" if lease.leader else "lease_watched", term=lease.term, leader=lease.holder)
            await self._change_role(leads=lease.leader)
        if lease.leader:
            self._observer.note_answer()

    async def _change_role(self, *, leads: bool) -> None:
        """Open or close what only a leader uses: LISTEN, SSH, connections, jobs."""
        if not leads:
            self._log_schedule.stop()
            self._stop_listening()
        await self._hooks.on_lead(leads)
        if leads and self._scheduler.running and not self._stopping:
            self._stop_listening()
            self._listening = asyncio.create_task(self._listen(), name="listen")
            first_at = datetime.now(UTC) + timedelta(seconds=RETENTION_FIRST_S)
            self._scheduler.modify_job("retain", next_run_time=first_at)
            self._jobs.begin()

    def _stop_listening(self) -> asyncio.Task[None] | None:
        """Cancel the listening task, and return it."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
        return listening

    async def _tick_if_leader(self) -> None:
        self._health.ticked(time.monotonic())
        self._metrics.last_tick.set_to_current_time()
        term = self._leadership.term
        if self._stopping or term is None or self._leadership.is_over:
            return
        self._no_tick_runs.clear()
        self._woken = False
        try:
            await self._tick.run(term)
            self._health.recovered()
            if self._failure_noted:
                await self._note_tick(term, None)
        except Exception as error:
            self._health.failed(f"{type(error).__name__}: {error}")
            self._hooks.on_tick_failed(f"{type(error).__name__}: {error}")
            self._metrics.ticks.labels("aborted").inc()
            log.warning("tick_aborted", error=f"{type(error).__name__}: {error}")
            await self._note_tick(term, error)
            if not isinstance(error, PortError):
                raise  # a bug: it is logged with its traceback, and shown in the probes
        finally:
            self._no_tick_runs.set()
            self._schedule_next()

    async def _note_tick(self, term: int, error: Exception | None) -> None:
        """Record in the database why a tick failed, or that a tick succeeded again. Raises nothing."""
        if isinstance(error, Unavailable | NotLeader):
            return
        why = f"{type(error).__name__}: {error}" if error else None
        with suppress(PortError):
            await self._store.note_tick(term, why, for_s=TICK_NOTE_S)
            self._failure_noted = error is not None

    def _schedule_next(self) -> None:
        if self._stopping or not self._scheduler.running:
            return
        is_moving, poll_s = self._health.reason is not None or self._tick.is_moving, self._runtime.poll_s
        delay_s = TICK_GAP_S if self._woken else min(TRANSITION_S, poll_s) if is_moving else poll_s
        if self._tick.retry_s is not None:
            delay_s = min(delay_s, max(self._tick.retry_s, TRANSITION_S))
        now = datetime.now(UTC)
        self._next_tick_from = now + timedelta(seconds=min(self._tick.took_s * TICK_PAUSE_FACTOR, TRANSITION_S))
        next_at = max(now + timedelta(seconds=delay_s), self._next_tick_from)
        self._scheduler.modify_job("tick", next_run_time=next_at)

    def _term(self) -> int | None:
        """Return the term in which work may begin; None while this process does not lead, or ends."""
        return None if self._stopping else self._leadership.term

    async def _ship(self) -> None:
        if (term := self._term()) is not None:
            self._log_schedule.begin(term, self._tick.fleet, self._executor.in_flight)

    async def _refresh_catalog(self) -> None:
        if await self._catalog.refresh():
            self.wake()

    async def _maintain(self) -> None:
        if (term := self._term()) is not None:
            await self._housekeeping.maintain(term)

    async def _count(self) -> None:
        await self._housekeeping.count(None if self._stopping else self._leadership.lease)

    async def _retain(self) -> None:
        if (term := self._term()) is not None:
            await self._housekeeping.retain(term)
