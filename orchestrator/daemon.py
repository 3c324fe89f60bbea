"""The loop: lead, observe, plan, record, execute. Level-triggered; a missed tick is harmless.

APScheduler owns the timers: the lease (every LEAD_EVERY_S), the tick (every ORCHESTRATOR_POLL_SEC, every TRANSITION_S
while somebody is coming or going, at once on a NOTIFY), log shipping and retention. A standby does nothing but ask for
the lease. SIGTERM: no new decisions, finish the write at hand, give the lease back, leave the pods alone.
"""

import asyncio
import contextlib
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from orchestrator import phrases
from orchestrator.bringup import PodView, WorkerView
from orchestrator.catalog import Catalog
from orchestrator.core.actions import Plan, Rescue, Spawn, Terminate, Verdict
from orchestrator.core.model import LOGS_LATE, Policy, Snapshot, Worker
from orchestrator.core.plan import in_transition, plan
from orchestrator.core.states import FAILURES, READY, Stage, State
from orchestrator.execute import Executor
from orchestrator.grants import Answers
from orchestrator.metrics import Metrics
from orchestrator.observe import Observer
from orchestrator.ports import LEAD_EVERY_S, LEASE_TTL_S, Db, Lease, PortError, Store
from orchestrator.shipping import Shipper
from orchestrator.web.health import Health
from orchestrator.web.signal import ASKS_CHANNEL

TRANSITION_S = 2.0
TICK_GAP_S = 0.05  # at least, between two ticks, so that a burst of wake-ups costs one
TICK_REST = 3.0  # times the last tick's own time between two: at most a quarter of this process is the loop
SHIP_EVERY_S = 4.0  # with one upload's time this keeps the delay of a log line under 10 s
QUIET_SHIP_S = 8.0  # for an idle worker, whose agent writes a line now and then …
QUIET_SHIPS_PER_S = 40  # … and longer in a fleet so large that looking for it would be work
SHIP_DEADLINE_S = 60.0
CONCURRENT_SHIPMENTS = 16
ANSWER_EVERY_S = 1.0  # where no notification says that a pod has asked
RETENTION_EVERY_S = 3600.0
CYCLE_SAID_EVERY_S = 30.0  # at least, although nothing was done: silence would look like death
COUNT_EVERY_S = 10.0  # how often what tasks went through is counted; Prometheus asks every 15 s or more
CATALOG_EVERY_S = 60.0  # how often it is looked whether the hourly answers are due
SHIPPING = frozenset({Stage.PROCESS, Stage.HEARTBEAT, Stage.PROMOTED, Stage.DRAINING})  # an agent may be writing
SETTLE_S = 0.6  # SIGTERM to a standby's lead takes at most 1 s; what is cut off here is found by the next leader
RESIGN_S = 1.0  # a database that is away is not waited for: the lease ends by itself
LAST_WORDS_S = 0.2  # for the listening connection to close
DIGITS = re.compile(r"\d+")  # a queue that shrinks by one is no new decision
log = structlog.get_logger()


