"""What a replay cost, and how long its tasks waited."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from orchestrator.core.economics.daily_budget import DAY_S, HOUR_S
from orchestrator.core.economics.replay import RecordedTask, Replayed


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """The sums of one replay. Waits are None if no task started."""

    gpu_s: float  # from the requests of the workers to their ends
    boots: int
    waited_s: float  # all tasks together
    wait_p50_s: float | None
    wait_p95_s: float | None
    wait_max_s: float | None
    unpaid: int  # tasks that the budget left undone
    most_on_a_day_gpu_s: float

    def usd(self, usd_per_hour: float) -> float:
        """Return the dollars."""
        return self.gpu_s * usd_per_hour / HOUR_S

    def cost_and_waiting_s(self, wait_price: float) -> float:
        """Return GPU-seconds, with the waiting at its price."""
        return self.gpu_s + wait_price * self.waited_s


def outcome(tasks: Sequence[RecordedTask], replayed: Replayed) -> ReplayOutcome:
    """Sum up a replay."""
    pairs = zip(tasks, replayed.tasks, strict=True)
    waits = sorted(start.at - task.arrival_s for task, start in pairs if start is not None)
    spans = [(one.asked, one.ended) for one in replayed.workers if one.ended is not None]
    return ReplayOutcome(
        gpu_s=sum(ended - asked for asked, ended in spans),
        boots=len(replayed.workers),
        waited_s=sum(waits),
        wait_p50_s=_quantile(waits, 0.5),
        wait_p95_s=_quantile(waits, 0.95),
        wait_max_s=waits[-1] if waits else None,
        unpaid=len(tasks) - len(waits),
        most_on_a_day_gpu_s=max(gpu_s_by_day(spans).values(), default=0.0),
    )


def gpu_s_by_day(spans: Sequence[tuple[float, float]]) -> dict[int, float]:
    """Return the seconds of spans within each day."""
    days: dict[int, float] = {}
    for began, ended in spans:
        for day in range(int(began // DAY_S), int(ended // DAY_S) + 1):
            days[day] = days.get(day, 0.0) + min(ended, (day + 1) * DAY_S) - max(began, day * DAY_S)
    return days


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None
