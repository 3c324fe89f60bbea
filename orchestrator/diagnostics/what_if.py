"""What a replay of tasks says about the rules of scaling: the changes, and a recommendation."""

from orchestrator.core.economics.outcome import ReplayOutcome
from orchestrator.diagnostics.amounts import span

NOTICEABLE = 0.01  # a smaller share is called the same


def change(after: float, before: float) -> float | None:
    """Return the change as a share of `before`; None if that is zero."""
    return after / before - 1 if before else None


def percent(share: float | None) -> str:
    """`-18 %`, `+5 %`, `0 %`; a dash for unknown."""
    return "–" if share is None else f"{share * 100:+.0f} %" if round(share * 100) else "0 %"


def recommendation(fixed: ReplayOutcome, learned: ReplayOutcome, wait_price: float) -> str:
    """Recommend `learned` if it costs less and its tasks wait less, in all and at p95; or name the trade-off."""
    if fixed.unpaid or learned.unpaid:
        return f"No recommendation: the budget leaves tasks undone (fixed {fixed.unpaid}, learned {learned.unpaid})."
    cost = f"costs {_compared(learned.gpu_s, fixed.gpu_s, 'as much')}"
    waiting = f"its tasks wait {_compared(learned.waited_s, fixed.waited_s, 'as long')} in all"
    slowest, before = learned.wait_p95_s or 0.0, fixed.wait_p95_s or 0.0
    p95 = f"one task in 20 waits more than {span(slowest)} (fixed: {span(before)})"
    costs_less = learned.gpu_s < fixed.gpu_s
    waits_less = learned.waited_s < fixed.waited_s and slowest <= before
    waits_more = learned.waited_s >= fixed.waited_s and slowest >= before
    if costs_less and waits_less:
        return f"Recommendation: learned. It {cost}; {waiting}; {p95}."
    if not costs_less and waits_more:
        return f"Recommendation: keep fixed. Learned {cost}; {waiting}; {p95}."
    total = percent(change(learned.cost_and_waiting_s(wait_price), fixed.cost_and_waiting_s(wait_price)))
    both = f"At a wait price of {wait_price:g}, cost and waiting together change by {total}."
    return f"A trade-off: learned {cost}; {waiting}; {p95}. {both}"


def _compared(after: float, before: float, same: str) -> str:
    """`18% less`, `4% more`, `as long`."""
    share = change(after, before)
    if share is None or abs(share) < NOTICEABLE:
        return same if share is not None or not after else "more"
    return f"{abs(share):.0%} {'more' if share > 0 else 'less'}"
