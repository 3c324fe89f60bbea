"""The settings of a pool that a replay knows, and the rule that they make."""

from dataclasses import dataclass, replace

from orchestrator.core.economics.fixed import FixedRule
from orchestrator.core.economics.learned import LearnedRule
from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.economics.rule import Decision, PoolView, Rule
from orchestrator.core.economics.statistics import Statistics


@dataclass(slots=True)
class AtLeast:
    """A rule whose pool always has `min_active` workers, and `keep_idle` beside the busy ones."""

    rule: Rule
    min_active: int
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
        """Start what is missing, and end no worker that has to stay: of the idle ones, the newest last use stays."""
        decided = self.rule.decide(view)
        least = min(max(len(view.busy) + self.keep_idle, self.min_active), view.most)
        ends = decided.ends[: max(0, view.live - least)]
        starts = max(decided.starts, least - view.live)
        why = decided.why if starts == decided.starts else f"start {starts}: at least {least}"
        return replace(decided, starts=starts, ends=ends, why=why if starts or ends else "")


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

    def kept(self, rule: Rule) -> Rule:
        """Return a rule whose pool has the workers that these settings keep in any case."""
        if not self.min_active and not self.keep_idle:
            return rule
        return AtLeast(rule, self.min_active, self.keep_idle)

    def rule(self, boot_s: float) -> Rule:
        """Return the rule of a pool that has learned nothing. `boot_s` is its first estimate."""
        if self.scaling_policy is ScalingPolicy.LEARNED:
            return self.kept(LearnedRule(Statistics(boot_s), self.wait_price, self.max_wait_s))
        return FixedRule(
            self.tasks_per_gpu,
            self.idle_timeout_s,
            self.overcapacity_idle_timeout_s,
            self.grace_s,
            min_active=self.min_active,
            keep_idle=self.keep_idle,
        )
