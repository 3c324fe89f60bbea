"""What the learned rule of scaling knows of each pool, from tick to tick of one term.

A tick reads what has happened since the last one. Rows of transactions that were open then may appear later, so the
newest LAG_S are learned only for the decision, and again by the next ticks. At the begin of a term, the statistics are
those that an earlier leader stored, or are learned from the recorded runs. The rule decides without what cannot be
read.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from orchestrator.core import boots, learned_scaling
from orchestrator.core.economics.history import after_a_gap, learn
from orchestrator.core.economics.statistics import Statistics
from orchestrator.core.model import LearnedPool
from orchestrator.core.policy import Policy, Pool
from orchestrator.observability.logger import LazyLogger
from orchestrator.ports import DatabaseHalf, PoolHistory, PortError, Store

LAG_S = 10.0  # so long may a transaction take that creates or ends a task
READ_S = 5.0  # how long a tick waits for the history of its pools
BEGIN_AT_ONCE = 8  # pools whose whole history one tick reads; after an answer that was late, half as many
STORE_EVERY_S = 60.0
EVERYTHING = 0.0  # since when a pool is learned whose stored statistics cannot be used
log = LazyLogger()


@dataclass(slots=True)
class LearnedSoFar:
    """One pool in this term."""

    known: Statistics  # until `until`
    until: float  # seconds since 1970
    stored_at: float
    present: LearnedPool  # for the decision
    last_end: dict[str, float] = field(default_factory=dict)  # worker -> the end of its last task


class Learning:
    """Reads and stores statistics of the pools whose policy is learned."""

    def __init__(self, store: Store, policy: Policy) -> None:
        self._store, self._policy = store, policy
        self._pools: dict[str, LearnedSoFar] = {}
        self._lost: set[str] = set()  # pools whose stored statistics cannot be used
        self._at_once = BEGIN_AT_ONCE

    def forget(self) -> None:
        """Begin with the stored statistics again, because another process may have led."""
        self._pools, self._lost = {}, set()

    async def read(self, half: DatabaseHalf) -> Mapping[str, LearnedPool]:
        """Return what is known of each pool that the learned rule scales. A failure changes nothing."""
        policy = learned_scaling.in_force(self._policy, half.scaling_policies)
        pools = {pool.name: pool for pool in policy.pools if learned_scaling.is_learned(pool)}
        self._pools = {name: one for name, one in self._pools.items() if name in pools}
        if not pools:
            return {}
        new = [name for name in pools if name not in self._pools][: self._at_once]
        since: dict[str, float | None] = {name: one.until for name, one in self._pools.items()}
        since |= {name: EVERYTHING if name in self._lost else None for name in new}
        known = self._pools
        try:
            async with asyncio.timeout(READ_S):
                found = await self._store.histories(since)
        except (PortError, TimeoutError) as error:
            why = str(error) or f"no answer within {READ_S:g} s"
            self._at_once = max(1, self._at_once // 2)
            log.warning("history_unread", message=f"what the learned rule knows is older: {why}")
            return {name: replace(one.present, waiting=()) for name, one in self._pools.items()}
        if known is not self._pools:  # forgotten meanwhile
            return {}
        live = {worker.id for worker in half.workers}
        for name, history in found.items():
            if name in pools:
                self._learn(pools[name], history, half, live)
        return {name: one.present for name, one in self._pools.items()}

    async def keep(self, term: int) -> None:
        """Store statistics that were not stored for a minute. A failure waits for the next tick."""
        due = {name: one for name, one in self._pools.items() if one.until >= one.stored_at + STORE_EVERY_S}
        if not due:
            return
        try:
            async with asyncio.timeout(READ_S):
                await self._store.learn(term, {name: (one.known, one.until) for name, one in due.items()})
        except (PortError, TimeoutError) as error:
            log.warning("statistics_unstored", message=f"the statistics of scaling are not stored: {error}")
            return
        for one in due.values():
            one.stored_at = one.until

    def _learn(self, pool: Pool, history: PoolHistory, half: DatabaseHalf, live: Iterable[str]) -> None:
        if history.is_lost:
            log.warning("statistics_lost", message=f"pool {pool.name}: its stored statistics cannot be used")
            self._lost.add(pool.name)
            return
        before = self._pools.get(pool.name)
        if before is None:
            known, until = history.stored or Statistics(learned_scaling.FIRST_BOOT_S), history.since
            before = LearnedSoFar(known, until, until if history.stored else 0.0, LearnedPool(known))
        elif history.since > before.until:  # more has happened than one answer has
            before.known = after_a_gap(before.known)
        boot_s = boots.usual_boot_s(pool.name, half.ended)
        known = before.known if boot_s is None else replace(before.known, boot_s=boot_s)
        until = max(history.since, history.now - LAG_S)
        known = _learned(known, history, history.since, until, pool)
        last_end = {worker: at for worker, at in before.last_end.items() if worker in live}
        for run, worker in history.runs:
            if worker in live:
                last_end[worker] = max(run.ended, last_end.get(worker, run.ended))
        newest = _learned(known, history, until, history.now, pool)
        before.known, before.until, before.last_end = known, until, last_end
        before.present = LearnedPool(newest, history.waiting, history.busy_since, last_end, history.reviewed)
        self._pools[pool.name] = before


def _learned(known: Statistics, history: PoolHistory, since: float, until: float, pool: Pool) -> Statistics:
    runs = [run for run, _ in history.runs]
    return learn(
        known, runs, history.opened, since=since, until=until, open_now=history.open_tasks, most=max(1, pool.max_active)
    )
