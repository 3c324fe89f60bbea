"""`cost`: the rows of fleet_cost() by worker, pool, cluster, GPU, task type, …, compared with the provider's bill."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.provider import short_gpu
from orchestrator.ports import Bill

Row = Mapping[str, Any]
KINDS = ("booting", "busy", "idle", "draining")
GONE = "(workers whose rows are gone)"
LEAST_USD = 0.005  # what is less is a rounding


@dataclass(frozen=True, slots=True)
class CostLine:
    """The cost of one worker, pool, cluster, kind, task type or task."""

    name: str
    usd: float
    seconds: float
    kinds: Mapping[str, float]  # dollars; empty for tasks, whose time is always busy
    count: int = 1  # workers, or tasks
    wasted_usd: float = 0.0  # of attempts that did not complete


@dataclass(frozen=True, slots=True)
class PodBill:
    """The cost of one pod in our records and on the provider's bill."""

    pod_id: str
    worker_id: str | None  # None: the report has no worker with this pod
    ours_usd: float
    theirs_usd: float

    @property
    def difference_usd(self) -> float:
        """Return the part of the bill that exceeds our record."""
        return self.theirs_usd - self.ours_usd


@dataclass(frozen=True, slots=True)
class Reconciled:
    """Our records against the provider's bill, pod by pod, the largest difference first."""

    pods: Sequence[PodBill]
    unbooked: Sequence[PodBill]  # billed to the account for pods that have no cost in the report

    @property
    def ours_usd(self) -> float:
        """Return our recorded cost."""
        return sum(pod.ours_usd for pod in self.pods)

    @property
    def theirs_usd(self) -> float:
        """Return the provider's bill for the same pods."""
        return sum(pod.theirs_usd for pod in self.pods)


def lines(report: Row, by: str) -> tuple[CostLine, ...]:
    """Return the report by worker, pool, cluster, gpu, kind, type (of task) or task, the most expensive first."""
    if by == "kind":
        found = [CostLine(kind, float(k["usd"]), float(k["seconds"]), {}) for kind, k in report["kinds"].items()]
    elif by in {"type", "task"}:
        found = [_of_tasks(row, by) for row in report["types" if by == "type" else "tasks"]]
    elif by in {"pool", "cluster", "gpu"}:
        found = _groups(report["workers"], by)
        found += filter(None, [gone(report)])
    else:
        found = [_of_worker(row) for row in report["workers"]]
    return tuple(sorted(found, key=lambda line: (-line.usd, line.name)))


def gone(report: Row) -> CostLine | None:
    """Return what the total has and no listed worker: the cost of workers whose rows were deleted. None: nothing."""
    workers = [_of_worker(row) for row in report["workers"]]
    rest = {kind: float(part["usd"]) - sum(worker.kinds.get(kind, 0.0) for worker in workers)
            for kind, part in report.get("kinds", {}).items()}  # fmt: skip
    usd = sum(rest.values())
    if usd < max(LEAST_USD, 1e-6 * len(rest) * len(workers)):
        return None
    seconds = sum(float(part["seconds"]) for part in report["kinds"].values()) - sum(one.seconds for one in workers)
    return CostLine(GONE, usd, seconds, {kind: max(0.0, rest.get(kind, 0.0)) for kind in KINDS}, 0)


def named_lines(rows: Iterable[Row], by: str) -> tuple[CostLine, ...]:
    """The lines of fleet_cost_by(), in its order. Tasks without the tenant or label have a name in parentheses."""
    none = f"(no {by.replace(':', ' ')})"
    return tuple(
        CostLine(
            row["name"] or none, float(row["usd"]), float(row["seconds"]), {}, row["tasks"], float(row["wasted_usd"])
        )
        for row in rows
    )


def reconciled(report: Row, bills: Iterable[Bill]) -> Reconciled:
    """Compare both records of the same hours."""
    charged: defaultdict[str, float] = defaultdict(float)
    for bill in bills:
        charged[bill.pod_id] += bill.usd
    booked = {row["pod_id"]: row for row in report["workers"] if row["pod_id"]}
    pods = [PodBill(pod, row["id"], float(row["usd"]), charged.pop(pod, 0.0)) for pod, row in booked.items()]
    unbooked = [PodBill(pod, None, 0.0, usd) for pod, usd in charged.items() if usd > 0]
    return Reconciled(_widest(pods), _widest(unbooked))


def _widest(pods: list[PodBill]) -> list[PodBill]:
    return sorted(pods, key=lambda pod: (-abs(pod.difference_usd), pod.pod_id))


def _of_worker(row: Row) -> CostLine:
    kinds = {kind: float(part["usd"]) for kind, part in row["kinds"].items()}
    return CostLine(row["id"], float(row["usd"]), float(row["seconds"]), kinds)


def _of_tasks(row: Row, by: str) -> CostLine:
    name = row["task_type"] if by == "type" else f"{row['id']} {row['task_type']}"
    count = row["tasks"] if by == "type" else 1
    return CostLine(name, float(row["usd"]), float(row["seconds"]), {}, count, float(row["wasted_usd"]))


def _groups(workers: Iterable[Row], by: str) -> list[CostLine]:
    grouped: defaultdict[str, list[CostLine]] = defaultdict(list)
    for row in workers:
        name = short_gpu(row["gpu_type"] or "") if by == "gpu" else row[by]
        grouped[name or f"(no {by})"].append(_of_worker(row))
    return [
        CostLine(
            name,
            sum(line.usd for line in parts),
            sum(line.seconds for line in parts),
            {kind: sum(line.kinds.get(kind, 0.0) for line in parts) for kind in KINDS},
            len(parts),
        )
        for name, parts in grouped.items()
    ]
