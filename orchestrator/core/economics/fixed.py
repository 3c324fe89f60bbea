"""Today's rule with its settings: so many tasks for each worker, and fixed times for idle workers (core/scaling.py)."""

from dataclasses import dataclass
from math import ceil

from orchestrator.core.economics.rule import Decision, PoolView


@dataclass(slots=True)
class FixedRule:
    """SCALING_POLICY=fixed. The defaults are those of the settings."""

    tasks_per_gpu: int = 3
    idle_timeout_s: float = 600.0
    overcapacity_s: float = 30.0
    grace_s: float = 60.0  # after a start, for how long no worker ends because of overcapacity
    keep_idle: int = 0  # beside the busy ones
    last_start: float | None = None

    def arrived(self, level: int, now: float) -> None:
        """Learn nothing."""

    def booted(self, boot_s: float) -> None:
        """Learn nothing."""

    def ended(self, level: int, run_s: float, now: float) -> None:
        """Learn nothing."""

    def decide(self, view: PoolView) -> Decision:
        """Start what is missing to the target, or end idle workers beyond it, the newest first."""
        demand = view.queued + len(view.busy)
        warm = max(len(view.busy) + self.keep_idle, view.least)
        target = min(max(ceil(demand / self.tasks_per_gpu), warm), view.most)
        missing = target - view.live
        if missing > 0:
            self.last_start = view.now
            kept = f", at least {warm} kept" if warm > len(view.busy) else ""
            why = f"start {missing}: {demand} tasks, {self.tasks_per_gpu} per GPU{kept}"
            return Decision(starts=missing, why=why)
        return self._ends(view, target, surplus=-missing)

    def _ends(self, view: PoolView, target: int, surplus: int) -> Decision:
        beyond_warm = len(view.busy) + len(view.idle) - max(target, min(1, view.most))
        settled_at = view.now if self.last_start is None else self.last_start + self.grace_s
        ends: list[int] = []
        review_at: float | None = None
        for place in sorted(range(len(view.idle)), key=lambda one: view.idle[one].asked, reverse=True):
            if len(ends) >= surplus:
                break
            since = view.idle[place].since
            due = since + self.idle_timeout_s
            if beyond_warm > 0:
                due = min(due, max(since + self.overcapacity_s, settled_at))
            if due <= view.now:
                ends.append(place)
                beyond_warm -= 1
            else:
                review_at = due if review_at is None else min(review_at, due)
        why = f"end {len(ends)}: idle, and beyond the target of {target}" if ends else ""
        return Decision(ends=tuple(ends), review_at=review_at, why=why)
