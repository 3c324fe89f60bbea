"""One pool of a replay: its queue, its workers, and the rule that decides."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from orchestrator.core.economics.rule import Decision, IdleWorker, PoolView, Rule
from orchestrator.core.economics.sizes import PoolSizes


@dataclass(slots=True)
class ReplayedWorker:
    """A worker of a replay. Seconds; None: not yet."""

    pool: str
    asked: float
    ready: float | None = None
    ended: float | None = None
    began: float = 0.0  # its last task


@dataclass(slots=True)
class PoolReplay:
    """The present state of one pool. Workers are numbers that the replay gives."""

    name: str
    rule: Rule
    sizes: PoolSizes
    waiting: deque[int] = field(default_factory=deque)  # tasks
    waiting_since: deque[float] = field(default_factory=deque)
    tasks: dict[int, int] = field(default_factory=dict)  # worker -> its task
    busy: dict[int, float] = field(default_factory=dict)  # worker -> the start of its task
    booting: dict[int, float] = field(default_factory=dict)  # worker -> when it was asked for
    idle: dict[int, IdleWorker] = field(default_factory=dict)  # in the order of the last use
    review_at: float | None = None
    run_s: float = 0.0  # mean of the tasks that have ended
    runs: int = 0

    @property
    def level(self) -> int:
        """Return how many workers the queued and the running tasks would use at once."""
        return min(len(self.busy) + len(self.waiting), self.sizes.highest)

    def arrived(self, task: int, now: float) -> None:
        """Add a task at the end of the queue."""
        self.waiting.append(task)
        self.waiting_since.append(now)
        self.rule.arrived(self.level, now)

    def queue_again(self, task: int, since: float) -> None:
        """Add a task whose worker has ended, at the front of the queue."""
        self.waiting.appendleft(task)
        self.waiting_since.appendleft(since)

    def placements(self, now: float) -> Iterator[tuple[int, int]]:
        """Give the oldest tasks to the idle workers with the newest last use. Yield each task and its worker."""
        while self.waiting and self.idle:
            worker, _ = self.idle.popitem()
            task, _ = self.waiting.popleft(), self.waiting_since.popleft()
            self.tasks[worker], self.busy[worker] = task, now
            yield task, worker

    def booted(self, worker: int, now: float) -> None:
        """Make a worker idle that has booted."""
        asked = self.booting.pop(worker)
        self.rule.booted(now - asked)
        self.idle[worker] = IdleWorker(asked, now)

    def ended(self, worker: int, asked: float, now: float) -> int:
        """Make a busy worker idle. Return its task."""
        run_s = now - self.busy[worker]
        self.rule.ended(self.level, run_s, now)
        self.runs += 1
        self.run_s += (run_s - self.run_s) / self.runs
        del self.busy[worker]
        self.idle[worker] = IdleWorker(asked, now)
        return self.tasks.pop(worker)

    def decide(self, now: float, *, may_grow: bool) -> Decision:
        """Ask the rule. If no worker can be paid, the pool may have only those that it has."""
        least, most, change = self.sizes.at(now)
        if not self.idle and len(self.busy) + len(self.booting) >= most:  # nothing to end, and nothing may start
            return Decision(review_at=change)
        idle, busy, booting = list(self.idle.values()), list(self.busy.values()), list(self.booting.values())
        if not may_grow:
            most = len(busy) + len(booting) + len(idle)
        view = PoolView(now, self.waiting_since, len(self.waiting), busy, booting, idle, most, least)
        decided = self.rule.decide(view)
        if change is None or (decided.review_at is not None and decided.review_at <= change):
            return decided
        return replace(decided, review_at=change)

    def remove(self, worker: int) -> None:
        """Forget a worker that has ended."""
        self.tasks.pop(worker, None)
        self.busy.pop(worker, None)
        self.booting.pop(worker, None)
        self.idle.pop(worker, None)
