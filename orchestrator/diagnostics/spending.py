"""What money did no work, by name, and where the day ends at the present rate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import usd
from orchestrator.diagnostics.cost import CostLine, gone, lines

Row = Mapping[str, Any]
HOUR_S = 3_600.0
SMALLEST_USD = 0.000001  # what is less is a rounding
MOST = 3  # workers that are named


@dataclass(frozen=True, slots=True)
class Waste:
    """Money that did no work, for one reason."""

    name: str
    usd: float
    count: int  # of `unit`
    unit: str
    means: str
    fix: str
    most: Sequence[tuple[str, float]] = ()  # the workers that had most of it, with dollars


@dataclass(frozen=True, slots=True)
class Forecast:
    """Where the day (UTC) ends if every worker stays and none comes."""

    today_usd: float
    hourly_usd: float
    left_s: float
    daily_budget_usd: float | None
    hourly_budget_usd: float | None

    @property
    def usd(self) -> float:
        """The whole day."""
        return self.today_usd + self.hourly_usd * self.left_s / HOUR_S

    @property
    def reached_in_s(self) -> float | None:
        """Seconds until the budget of the day is used up, 0 if it is; None if that is not today."""
        if self.daily_budget_usd is None or self.usd < self.daily_budget_usd:
            return None
        left_usd = self.daily_budget_usd - self.today_usd
        return left_usd / self.hourly_usd * HOUR_S if left_usd > 0 else 0.0


def bought(report: Row) -> str | None:
    """Return what idle and booting time bought, in a sentence. None: nothing was spent on them, or it is not known."""
    counts = report.get("bought")
    spent = {kind: float(part["usd"]) for kind, part in report["kinds"].items()}
    idle, booting = spent.get("idle", 0.0), spent.get("booting", 0.0)
    if not counts or not idle + booting > SMALLEST_USD:
        return None
    workers, failed = counted(counts["workers"], "worker"), counts["failed_workers"]
    parts = [f"{usd(booting)} of booting bought {workers}"]
    if failed:
        parts[0] += f", and {failed:,} that did not come up"
    if idle > SMALLEST_USD:
        parts.insert(0, f"{usd(idle)} of idle time bought {counted(counts['warm_starts'], 'start')} without a boot")
    return "; ".join(parts) + "."


def forecast(spent: Row, now: datetime, daily_usd: float | None, hourly_usd: float | None) -> Forecast:
    """The forecast by what `fleet_observe` says is spent, and the two budgets."""
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    left_s = (midnight - now).total_seconds()
    return Forecast(float(spent["today_usd"]), float(spent["hourly_usd"]), left_s, daily_usd, hourly_usd)


def wasted(report: Row) -> tuple[Waste, ...]:
    """What did no work in a report of fleet_cost(), the most expensive first. The parts do not overlap."""
    workers, types = lines(report, "worker"), lines(report, "type")
    ended = {row["id"] for row in report["workers"] if row["status"] in {"terminating", "terminated"}}
    failed = [one for one in workers if one.name in ended and _never_worked(one)]
    others = [one for one in workers if one not in failed]
    deleted = gone(report)
    deleted_busy_usd = deleted.kinds["busy"] if deleted else 0.0
    deleted_usd = deleted.usd - deleted_busy_usd if deleted else 0.0
    uses = sum(kind != "busy" and usd > 0 for kind, usd in deleted.kinds.items()) if deleted else 0
    busy_usd, tasks_usd = _kind(workers, "busy") + deleted_busy_usd, sum(one.usd for one in types)
    made = (
        _of_workers("starts that failed", failed, ("booting", "draining"), "ended before they were ready",
                    "the failing stage says why: orchestrator list --all"),
        _of_workers("starting", others, ("booting",), "from the creation of the pod until it was ready",
                    "a smaller image, handlers that load faster, or workers that live longer"),
        _of_workers("idle", others, ("idle",), "ready, without a task",
                    "GPU_IDLE_TIMEOUT_SEC, and keep_idle of the pool"),
        _of_workers("ending", others, ("draining",), "logs are saved, and the pod is deleted", "none is needed"),
        Waste("deleted rows", deleted_usd, uses, "use", "booting, idle and ending workers whose rows are gone",
              "keep the rows of workers as long as their costs are of interest"),
        Waste("failed attempts", sum(one.wasted_usd for one in types), sum(one.wasted_usd > 0 for one in types),
              "task type", "attempts that did not complete", "orchestrator tasks list --status Failed shows why"),
        Waste("between tasks", max(0.0, busy_usd - tasks_usd), sum(one.kinds.get("busy", 0.0) > 0 for one in workers),
              "worker", "active, and no attempt ran: a claim, or a task that gave no sign", "batch of the pool"),
    )  # fmt: skip
    return tuple(sorted((one for one in made if one.usd > SMALLEST_USD), key=lambda one: (-one.usd, one.name)))


def _never_worked(worker: CostLine) -> bool:
    return "booting" in worker.kinds and not worker.kinds.keys() & {"busy", "idle"}


def _kind(workers: Sequence[CostLine], kind: str) -> float:
    return sum(one.kinds.get(kind, 0.0) for one in workers)


def _of_workers(name: str, workers: Sequence[CostLine], kinds: Sequence[str], means: str, fix: str) -> Waste:
    spent = [(one.name, sum(one.kinds.get(kind, 0.0) for kind in kinds)) for one in workers]
    with_some = sorted(((worker, usd) for worker, usd in spent if usd > 0), key=lambda one: -one[1])
    return Waste(name, sum(usd for _, usd in with_some), len(with_some), "worker", means, fix, with_some[:MOST])
