"""A replay of tasks in virtual time: which workers a rule starts and ends, and when each task starts.

The replay tells a rule only what has happened: no decision depends on a later event. A task goes to the idle worker
that was used last. Workers are paid from the request to the end. When the budget of a day is used up, all workers end;
their tasks wait for the next day and run again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from orchestrator.core.economics.daily_budget import DailyBudget
from orchestrator.core.economics.pool_replay import PoolReplay, ReplayedWorker
from orchestrator.core.economics.rule import Rule
from orchestrator.core.economics.sizes import PoolSizes, SizeStep

MAX_LOST_DAYS = 3  # after so many days whose money completes no task, the replay gives up

TASK_ENDS, WORKER_READY, REVIEW, MIDNIGHT, EXHAUSTED = range(5)  # kinds of events


class RecordedTask(NamedTuple):
    """A task of a trace."""

    arrival_s: float
    duration_s: float
    pool: str = "default"


@dataclass(frozen=True, slots=True)
class Terms:
    """What a replay assumes."""

    boot_s: float
    most: int  # workers of each pool
    usd_per_hour: float = 0.0
    daily_usd: float = inf
    begins_at: float | None = None  # when the rules are asked for the first time; None: with the first task
    least: int = 0  # workers of each pool
    steps: Sequence[SizeStep] = ()  # other sizes, from moments on

    @property
    def sizes(self) -> PoolSizes:
        """Return how many workers each pool may and must have."""
        return PoolSizes(self.most, self.least, self.steps)


@dataclass(frozen=True, slots=True)
class TaskStart:
    """The start of the attempt that completed a task."""

    at: float
    worker: int


@dataclass(slots=True)
class Replayed:
    """The result of a replay. A task without a start could not be paid."""

    workers: list[ReplayedWorker] = field(default_factory=list)
    tasks: list[TaskStart | None] = field(default_factory=list)
    decisions: list[tuple[float, str]] = field(default_factory=list)  # times and reasons


def replay(tasks: Sequence[RecordedTask], rule: Callable[[str], Rule], terms: Terms) -> Replayed:
    """Replay tasks, in the order of their arrivals. `rule` makes the rule of a pool."""
    return _ReplayRun(tasks, rule, terms).run()


class _ReplayRun:
    def __init__(self, tasks: Sequence[RecordedTask], rule: Callable[[str], Rule], terms: Terms) -> None:
        self.tasks, self.terms = tasks, terms
        names = dict.fromkeys(task.pool for task in tasks)
        self.pools: Mapping[str, PoolReplay] = {name: PoolReplay(name, rule(name), terms.sizes) for name in names}
        self.budget = DailyBudget(terms.daily_usd, terms.usd_per_hour)
        self.result = Replayed(tasks=[None] * len(tasks))
        self.events: list[tuple[float, int, int, str, int]] = []  # time, number, kind, pool, worker
        self.number = 0
        self.live: dict[int, None] = {}
        self.payment = 0  # the number of the planned EXHAUSTED
        self.next_midnight = 0.0
        self.lost_days = 0  # since the last complete task: at their end tasks waited, and no worker could be paid

    def run(self) -> Replayed:
        """Take arrivals and events in the order of time; events before arrivals of the same moment."""
        for pool in self.pools.values():
            self._plan_review(pool, self.terms.begins_at)
        arrived, count = 0, len(self.tasks)
        while self.lost_days <= MAX_LOST_DAYS and (arrived < count or self.events):
            next_at = self.tasks[arrived].arrival_s if arrived < count else inf
            if self.events and self.events[0][0] <= next_at:
                now, number, kind, name, worker = heappop(self.events)
                self.budget.advance(now, len(self.live))
                self._on_event(now, number, kind, name, worker)
            else:
                self.budget.advance(next_at, len(self.live))
                pool = self.pools[self.tasks[arrived].pool]
                pool.arrived(arrived, next_at)
                self._settle(pool, next_at)
                arrived += 1
        return self.result

    def _on_event(self, now: float, number: int, kind: int, name: str, worker: int) -> None:
        if kind == MIDNIGHT:
            self._begin_day(now)
        elif kind == EXHAUSTED:
            if number == self.payment:
                self._end_all(now)
        else:
            pool = self.pools[name]
            if kind == REVIEW and pool.review_at == now:
                pool.review_at = None
                self._settle(pool, now)
            elif kind != REVIEW and worker in self.live:
                self._progress(pool, worker, now)
                self._settle(pool, now)

    def _begin_day(self, now: float) -> None:
        """There is money again, unless no day can pay for the tasks that wait."""
        if not self.live and any(pool.waiting for pool in self.pools.values()):
            self.lost_days += 1
        if self.lost_days > MAX_LOST_DAYS:
            return
        self._plan_payment(now)
        for pool in self.pools.values():
            self._settle(pool, now)

    def _progress(self, pool: PoolReplay, worker: int, now: float) -> None:
        """A worker is ready, or its task has ended."""
        one = self.result.workers[worker]
        if one.ready is None:
            one.ready = now
            pool.booted(worker, now)
        else:
            self.result.tasks[pool.ended(worker, one.asked, now)] = TaskStart(one.began, worker)
            self.lost_days = 0

    def _settle(self, pool: PoolReplay, now: float) -> None:
        """Place tasks, and do what the rule decides."""
        if self.budget.runway_s(len(self.live)) < pool.run_s:
            for worker in list(pool.idle):  # it could not complete a task any more
                self._end(pool, worker, now)
        for task, worker in pool.placements(now):
            self.result.workers[worker].began = now
            self._plan(now + self.tasks[task].duration_s, TASK_ENDS, pool.name, worker)
        decision = pool.decide(now, may_grow=self._affords(pool))
        idle = list(pool.idle)
        for place in decision.ends:
            self._end(pool, idle[place], now)
        started = 0
        while started < decision.starts and self._affords(pool):
            self._start(pool, now)
            started += 1
        if started == decision.starts and decision.why:
            self.result.decisions.append((now, decision.why))
        self._plan_review(pool, decision.review_at)

    def _affords(self, pool: PoolReplay) -> bool:
        """Whether one worker more can boot and complete a task before the money of the day ends."""
        return self.budget.runway_s(len(self.live) + 1) >= self.terms.boot_s + pool.run_s

    def _start(self, pool: PoolReplay, now: float) -> None:
        worker = len(self.result.workers)
        self.result.workers.append(ReplayedWorker(pool.name, now))
        self.live[worker] = None
        pool.booting[worker] = now
        self._plan(now + self.terms.boot_s, WORKER_READY, pool.name, worker)
        self._plan_payment(now)

    def _end(self, pool: PoolReplay, worker: int, now: float) -> None:
        self.result.workers[worker].ended = now
        del self.live[worker]
        pool.remove(worker)
        self._plan_payment(now)

    def _end_all(self, now: float) -> None:
        """The money of the day is used up. Tasks that run go back to the front of the queue."""
        for worker in reversed(list(self.live)):
            pool = self.pools[self.result.workers[worker].pool]
            if worker in pool.busy:
                task = pool.tasks[worker]
                pool.queue_again(task, self.tasks[task].arrival_s)
            self._end(pool, worker, now)
        self._plan_payment(now)

    def _plan(self, at: float, kind: int, name: str = "", worker: int = -1) -> int:
        self.number += 1
        heappush(self.events, (at, self.number, kind, name, worker))
        return self.number

    def _plan_review(self, pool: PoolReplay, at: float | None) -> None:
        if at != pool.review_at:
            pool.review_at = at
            if at is not None:
                self._plan(at, REVIEW, pool.name)

    def _plan_payment(self, now: float) -> None:
        """Plan the moment at which the money of this day ends, and midnight, if there is a budget."""
        if self.terms.daily_usd == inf:
            return
        runway_s = self.budget.runway_s(len(self.live))
        self.payment = self._plan(now + runway_s, EXHAUSTED) if runway_s < inf else 0
        has_work = self.live or any(pool.waiting for pool in self.pools.values())
        if has_work and self.next_midnight < self.budget.midnight:
            self.next_midnight = self.budget.midnight
            self._plan(self.next_midnight, MIDNIGHT)
