"""The nightly guard: which rule would have been cheapest over the last week. That one runs tomorrow."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite

from orchestrator.core.economics import what_if
from orchestrator.core.economics.learned import ColdStartRule
from orchestrator.core.economics.policies import ReviewCandidate, ScalingPolicy
from orchestrator.core.economics.recorded import RecordedPool
from orchestrator.core.economics.rule import Rule
from orchestrator.core.economics.scaling_settings import ScalingSettings
from orchestrator.core.economics.statistics import Statistics
from orchestrator.core.economics.what_if import FleetFigures


@dataclass(frozen=True, slots=True)
class PoolReview:
    """What each candidate would have cost in a pool, and what was recorded."""

    since: float
    until: float
    tasks: int
    boot_s: float
    wait_price: float
    usd_per_hour: float
    recorded: FleetFigures
    candidates: Mapping[ReviewCandidate, FleetFigures]
    costs_s: Mapping[ReviewCandidate, float]  # GPU-seconds, with the waiting at its price
    tomorrow: ReviewCandidate
    in_force: ReviewCandidate  # what the settings select

    @property
    def error(self) -> float | None:
        """Return by which share of the recorded dollars a replay of the settings in force differs; None: unknown."""
        return what_if.error(self.candidates[self.in_force].usd, self.recorded.usd)


def candidate_rule(candidate: ReviewCandidate, settings: ScalingSettings, boot_s: float) -> Rule:
    """Return the rule of a pool that has learned nothing."""
    if candidate is not ReviewCandidate.COLD_START:
        return replace(settings, scaling_policy=ScalingPolicy(candidate.value)).rule(boot_s)
    return settings.kept(ColdStartRule(Statistics(boot_s), settings.wait_price, settings.max_wait_s))


def cheapest(costs: Mapping[ReviewCandidate, float]) -> ReviewCandidate:
    """Return the candidate with the lowest finite cost. Equal costs, or no cost at all: the operator's settings."""
    known = {one: costs[one] for one in ReviewCandidate if one in costs and isfinite(costs[one])}
    return min(known, key=known.__getitem__, default=ReviewCandidate.FIXED)


def review(history: RecordedPool, settings: ScalingSettings, since: float, until: float) -> PoolReview:
    """Replay the tasks of a pool between two moments with each candidate."""
    usd_per_hour = what_if.prices([history])[history.pool]
    longest_s = settings.max_wait_s or 4 * history.boot_s
    found: dict[ReviewCandidate, FleetFigures] = {}
    costs_s: dict[ReviewCandidate, float] = {}
    for one in ReviewCandidate:
        rule = candidate_rule(one, settings, history.boot_s)
        done = what_if.replayed_pool(history, rule, settings.sizes, since, until, usd_per_hour)
        found[one] = what_if.figures([done], longest_s)
        costs_s[one] = done.paid_s + settings.wait_price * found[one].waited_s
    return PoolReview(
        since=since,
        until=until,
        tasks=len(history.tasks),
        boot_s=history.boot_s,
        wait_price=settings.wait_price,
        usd_per_hour=usd_per_hour,
        recorded=what_if.recorded([history], longest_s),
        candidates=found,
        costs_s=costs_s,
        tomorrow=cheapest(costs_s),
        in_force=ReviewCandidate(settings.scaling_policy.value),
    )