class Daemon:
    """One orchestrator process."""

    def __init__(
        self,
        *,
        store: Store,
        db: Db,
        observer: Observer,
        catalog: Catalog,
        executor: Callable[[Callable[[], None]], Executor],
        shipper: Shipper,
        pods: PodView,
        workers: WorkerView,
        health: Health,
        metrics: Metrics,
        policy: Policy,
        poll_s: float,
        holder: str,
        on_notify: Callable[[str, str], object],
        think: Callable[[Snapshot, Policy], Plan] = plan,
        answers: Answers | None = None,
    ) -> None:
        self._store, self._db, self._observer, self._shipper = store, db, observer, shipper
        self._catalog = catalog
        self._pods, self._workers, self._health, self._policy = pods, workers, health, policy
        self._metrics = metrics
        self._counted_to: datetime | None = None  # until when, in this term, it is told what tasks went through
        self._poll_s, self._holder, self._on_notify = poll_s, holder, on_notify
        self._think = think
        self._answers = answers  # of pods that speak to PostgREST; None where all speak to our gateway
        self._answering = False
        self._executor = executor(self.wake)
        observer.wake = self.wake
        self._scheduler = AsyncIOScheduler(timezone=UTC)
        self._lease: Lease | None = None
        self._led_at_s = time.monotonic()  # when the lease was last answered for
        self._stopping = False
        self._ticking = False
        self._woken = False
        self._tick_s = 0.0  # how long the last tick took
        self._rested_at = datetime.now(UTC)  # the next one is not before that
        self._recorded: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._before: tuple[frozenset[str], frozenset[str]] | None = None  # ready and terminating at the last tick
        self._shipments: dict[str, asyncio.Task[None]] = {}
        self._looked: dict[str, tuple[datetime, float]] = {}  # when its state, and its last shipment, began
        self._late: dict[str, str] = {}  # worker id -> what its row says of its logs, "" for nothing
        self._ship_gate = asyncio.Semaphore(CONCURRENT_SHIPMENTS)
        self._moving = False
        self._retry_s: float | None = None  # until something that is blocked may go on
        self._declared: int | None = None  # the term in which the pools were declared
        self._fleet: tuple[Worker, ...] = ()
        self._said_at_s = -CYCLE_SAID_EVERY_S

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set."""
        listening = asyncio.create_task(self._listen(), name="listen")
        async with self._timers():
            await stop.wait()
            self._stopping = True
            self._health.stops()
            self._metrics.plays("stopping")
        listening.cancel()
        for shipment in self._shipments.values():
            shipment.cancel()
        self._executor.stop_climbing()
        await self._executor.settle(SETTLE_S)
        if self._lease and self._lease.leader:
            try:
                async with asyncio.timeout(RESIGN_S):
                    await self._store.resign(self._holder, self._lease.term)
            except (PortError, TimeoutError) as error:
                log.warning("lease_kept", message=f"the lease ends by itself: {error}")
        await asyncio.wait({listening}, timeout=LAST_WORDS_S)

    async def once(self) -> Plan | None:
        """One tick with all its effects finished; None if another orchestrator leads."""
        await self._lead()
        if not self._lease or not self._lease.leader:
            return None
        await self._catalog.refresh()
        made = await self._tick_as_leader(self._lease.term)
        await self._executor.settle(self._policy.flush_deadline_s)
        await self._store.resign(self._holder, self._lease.term)
        return made

    def wake(self) -> None:
        """Let the next tick come at once."""
        self._woken = True
        if self._ticking or self._stopping or not self._scheduler.running:
            return
        job = self._scheduler.get_job("tick")
        if job is not None:
            soon = max(datetime.now(UTC) + timedelta(seconds=TICK_GAP_S), self._rested_at)
            if job.next_run_time > soon:
                job.modify(next_run_time=soon)

    def _ask_for_the_lease(self) -> None:
        if self._scheduler.running and not self._stopping and not (self._lease and self._lease.leader):
            self._scheduler.modify_job("lead", next_run_time=datetime.now(UTC))

    @asynccontextmanager
    async def _timers(self) -> AsyncIterator[None]:
        once = {"max_instances": 1, "coalesce": True, "misfire_grace_time": None}
        now = datetime.now(UTC)
        lead = self._lead_and_wake
        self._scheduler.add_job(lead, "interval", seconds=LEAD_EVERY_S, id="lead", next_run_time=now, **once)
        self._scheduler.add_job(self._tick, "interval", seconds=self._poll_s, id="tick", next_run_time=now, **once)
        self._scheduler.add_job(self._ship, "interval", seconds=SHIP_EVERY_S, **once)
        self._scheduler.add_job(self._count, "interval", seconds=COUNT_EVERY_S, **once)
        self._scheduler.add_job(self._retain, "interval", seconds=RETENTION_EVERY_S, **once)
        if self._answers:
            self._scheduler.add_job(self._answer, "interval", seconds=ANSWER_EVERY_S, id="answer", **once)
        if self._catalog.needed:
            self._scheduler.add_job(self._look_up, "interval", seconds=CATALOG_EVERY_S, next_run_time=now, **once)
        self._scheduler.start()
        try:
            yield
        finally:
            self._scheduler.shutdown(wait=False)

    async def _listen(self) -> None:
        async for channel, payload in self._db.notifications():
            if channel == ASKS_CHANNEL:
                self._answer_soon()
                continue
            self._on_notify(channel, payload)
            self.wake()
            if not payload:  # a lease was given back, or we were deaf for a while
                self._ask_for_the_lease()

    # --- pods that ask

    def _answer_soon(self) -> None:
        if self._answers and self._scheduler.running and not (self._answering or self._stopping):
            self._scheduler.modify_job("answer", next_run_time=datetime.now(UTC))

    async def _answer(self) -> None:
        if not self._answers or self._stopping or not self._lease or not self._lease.leader:
            return
        self._answering = True
        try:
            await self._answers.give(self._lease.term)
        except PortError as error:
            log.warning("asks_unanswered", error=f"{type(error).__name__}: {error}")
        finally:
            self._answering = False

    # --- lead

    async def _lead_and_wake(self) -> None:
        before = self._lease.term if self._lease and self._lease.leader else None
        await self._lead()
        if self._lease and self._lease.leader and before != self._lease.term:
            self.wake()

    async def _lead(self) -> None:
        before = self._lease
        try:
            lease = await self._store.lead(self._holder, LEASE_TTL_S)
        except PortError as error:
            self._observer.gap()
            self._health.failed(f"database: {error}")
            log.warning("lease_unanswered", error=f"{type(error).__name__}: {error}")
            return
        if self._overslept():
            self._observer.gap()
        self._lease, self._led_at_s = lease, time.monotonic()
        if lease.leader:
            self._health.leads(lease.term, lease.holder)
        else:
            self._health.stands_by(lease.term, lease.holder)
        self._metrics.plays(self._health.role)
        if before is None or (before.leader, before.term) != (lease.leader, lease.term):
            self._observer.gap()
            self._executor.stop_climbing()
            log.info("lease_taken" if lease.leader else "lease_watched", term=lease.term, leader=lease.holder)

    def _overslept(self) -> bool:
        """Whether the lease is over by our own clock: this process was stopped, and nobody spoke to it meanwhile."""
        return time.monotonic() - self._led_at_s > LEASE_TTL_S

    # --- tick

    async def _tick(self) -> None:
        self._health.ticked(time.monotonic())
        self._metrics.last_tick.set_to_current_time()
        if self._stopping or not self._lease or not self._lease.leader or self._overslept():
            return
        self._ticking, self._woken = True, False
        try:
            await self._tick_as_leader(self._lease.term)
            self._health.recovered()
        except PortError as error:
            self._health.failed(f"{type(error).__name__}: {error}")
            self._metrics.ticks.labels("aborted").inc()
            log.warning("tick_aborted", error=f"{type(error).__name__}: {error}")
        finally:
            self._ticking = False
            self._schedule_next()

    def _schedule_next(self) -> None:
        if self._stopping or not self._scheduler.running:
            return
        moving = self._health.reason is not None or self._moving
        delay_s = TICK_GAP_S if self._woken else min(TRANSITION_S, self._poll_s) if moving else self._poll_s
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
            self._declared = term
        snapshot = await self._observer.observe(self._executor.in_flight, self._executor.climbing)
        observe_s = time.monotonic() - began_s
        self._moving = in_transition(snapshot)
        self._fleet = snapshot.workers
        if snapshot.pods is not None:
            self._pods.update(snapshot.pods)
        self._workers.update(snapshot.workers)
        made = self._think(snapshot, self._policy)
        waits = ((v.retry_at - snapshot.now).total_seconds() for v in made.verdicts if v.retry_at)
        self._retry_s = min(waits, default=None)
        for verdict in made.verdicts:
            await self._record(term, verdict, made)
        if not self._stopping:
            await self._executor.start(term, snapshot, made.actions)
        self._tick_s = time.monotonic() - began_s
        self._say(snapshot, made, observe_s)
        self._metrics.saw(snapshot, made, self._policy, self._tick_s)
        return made

    async def _record(self, term: int, verdict: Verdict, made: Plan) -> None:
        """A decision row when something is done, or the target or what blocks it has changed."""
        changes = [
            a for a in made.actions if isinstance(a, Terminate) or (isinstance(a, Spawn) and a.pool == verdict.pool)
        ]
        gist = (verdict.target, tuple(DIGITS.sub("#", blocked) for blocked in verdict.blocked))
        if not changes and self._recorded.get(verdict.pool) == gist:
            return
        described = [_described(a) for a in changes]
        row = {"pool": verdict.pool, "rule": verdict.rule, "target": verdict.target, "inputs": verdict.inputs}
        await self._store.record_decision(term, row | {"actions": described, "blocked": list(verdict.blocked)})
        self._recorded[verdict.pool] = gist
        log.info(
            "decision_recorded", message=f"{verdict.pool}: {verdict.rule}", actions=described, blocked=verdict.blocked
        )

    def _say(self, snapshot: Snapshot, made: Plan, observe_s: float) -> None:
        """The cycle summary, whose phrases operators search for."""
        ready = frozenset(w.id for w in snapshot.workers if w.state in READY)
        failing = frozenset(w.id for w in snapshot.workers if w.state is State.TERMINATING and w.exit_cause in FAILURES)
        before, self._before = self._before or (ready, failing), (ready, failing)  # what we found is not what we did
        kinds = [type(a) for a in made.actions]
        ended = [a for a in made.actions if isinstance(a, Terminate)]
        states = [w.state for w in snapshot.workers]
        did = {
            "workers_promoted": len(ready - before[0]),
            "workers_failed": len(failing - before[1]),
            "workers_spawned": kinds.count(Spawn),
            "workers_terminated": len(ended),
            "tasks_reset": snapshot.expired_leases if Rescue in kinds else 0,
        }
        status: dict[str, Any] = {"queued_tasks": sum(d.claimable for d in snapshot.demand)}
        status |= {f"{s}_workers": states.count(s) for s in State if s is not State.TERMINATED}
        status["total_workers"] = len(states)
        said = any(did.values()) or time.monotonic() - self._said_at_s >= CYCLE_SAID_EVERY_S
        self._said_at_s = time.monotonic() if said else self._said_at_s
        level = log.info if said else log.debug
        planned = dict(Counter(type(a).__name__.lower() for a in made.actions))
        took = {"tick_s": round(self._tick_s, 3), "observe_s": round(observe_s, 3)}
        facts = {"actions": did, "status": status, "planned": planned, "pods": len(snapshot.pods or ()), **took}
        level("cycle_ended", message=phrases.CYCLE, **facts)

    # --- logs and rows

    async def _ship(self) -> None:
        """Begin a shipment for every worker that may have new bytes and has none under way."""
        if self._stopping or not self._lease or not self._lease.leader:
            return
        here = {worker.id for worker in self._fleet}
        self._looked = {name: look for name, look in self._looked.items() if name in here}
        self._late = {name: kind for name, kind in self._late.items() if name in here}
        for worker in self._fleet:
            due = worker.nonce and worker.stage in SHIPPING and worker.id not in self._executor.in_flight
            if due and worker.id not in self._shipments and self._may_have_written(worker):
                task = asyncio.create_task(self._ship_one(self._lease.term, worker), name=f"ship:{worker.id}")
                self._shipments[worker.id] = task
                task.add_done_callback(partial(self._shipped, worker.id))

    def _may_have_written(self, worker: Worker) -> bool:
        """Whether its logs are worth a look: seldom where one was begun since its last task ended."""
        now_s, (since, at_s) = time.monotonic(), self._looked.get(worker.id, (None, 0.0))
        quiet = worker.state is State.IDLE and not worker.own_program and since == worker.state_since
        if quiet and now_s - at_s < max(QUIET_SHIP_S, len(self._fleet) / QUIET_SHIPS_PER_S):
            return False
        self._looked[worker.id] = (worker.state_since, now_s)
        return True

    def _shipped(self, worker_id: str, _: asyncio.Task[None]) -> None:
        self._shipments.pop(worker_id, None)

    async def _ship_one(self, term: int, worker: Worker) -> None:
        try:
            async with self._ship_gate, asyncio.timeout(SHIP_DEADLINE_S):
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

    async def _look_up(self) -> None:
        if await self._catalog.refresh():
            self.wake()

    async def _count(self) -> None:
        """Tell the metrics what tasks went through since the last time, or since we lead."""
        if self._stopping or not self._lease or not self._lease.leader:
            self._counted_to = None
            return
        try:
            row = await self._store.metrics(self._counted_to or self._lease.since)
        except PortError as error:
            log.info("metrics_delayed", error=f"{type(error).__name__}: {error}")
            return
        self._metrics.counted(row)
        self._counted_to = row["until"]

    async def _retain(self) -> None:
        if self._lease and self._lease.leader:
            try:
                log.info("rows_retained", deleted=dict(await self._store.retention(self._lease.term)))
            except PortError as error:
                log.warning("retention_failed", error=f"{type(error).__name__}: {error}")


def _described(action: Spawn | Terminate) -> str:
    if isinstance(action, Spawn):
        return f"spawn {action.worker_id} on {action.offer.key}: {action.reason}"
    return f"terminate {action.worker_id}: {action.reason}"
