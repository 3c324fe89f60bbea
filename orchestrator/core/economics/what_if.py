"""What the recorded tasks of several pools would have cost under other settings, and how far to trust a replay."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.economics.daily_budget import HOUR_S
from orchestrator.core.economics.outcome import Billing, gpu_s_by_day, paid_spans, waits_of
from orchestrator.core.economics.recorded import RecordedPool, Waits
from orchestrator.core.economics.replay import Replayed, Terms, replay
from orchestrator.core.economics.rule import Rule
from orchestrator.core.economics.scaling_settings import ScalingSettings
from orchestrator.core.economics.sizes import PoolSizes


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """What the pools cost together, and how long their tasks waited."""

    usd: float
    boots: int
    waits: Waits
    most_on_a_day_usd: float | None = None  # None: not known
    waited_s: float = 0.0  # all tasks together
    unrun: int = 0  # tasks that no worker ran: the settings allow none


@dataclass(frozen=True, slots=True)
class PoolReplayed:
    """One pool under some settings."""

    history: RecordedPool
    replayed: Replayed
    billing: Billing
    usd_per_hour: float

    @property
    def spans(self) -> list[tuple[float, float]]:
        """Return from when until when each worker is paid."""
        return paid_spans(self.history.tasks, self.replayed, self.billing)

    @property
    def paid_s(self) -> float:
        """Return the seconds that are paid."""
        return sum(ended - began for began, ended in self.spans)

    @property
    def waits_s(self) -> list[float]:
        """Return how long each task waited that ran."""
        return waits_of(self.history.tasks, self.replayed)


def recorded(histories: Sequence[RecordedPool], longer_than_s: float) -> FleetFigures:
    """Return what really happened."""
    waits_s = [wait_s for one in histories for wait_s in one.waits_s]
    return FleetFigures(
        usd=sum(one.costs.usd for one in histories),
        boots=sum(one.costs.boots for one in histories),
        waits=Waits.of(waits_s, longer_than_s),
        waited_s=sum(waits_s),
    )


def replayed_pool(
    history: RecordedPool, rule: Rule, sizes: PoolSizes, since: float, until: float, usd_per_hour: float
) -> PoolReplayed:
    """Replay the tasks of one pool between two moments. Its workers boot and cost as they did."""
    costs, boot_s = history.costs, history.boot_s
    terms = Terms(boot_s, sizes.most, begins_at=since, least=sizes.least, steps=sizes.steps)
    done = replay(history.tasks, lambda _: rule, terms)
    unpaid_s = min(max(costs.unpaid_s, 0.0), boot_s)
    return PoolReplayed(history, done, Billing(unpaid_s, max(costs.ending_s, 0.0), until), usd_per_hour)


def prices(histories: Sequence[RecordedPool], otherwise: float = 0.0) -> dict[str, float]:
    """Return the mean dollars per hour of a worker of each pool; of one that paid nothing, the mean of the others."""
    usd, paid_s = sum(one.costs.usd for one in histories), sum(one.costs.paid_s for one in histories)
    mean = usd / paid_s * HOUR_S if paid_s > 0 else otherwise
    return {one.pool: one.costs.usd_per_hour or mean for one in histories}


def figures(pools: Sequence[PoolReplayed], longer_than_s: float) -> FleetFigures:
    """Sum up the pools of a fleet."""
    waits_s = [wait_s for one in pools for wait_s in one.waits_s]
    days: defaultdict[int, float] = defaultdict(float)
    usd, boots = 0.0, 0
    for one in pools:
        spans = one.spans
        boots += len(spans)
        for day, seconds in gpu_s_by_day(spans).items():
            spent = seconds * one.usd_per_hour / HOUR_S
            days[day] += spent
            usd += spent
    waits = Waits.of(waits_s, longer_than_s)
    tasks = sum(len(one.history.tasks) for one in pools)
    return FleetFigures(usd, boots, waits, max(days.values(), default=0.0), sum(waits_s), tasks - len(waits_s))


def replayed_fleet(
    histories: Sequence[RecordedPool], settings: Mapping[str, ScalingSettings], since: float, until: float
) -> list[PoolReplayed]:
    """Replay each pool that has settings."""
    paid = prices(histories)
    return [
        replayed_pool(one, chosen.rule(one.boot_s), chosen.sizes, since, until, paid[one.pool])
        for one in histories
        if (chosen := settings.get(one.pool)) is not None
    ]


def error(replayed: float | None, measured: float | None) -> float | None:
    """Return by which share of the measured value the replay differs; None if there is nothing to compare with."""
    if replayed is None or not measured:
        return None
    return replayed / measured - 1
