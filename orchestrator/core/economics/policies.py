"""The rules by the names that SCALING_POLICY knows."""

from collections.abc import Callable
from enum import StrEnum

from orchestrator.core.economics.fixed import FixedRule
from orchestrator.core.economics.learned import LearnedRule
from orchestrator.core.economics.rule import Rule
from orchestrator.core.economics.statistics import Statistics


class ScalingPolicy(StrEnum):
    """How a pool grows and shrinks."""

    FIXED = "fixed"
    LEARNED = "learned"


class ReviewCandidate(StrEnum):
    """A rule that may run tomorrow. Of two with the same cost, the first one here runs."""

    FIXED = "fixed"  # the operator's fixed settings
    LEARNED = "learned"
    COLD_START = "cold_start"  # starts workers as learned does, and keeps each idle one for one cold start


def rule_for(policy: ScalingPolicy, boot_s: float, wait_price: float) -> Callable[[str], Rule]:
    """Return what makes the rule of a pool that has learned nothing. `boot_s` is its first estimate."""
    if policy is ScalingPolicy.FIXED:
        return lambda _: FixedRule()
    return lambda _: LearnedRule(Statistics(boot_s), wait_price)
