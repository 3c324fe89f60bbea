"""The settings of a pool that a replay knows, and the rule that they make."""

from dataclasses import dataclass, replace

from orchestrator.core.economics.fixed import FixedRule
from orchestrator.core.economics.learned import LearnedRule
from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.economics.rule import Decision, PoolView, Rule
from orchestrator.core.economics.sizes import PoolSizes, SizeStep
from orchestrator.core.economics.statistics import Statistics


@dataclass(slots=True)
class AtLeast:
    """A rule whose pool always has the least workers of the view, and `keep_idle` beside the busy ones."""

    rule: Rule
    keep_idle: int = 0

    def arrived(self, level: int, now: float) -> None:
        """Tell the rule."""
        self.rule.arrived(level, now)

    def booted(self, boot_s: float) -> None:
        """Tell the rule."""
        self.rule.booted(boot_s)

    def ended(self, level: int, run_s: float, now: float) -> None:
        """Tell the rule."""
        self.rule.ended(level, run_s, now)

    def decide(self, view: PoolView) -> Decision:
        """Start what is missing. The rule knows which workers have to stay."""
        least = min(max(len(view.busy) + self.keep_idle, view.least), view.most)
        decided = self.rule.decide(replace(view, least=least))
        missing = least - view.live
        if missing <= decided.starts:
            return decided
        return replace(decided, starts=missing, why=f"start {missing}: at least {least}")


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """How one pool grows and shrinks. The names are those of `core.policy.Pool`, the defaults those of the settings."""

    max_active: int = 2
    scaling_policy: ScalingPolicy = ScalingPolicy.FIXED
    wait_price: float = 1.0
    max_wait_s: float | None = None
    tasks_per_gpu: int = 3
    min_active: int = 0
    keep_idle: int = 0
    idle_timeout_s: float = 600.0
    overcapacity_idle_timeout_s: float = 30.0
    grace_s: float = 60.0  # SCALE_DOWN_GRACE_PERIOD_SEC
    scheduled: tuple[SizeStep, ...] = ()  # of the time that is replayed

    @property
    def sizes(self) -> PoolSizes:
        """Return how many workers the pool may and must have."""
        return PoolSizes(self.max_active, self.min_active, self.scheduled)

    def kept(self, rule: Rule) -> Rule:
        """Return a rule whose pool has the workers that these settings keep in any case."""
        return AtLeast(rule, self.keep_idle) if self.min_active or self.keep_idle or self.scheduled else rule

    def rule(self, boot_s: float) -> Rule:
        """Return the rule of a pool that has learned nothing. `boot_s` is its first estimate."""
        if self.scaling_policy is ScalingPolicy.LEARNED:
            return self.kept(LearnedRule(Statistics(boot_s), self.wait_price, self.max_wait_s))
        return FixedRule(
            self.tasks_per_gpu,
            self.idle_timeout_s,
            self.overcapacity_idle_timeout_s,
            self.grace_s,
            keep_idle=self.keep_idle,
        )
