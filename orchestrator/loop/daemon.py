"""The loop: lead, observe, plan, record, execute. Level-triggered; a missed tick is harmless.

APScheduler owns the timers: the lease (every LEAD_EVERY_S), the tick (every ORCHESTRATOR_POLL_SEC, every TRANSITION_S
while somebody is coming or going, at once on a NOTIFY), log shipping and retention. A standby does nothing but ask for
the lease, every second and on its only connection. SIGTERM: no new decisions, finish the writes at hand (at most
SETTLE_S), give the lease back, leave the pods alone.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from orchestrator.core.actions import Plan
from orchestrator.core.model import Policy, Snapshot, Worker
from orchestrator.core.plan import in_transition, plan
from orchestrator.loop.decisions import DecisionRecorder
from orchestrator.loop.execute import Executor
from orchestrator.loop.leadership import Leadership
from orchestrator.loop.observe import Observer
from orchestrator.loop.runtime import Runtime
from orchestrator.outputs import Answers
from orchestrator.pods.provider_cache import Catalog
from orchestrator.ports import ASKS_CHANNEL, LEAD_EVERY_S, PortError
from orchestrator.worker_logs.schedule import EVERY_S as SHIP_EVERY_S
from orchestrator.worker_logs.schedule import LogSchedule
from orchestrator.worker_logs.shipper import Shipper

TRANSITION_S = 2.0
SET_BACK_S = 1.0  # what a clock is slewed by in LEAD_EVERY_S is far less
TICK_GAP_S = 0.05  # at least, between two ticks, so that a burst of wake-ups costs one
TICK_REST = 3.0  # times the last tick's own time between two: at most a quarter of this process is the loop
ANSWER_EVERY_S = 1.0  # where no notification says that a pod has asked
RETENTION_CHECK_S = 60.0  # between two questions whether retention is due: the database keeps when it was done
RETENTION_FIRST_S = 10.0  # after a lead begins, so that a process that is replaced often does it too
COUNT_EVERY_S = 10.0  # how often what tasks went through is counted; Prometheus asks every 15 s or more
CATALOG_EVERY_S = 60.0  # how often it is looked whether the hourly answers are due
LOOK_AT_STORE_S = 2.0  # how often it is looked whether the object store has to be asked
HOLD_S, HOLD_AGAIN_S = 60.0, 20.0  # for how long claims are held at once, and how often that is said again
SETTLE_S = 0.6  # SIGTERM to a standby's lead takes at most 1 s; what is cut off here is found by the next leader
LAST_WORDS_S = 0.2  # for the listening connection to close
log = structlog.get_logger()


async def _nothing(_leads: bool) -> None:
    """Nothing more is opened for a leader."""


def _ignore(_channel: str, _payload: str) -> None:
    """Nobody else listens to notifications."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a process does besides the loop, at the loop's moments."""

    on_notify: Callable[[str, str], object] = _ignore  # a notification of the database: channel, payload
    on_lead: Callable[[bool], Awaitable[None]] = _nothing  # this process begins to lead, or learns that it does not
    look_at_store: Callable[[], Awaitable[None]] | None = None  # asks the object store whether it answers
    answers: Answers | None = None  # answers pods that speak to PostgREST; None if all speak to our gateway


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
        hooks: Hooks = Hooks(),
        think: Callable[[Snapshot, Policy], Plan] = plan,
    ) -> None:
        """Wire the observer's and the executor's wake-ups to the tick."""
        self._store, self._policy = runtime.store, runtime.policy
        self._health, self._metrics = runtime.health, runtime.metrics
        self._runtime, self._hooks, self._think = runtime, hooks, think
        self._observer, self._executor, self._catalog = observer, executor, catalog
        observer.wake = executor.wake = self.wake
        self._leadership = Leadership(runtime, observer)
        self._log_schedule, self._decisions = (
            LogSchedule(runtime.store, shipper, self.wake),
            DecisionRecorder(runtime.store),
        )
        self._scheduler = AsyncIOScheduler(timezone=UTC)
        self._answering = False
        self._listening: asyncio.Task[None] | None = None  # only a leader listens
        self._claims_held: tuple[int, float] | None = None  # the term in which claims were held, and when last
        self._claims_freed: int | None = None  # the term in which it was last said that they are not
        self._counted_to: datetime | None = None  # until when finished tasks are counted, in this term
        self._declared: int | None = None  # the term in which the pools were declared
        self._fleet: tuple[Worker, ...] = ()
        self._stopping = False
        self._at_rest = asyncio.Event()  # no tick is under way
        self._at_rest.set()
        self._woken = False
        self._tick_s = 0.0  # how long the last tick took
        self._rested_at = datetime.now(UTC)  # the next one is not before that
        self._moving = False
        self._retry_s: float | None = None  # until something that is blocked may go on

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set."""
        async with self._timers():
            await self._until(stop)
            self._stopping = True
            self._health.stops()
            self._metrics.plays("stopping")
            self._log_schedule.stop()
            self._executor.stop_bringups()
            left_s = await self._finish_tick(SETTLE_S)
        listening = self._stop_listening()
        await self._executor.settle(left_s)
        await self._leadership.resign()
        if listening is not None:
            await asyncio.wait({listening}, timeout=LAST_WORDS_S)

    async def _until(self, stop: asyncio.Event) -> None:
        """Wait for `stop`. Timers go by the wall clock: where it is set back, they would wait for as long."""
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
        """Let the tick under way write what it has decided; how much of the time is left then."""
        began_s = time.monotonic()
        with suppress(TimeoutError):  # cut off, it is as if this process had crashed
            async with asyncio.timeout(timeout_s):
                await self._at_rest.wait()
        return max(0.0, timeout_s - (time.monotonic() - began_s))

    async def once(self) -> Plan | None:
        """One tick with all its effects finished; None if another orchestrator leads."""
        await self._lead()
        term = self._leadership.term
        if term is None:
            return None
        await self._catalog.refresh()
        made = await self._tick_as_leader(term)
        await self._executor.settle(self._policy.flush_deadline_s)
        await self._store.resign(self._runtime.holder, term)
        return made

    def wake(self) -> None:
        """Let the next tick come at once."""
        self._woken = True
        if not self._at_rest.is_set() or self._stopping or not self._scheduler.running:
            return
        job = self._scheduler.get_job("tick")
        if job is not None:
            soon = max(datetime.now(UTC) + timedelta(seconds=TICK_GAP_S), self._rested_at)
            if job.next_run_time > soon:
                job.modify(next_run_time=soon)

    @asynccontextmanager
    async def _timers(self) -> AsyncIterator[None]:
        once = {"max_instances": 1, "coalesce": True, "misfire_grace_time": None}
        now = datetime.now(UTC)
        lead = self._lead_and_wake
        self._scheduler.add_job(lead, "interval", seconds=LEAD_EVERY_S, id="lead", next_run_time=now, **once)
        self._scheduler.add_job(
            self._tick, "interval", seconds=self._runtime.poll_s, id="tick", next_run_time=now, **once
        )
        self._scheduler.add_job(self._ship, "interval", seconds=SHIP_EVERY_S, **once)
        if look := self._hooks.look_at_store:
            every_s = LOOK_AT_STORE_S
            self._scheduler.add_job(look, "interval", seconds=every_s, next_run_time=now, **once)
        self._scheduler.add_job(self._count, "interval", seconds=COUNT_EVERY_S, **once)
        self._scheduler.add_job(self._retain, "interval", seconds=RETENTION_CHECK_S, id="retain", **once)
        if self._hooks.answers:
            self._scheduler.add_job(self._answer, "interval", seconds=ANSWER_EVERY_S, id="answer", **once)
        if self._catalog.needed:
            self._scheduler.add_job(self._look_up, "interval", seconds=CATALOG_EVERY_S, next_run_time=now, **once)
        self._scheduler.start()
        try:
            yield
        finally:
            self._scheduler.shutdown(wait=False)

    async def _listen(self) -> None:
        async for channel, payload in self._runtime.db.notifications():
            if channel == ASKS_CHANNEL:
                self._answer_soon()
                continue
            self._hooks.on_notify(channel, payload)
            self.wake()

    # --- pods that ask

    def _answer_soon(self) -> None:
        if self._hooks.answers and self._scheduler.running and not (self._answering or self._stopping):
            self._scheduler.modify_job("answer", next_run_time=datetime.now(UTC))

    async def _answer(self) -> None:
        answers, term = self._hooks.answers, self._leadership.term
        if answers is None or self._stopping or term is None:
            return
        self._answering = True
        try:
            await answers.give(term)
        except PortError as error:
            log.warning("asks_unanswered", error=f"{type(error).__name__}: {error}")
        finally:
            self._answering = False

    # --- lead

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
            await self._begin_part(leads=lease.leader)
        if lease.leader:
            self._observer.heard()

    async def _begin_part(self, *, leads: bool) -> None:
        """Open what only a leader needs (LISTEN, SSH, connections), or close it."""
        if not leads:
            self._log_schedule.stop()
            self._stop_listening()
        await self._hooks.on_lead(leads)
        if leads and self._scheduler.running and not self._stopping:
            self._stop_listening()
            self._listening = asyncio.create_task(self._listen(), name="listen")
            first_at = datetime.now(UTC) + timedelta(seconds=RETENTION_FIRST_S)
            self._scheduler.modify_job("retain", next_run_time=first_at)

    def _stop_listening(self) -> asyncio.Task[None] | None:
        """The task that ends now, if there is one."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
        return listening

    # --- tick

    async def _tick(self) -> None:
        self._health.ticked(time.monotonic())
        self._metrics.last_tick.set_to_current_time()
        term = self._leadership.term
        if self._stopping or term is None or self._leadership.is_over:
            return
        self._at_rest.clear()
        self._woken = False
        try:
            await self._tick_as_leader(term)
            self._health.recovered()
        except Exception as error:
            self._health.failed(f"{type(error).__name__}: {error}")
            self._metrics.ticks.labels("aborted").inc()
            log.warning("tick_aborted", error=f"{type(error).__name__}: {error}")
            if not isinstance(error, PortError):
                raise  # a mistake of ours: with its traceback, and yet in the probes like any other
        finally:
            self._at_rest.set()
            self._schedule_next()

    def _schedule_next(self) -> None:
        if self._stopping or not self._scheduler.running:
            return
        moving, poll_s = self._health.reason is not None or self._moving, self._runtime.poll_s
        delay_s = TICK_GAP_S if self._woken else min(TRANSITION_S, poll_s) if moving else poll_s
        if self._retry_s is not None:
            delay_s = min(delay_s, max(self._retry_s, TRANSITION_S))
        now = datetime.now(UTC)
        self._rested_at = now + timedelta(seconds=min(self._tick_s * TICK_REST, TRANSITION_S))
        next_at = max(now + timedelta(seconds=delay_s), self._rested_at)
        self._scheduler.modify_job("tick", next_run_time=next_at)

    async def _tick_as_leader(self, term: int) -> Plan:
        began_s = time.monotonic()
        if self._declared != term:
            await self._store.declare_pools(term, self._policy.task_types)
            programs = [pool.name for pool in self._policy.pools if self._policy.own_program]
            await self._store.declare_programs(term, programs, self._policy.task_stuck_s)
            releases = {pool.name: self._policy.release(pool) for pool in self._policy.pools}
            await self._store.declare_release(term, releases, self._policy.handled)
            self._declared = term
        self._health.stepped()
        snapshot = await self._observer.observe(self._executor.in_flight, self._executor.bringing_up)
        self._health.stepped()
        observe_s = time.monotonic() - began_s
        self._moving = in_transition(snapshot)
        self._fleet = snapshot.workers
        if snapshot.pods is not None:
            self._runtime.latest.pods.update(snapshot.pods)
        self._runtime.latest.workers.update(snapshot.workers)
        made = self._think(snapshot, self._policy)
        waits = ((v.retry_at - snapshot.now).total_seconds() for v in made.decisions if v.retry_at)
        self._retry_s = min(waits, default=None)
        if not self._stopping:
            await self._hold_claims(term, snapshot)
            await self._decisions.record(term, snapshot, made)
            self._health.stepped()
            await self._executor.start(term, snapshot, made.actions)
        self._tick_s = time.monotonic() - began_s
        self._decisions.sum_up(snapshot, made, tick_s=self._tick_s, observe_s=observe_s)
        self._metrics.saw(snapshot, made, self._policy, self._tick_s)
        return made

    async def _hold_claims(self, term: int, snapshot: Snapshot) -> None:
        """Let the database know while the store is away, and once when it is not: what it heard from us lapses."""
        if snapshot.store_away is not None:
            held_term, held_s = self._claims_held or (None, 0.0)
            if held_term != term or time.monotonic() - held_s >= HOLD_AGAIN_S:
                log.warning("store_away", message=snapshot.store_away.why, since=snapshot.store_away.since.isoformat())
                await self._store.hold_claims(term, snapshot.store_away, for_s=HOLD_S)
                self._claims_held, self._claims_freed = (term, time.monotonic()), None
        elif self._claims_freed != term and self._observer.knows_the_store:
            await self._store.hold_claims(term, None, for_s=HOLD_S)
            self._claims_held, self._claims_freed = None, term

    # --- logs and rows

    async def _ship(self) -> None:
        term = self._leadership.term
        if not self._stopping and term is not None:
            self._log_schedule.begin(term, self._fleet, self._executor.in_flight)

    async def _look_up(self) -> None:
        if await self._catalog.refresh():
            self.wake()

    async def _count(self) -> None:
        """Tell the metrics what tasks went through since the last time, or since we lead."""
        lease = self._leadership.lease
        if self._stopping or lease is None or not lease.leader:
            self._counted_to = None
            return
        try:
            row = await self._store.metrics(self._counted_to or lease.since)
        except PortError as error:
            log.info("metrics_delayed", error=f"{type(error).__name__}: {error}")
            return
        self._metrics.counted(row)
        self._counted_to = row["until"]

    async def _retain(self) -> None:
        term = self._leadership.term
        if self._stopping or term is None:
            return
        try:
            deleted = await self._store.retention(term)
        except PortError as error:
            log.warning("retention_failed", error=f"{type(error).__name__}: {error}")
            return
        if deleted is not None:
            log.info("rows_retained", deleted=dict(deleted))
