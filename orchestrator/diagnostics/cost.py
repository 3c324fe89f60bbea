"""`cost`: fleet_cost() by worker, pool, kind, task type or task, and beside it what the provider charged."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.ports import Bill

Row = Mapping[str, Any]
KINDS = ("booting", "busy", "idle", "draining")


@dataclass(frozen=True, slots=True)
class Line:
    """What one thing cost."""

    name: str
    usd: float
    seconds: float
    kinds: Mapping[str, float]  # dollars; empty for tasks, which are always busy
    count: int = 1  # workers, or tasks
    wasted_usd: float = 0.0  # of attempts that did not complete


@dataclass(frozen=True, slots=True)
class PodBill:
    """One pod in our books and in the provider's."""

    pod_id: str
    worker_id: str | None  # None: no worker of this fleet cost anything under this pod's id
    ours_usd: float
    theirs_usd: float

    @property
    def difference_usd(self) -> float:
        """What the provider charged beyond what we booked."""
        return self.theirs_usd - self.ours_usd


@dataclass(frozen=True, slots=True)
class Reconciled:
    """Our books against the provider's, pod by pod; the widest difference first."""

    pods: Sequence[PodBill]
    foreign: Sequence[PodBill]  # charged to the account, of no worker in our books

    @property
    def ours_usd(self) -> float:
        """What we booked."""
        return sum(pod.ours_usd for pod in self.pods)

    @property
    def theirs_usd(self) -> float:
        """What the provider charged for the same pods."""
        return sum(pod.theirs_usd for pod in self.pods)


def lines(report: Row, by: str) -> tuple[Line, ...]:
    """The report by worker, pool, kind, type (of task) or task; dearest first."""
    if by == "kind":
        found = [Line(kind, float(k["usd"]), float(k["seconds"]), {}) for kind, k in report["kinds"].items()]
    elif by in {"type", "task"}:
        found = [_of_tasks(row, by) for row in report["types" if by == "type" else "tasks"]]
    elif by == "pool":
        found = _pools(report["workers"])
    else:
        found = [_of_worker(row) for row in report["workers"]]
    return tuple(sorted(found, key=lambda line: (-line.usd, line.name)))


def reconciled(report: Row, bills: Iterable[Bill]) -> Reconciled:
    """Both sides of the same hours."""
    charged: defaultdict[str, float] = defaultdict(float)
    for bill in bills:
        charged[bill.pod_id] += bill.usd
    booked = {row["pod_id"]: row for row in report["workers"] if row["pod_id"]}
    pods = [PodBill(pod, row["id"], float(row["usd"]), charged.pop(pod, 0.0)) for pod, row in booked.items()]
    foreign = [PodBill(pod, None, 0.0, usd) for pod, usd in charged.items() if usd > 0]
    return Reconciled(_widest(pods), _widest(foreign))


def _widest(pods: list[PodBill]) -> list[PodBill]:
    return sorted(pods, key=lambda pod: (-abs(pod.difference_usd), pod.pod_id))


def _of_worker(row: Row) -> Line:
    kinds = {kind: float(part["usd"]) for kind, part in row["kinds"].items()}
    return Line(row["id"], float(row["usd"]), float(row["seconds"]), kinds)


def _of_tasks(row: Row, by: str) -> Line:
    name = row["task_type"] if by == "type" else f"{row['id']} {row['task_type']}"
    count = row["tasks"] if by == "type" else 1
    return Line(name, float(row["usd"]), float(row["seconds"]), {}, count, float(row["wasted_usd"]))


def _pools(workers: Iterable[Row]) -> list[Line]:
    grouped: defaultdict[str, list[Line]] = defaultdict(list)
    for row in workers:
        grouped[row["pool"]].append(_of_worker(row))
    return [
        Line(
            pool,
            sum(line.usd for line in parts),
            sum(line.seconds for line in parts),
            {kind: sum(line.kinds.get(kind, 0.0) for line in parts) for kind in KINDS},
            len(parts),
        )
        for pool, parts in grouped.items()
    ]
