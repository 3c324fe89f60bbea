"""What a replay cost, and how long its tasks waited."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from orchestrator.core.economics.daily_budget import DAY_S, HOUR_S
from orchestrator.core.economics.replay import RecordedTask, Replayed


@dataclass(frozen=True, slots=True)
class Billing:
    """Which time of a worker is paid: by default, from the request to the end."""

    unpaid_s: float = 0.0  # of a boot, before the provider counts
    ending_s: float = 0.0  # from the decision to end a worker until the provider counts no more
    until: float | None = None  # nothing later counts; None: the end of the last task


BY_REQUEST = Billing()


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


def outcome(tasks: Sequence[RecordedTask], replayed: Replayed, billing: Billing = BY_REQUEST) -> ReplayOutcome:
    """Sum up a replay."""
    waits = sorted(waits_of(tasks, replayed))
    spans = paid_spans(tasks, replayed, billing)
    return ReplayOutcome(
        gpu_s=sum(ended - asked for asked, ended in spans),
        boots=len(spans),
        waited_s=sum(waits),
        wait_p50_s=quantile(waits, 0.5),
        wait_p95_s=quantile(waits, 0.95),
        wait_max_s=waits[-1] if waits else None,
        unpaid=len(tasks) - len(waits),
        most_on_a_day_gpu_s=max(gpu_s_by_day(spans).values(), default=0.0),
    )


def waits_of(tasks: Sequence[RecordedTask], replayed: Replayed) -> list[float]:
    """Return how long each task waited that started, in seconds."""
    pairs = zip(tasks, replayed.tasks, strict=True)
    return [start.at - task.arrival_s for task, start in pairs if start is not None]


def paid_spans(tasks: Sequence[RecordedTask], replayed: Replayed, billing: Billing) -> list[tuple[float, float]]:
    """Return from when until when each worker is paid. One that never ends is paid until the end of the billing."""
    until = billing.until if billing.until is not None else _last_end(tasks, replayed)
    spans = []
    for one in replayed.workers:
        if one.asked <= until:
            ended = until if one.ended is None else one.ended + billing.ending_s
            spans.append((one.asked + billing.unpaid_s, max(one.asked + billing.unpaid_s, min(ended, until))))
    return spans


def _last_end(tasks: Sequence[RecordedTask], replayed: Replayed) -> float:
    pairs = zip(tasks, replayed.tasks, strict=True)
    ends = [start.at + task.duration_s for task, start in pairs if start is not None]
    return max([*ends, *(one.ended or one.asked for one in replayed.workers)], default=0.0)


def gpu_s_by_day(spans: Sequence[tuple[float, float]]) -> dict[int, float]:
    """Return the seconds of spans within each day."""
    days: dict[int, float] = {}
    for began, ended in spans:
        for day in range(int(began // DAY_S), int(ended // DAY_S) + 1):
            days[day] = days.get(day, 0.0) + min(ended, (day + 1) * DAY_S) - max(began, day * DAY_S)
    return days


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """Return the value that this share of the values does not exceed; None if there are none."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None
