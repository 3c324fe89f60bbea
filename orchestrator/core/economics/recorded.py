"""What was recorded of a pool: its tasks as a trace that can be replayed, and what really happened.

Rows of a database may be damaged: clocks go back, people edit rows. A row that cannot be true is left out, alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.core.economics.history import can_be_true
from orchestrator.core.economics.outcome import quantile
from orchestrator.core.economics.replay import RecordedTask

DEFAULT_BOOT_S = 120.0  # of a pool that has booted no worker
MIN_BOOT_S, MAX_BOOT_S = 1.0, 86_400.0


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One ended attempt. Seconds since 1970; None or any number, as the rows have it."""

    pool: str
    arrived: float | None  # when a worker could have claimed it
    started: float | None  # when one claimed it
    ended: float | None
    worker: str | None


class _KnownRun(NamedTuple):
    """A run that can be true."""

    arrived: float
    started: float
    ended: float
    worker: str


@dataclass(frozen=True, slots=True)
class PoolCosts:
    """What the workers of one pool cost between two moments."""

    usd: float = 0.0
    paid_s: float = 0.0
    boots: int = 0  # workers that were started then and got a machine
    boot_s: float | None = None  # the median from the request to the promotion; None: no worker was promoted
    unpaid_s: float = 0.0  # the median part of a boot before the provider counts
    ending_s: float = 0.0  # the median from the decision to end a worker until the provider counts no more

    @property
    def usd_per_hour(self) -> float | None:
        """Return the mean price of a worker; None if nothing was paid."""
        return self.usd / self.paid_s * 3_600 if self.paid_s > 0 and self.usd > 0 else None


@dataclass(frozen=True, slots=True)
class RecordedPool:
    """One pool between two moments, as it can be replayed."""

    pool: str
    tasks: Sequence[RecordedTask]  # in the order of their arrivals
    waits_s: Sequence[float]  # of the same tasks, as they were
    costs: PoolCosts
    left_out: int = 0  # rows that cannot be true, or whose task arrived before

    @property
    def boot_s(self) -> float:
        """Return the boot time to assume."""
        known = self.costs.boot_s
        return DEFAULT_BOOT_S if known is None else min(max(known, MIN_BOOT_S), MAX_BOOT_S)


@dataclass(frozen=True, slots=True)
class Waits:
    """How long tasks waited, in seconds; None if there are none."""

    p50_s: float | None
    p95_s: float | None
    max_s: float | None
    longer: int  # tasks that waited longer than a given time

    @classmethod
    def of(cls, waits_s: Iterable[float], longer_than_s: float) -> "Waits":
        """Sum up waits, in any order."""
        ordered = sorted(waits_s)
        longer = sum(wait_s > longer_than_s for wait_s in ordered)
        return cls(quantile(ordered, 0.5), quantile(ordered, 0.95), ordered[-1] if ordered else None, longer)


def histories(
    runs: Iterable[RecordedRun], costs: Mapping[str, PoolCosts], since: float, until: float
) -> list[RecordedPool]:
    """Return the pools that had tasks or costs, by name. Tasks that arrived before `since` are left out."""
    by_pool: defaultdict[str, list[RecordedRun]] = defaultdict(list)
    for run in runs:
        by_pool[run.pool].append(run)
    names = sorted({*by_pool, *costs})
    return [_history(name, by_pool[name], costs.get(name, PoolCosts()), since, until) for name in names]


def _history(pool: str, runs: Sequence[RecordedRun], costs: PoolCosts, since: float, until: float) -> RecordedPool:
    known = sorted(filter(None, (_usable(run, since, until) for run in runs)), key=lambda one: (one.ended, one.arrived))
    free_at: dict[tuple[str, float], float] = {}  # a worker runs the tasks of one claim one after the other
    tasks: list[tuple[RecordedTask, float]] = []
    for run in known:
        began = max(run.arrived, free_at.get((run.worker, run.started), run.started))
        free_at[run.worker, run.started] = run.ended
        tasks.append((RecordedTask(run.arrived, max(0.0, run.ended - began), pool), began - run.arrived))
    tasks.sort(key=lambda one: one[0].arrival_s)
    waits_s = [wait_s for _, wait_s in tasks]
    return RecordedPool(pool, [task for task, _ in tasks], waits_s, costs, len(runs) - len(tasks))


def _usable(run: RecordedRun, since: float, until: float) -> _KnownRun | None:
    """Return the run if it can be true."""
    if run.arrived is None or run.started is None or run.ended is None:
        return None
    if not can_be_true(run.arrived, run.started, run.ended) or run.arrived < since or run.ended > until:
        return None
    return _KnownRun(run.arrived, run.started, run.ended, run.worker or "")
