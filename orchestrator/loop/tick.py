"""One tick of a leader: observe, plan, record, execute. Level-triggered; a missed tick is harmless."""

import time
from collections.abc import Callable

import structlog

from orchestrator.core.actions import Plan
from orchestrator.core.model import Snapshot, StoreOutage, Worker
from orchestrator.core.plan import in_transition
from orchestrator.core.policy import Policy
from orchestrator.loop.decisions import DecisionRecorder
from orchestrator.loop.execute import Executor
from orchestrator.loop.observe import Observer
from orchestrator.loop.runtime import Runtime
from orchestrator.ports import Store

HOLD_S, HOLD_AGAIN_S = 60.0, 20.0  # for how long claims are held, and how often this is renewed
log = structlog.get_logger()


class ClaimHold:
    """Holds the fleet's claims in the database during an outage of the store, and frees them once afterwards.

    A hold expires after HOLD_S, so that a leader that is gone holds up no other process.
    """

    def __init__(self, store: Store, clock: Callable[[], float] | None = None) -> None:
        self._store, self._clock = store, clock or time.monotonic
        self._held: tuple[int, float] | None = None  # the term in which claims were held, and the last time
        self._freed: int | None = None  # the term in which they were freed

    async def follow(self, term: int, outage: StoreOutage | None, *, is_known: bool) -> None:
        """Hold, renew or free. `is_known`: whether the store has ever answered this process. Raises PortError."""
        if outage is not None:
            held_term, held_s = self._held or (None, 0.0)
            if held_term != term or self._clock() - held_s >= HOLD_AGAIN_S:
                log.warning("store_away", message=outage.why, since=outage.since.isoformat())
                await self._store.hold_claims(term, outage, for_s=HOLD_S)
                self._held, self._freed = (term, self._clock()), None
        elif self._freed != term and is_known:
            await self._store.hold_claims(term, None, for_s=HOLD_S)
            self._held, self._freed = None, term


class Tick:
    """Runs ticks. The attributes describe the last one."""

    def __init__(
        self,
        runtime: Runtime,
        observer: Observer,
        executor: Executor,
        *,
        on_plan: Callable[[Snapshot, Plan], object],
        planner: Callable[[Snapshot, Policy], Plan],
        is_stopping: Callable[[], bool],
    ) -> None:
        """`on_plan` gets the snapshot and the plan of each tick. While `is_stopping`, a tick decides nothing."""
        self.fleet: tuple[Worker, ...] = ()
        self.is_moving = False  # the next tick should come soon: see in_transition
        self.retry_s: float | None = None  # until a blocked action may continue, or a pool must be decided again
        self.took_s = 0.0
        self._runtime, self._store, self._policy = runtime, runtime.store, runtime.policy
        self._observer, self._executor, self._decisions = observer, executor, DecisionRecorder(runtime.store)
        self._on_plan, self._planner, self._is_stopping = on_plan, planner, is_stopping
        self._declared: int | None = None  # the term in which the pools were declared
        self._claims = ClaimHold(runtime.store)

    async def run(self, term: int) -> Plan:
        """Run one tick. Raises PortError if the database does not answer or refuses."""
        began_s, health = time.monotonic(), self._runtime.health
        await self._declare(term)
        health.stepped()
        snapshot = await self._observer.observe(self._executor.in_flight, self._executor.bringing_up)
        health.stepped()
        observe_s = time.monotonic() - began_s
        self._publish(snapshot)
        plan = self._planner(snapshot, self._policy)
        times = (at for made in plan.decisions for at in (made.retry_at, made.review_at) if at)
        waits = ((at - snapshot.now).total_seconds() for at in times)
        self.retry_s = min(waits, default=None)
        if not self._is_stopping():
            await self._claims.follow(term, snapshot.store_outage, is_known=self._observer.knows_the_store)
            await self._decisions.record(term, snapshot, plan)
            health.stepped()
            await self._executor.start(term, snapshot, plan.actions)
            await self._observer.keep_learned(term)
        self.took_s = time.monotonic() - began_s
        self._decisions.sum_up(snapshot, plan, tick_s=self.took_s, observe_s=observe_s)
        self._runtime.metrics.note_tick(snapshot, plan, self._policy, self.took_s)
        self._on_plan(snapshot, plan)
        return plan

    async def _declare(self, term: int) -> None:
        """Write the configuration that the database's functions need, once in a term."""
        if self._declared == term:
            return
        policy = self._policy
        await self._store.declare_pools(term, policy.task_types)
        programs = [pool.name for pool in policy.pools if policy.own_program]
        await self._store.declare_programs(term, programs, policy.task_stuck_s)
        releases = {pool.name: policy.release(pool) for pool in policy.pools}
        await self._store.declare_release(term, releases, policy.handled)
        self._declared = term

    def _publish(self, snapshot: Snapshot) -> None:
        """Keep what other parts read between two ticks."""
        self.is_moving, self.fleet = in_transition(snapshot), snapshot.workers
        if snapshot.pods is not None:
            self._runtime.latest.pods.update(snapshot.pods)
        self._runtime.latest.workers.update(snapshot.workers)
