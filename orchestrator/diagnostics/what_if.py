"""What a replay of tasks says about the rules of scaling: the changes, how far to trust it, and a recommendation."""

from dataclasses import dataclass

from orchestrator.core.economics.outcome import ReplayOutcome
from orchestrator.core.economics.what_if import FleetFigures, error
from orchestrator.diagnostics.amounts import FINE, span, usd

NOTICEABLE = 0.01  # a smaller share is called the same


@dataclass(frozen=True, slots=True)
class Judged:
    """What a recommendation compares of one set of rules or settings. Costs have any unit, the same for all."""

    name: str
    cost: float
    waited_s: float
    wait_p95_s: float
    unrun: int

    @classmethod
    def of_outcome(cls, name: str, one: ReplayOutcome) -> "Judged":
        """Return a rule in a trace."""
        return cls(name, one.gpu_s, one.waited_s, one.wait_p95_s or 0.0, one.unpaid)

    @classmethod
    def of_figures(cls, name: str, one: FleetFigures) -> "Judged":
        """Return some settings over what was recorded."""
        return cls(name, one.usd, one.waited_s, one.waits.p95_s or 0.0, one.unrun)


def change(after: float, before: float) -> float | None:
    """Return the change as a share of `before`; None if that is zero."""
    return after / before - 1 if before else None


def percent(share: float | None) -> str:
    """`-18 %`, `+5 %`, `0 %`; a dash for unknown."""
    return "–" if share is None else f"{share * 100:+.0f} %" if round(share * 100) else "0 %"


def trust(replayed: FleetFigures, recorded: FleetFigures) -> str:
    """Say by how much a replay of the settings in force differs from the records, and so how far to trust the rest."""
    found = [
        (f"{_cents(replayed.usd)} where {_cents(recorded.usd)} was recorded", error(replayed.usd, recorded.usd)),
        (f"{replayed.boots:,} boots for {recorded.boots:,}", error(replayed.boots, recorded.boots)),
        (f"a p95 wait of {span(replayed.waits.p95_s)} for {span(recorded.waits.p95_s)}",
         error(replayed.waits.p95_s, recorded.waits.p95_s)),
    ]  # fmt: skip
    known = [f"{text} ({percent(share)})" for text, share in found if share is not None]
    if not known:
        return "The records have no costs and no waits with which a replay of your settings could be compared."
    gives = f"{', '.join(known[:-1])} and {known[-1]}" if known[1:] else known[0]
    return f"A replay of your settings gives {gives}, so trust the rest as far as that."


def recommendation(fixed: ReplayOutcome, learned: ReplayOutcome, wait_price: float) -> str:
    """Recommend `learned` if it costs less and its tasks wait less, in all and at p95; or name the trade-off."""
    if fixed.unpaid or learned.unpaid:
        return f"No recommendation: the budget leaves tasks undone (fixed {fixed.unpaid}, learned {learned.unpaid})."
    told = advice(Judged.of_outcome("fixed", fixed), Judged.of_outcome("learned", learned))
    if not told.startswith("A trade-off"):
        return told
    total = percent(change(learned.cost_and_waiting_s(wait_price), fixed.cost_and_waiting_s(wait_price)))
    return f"{told} At a wait price of {wait_price:g}, cost and waiting together change by {total}."


def advice(before: Judged, after: Judged) -> str:
    """Recommend `after` if it costs less and its tasks wait less, in all or at p95; or name the trade-off.

    A difference below NOTICEABLE counts as none.
    """
    if before.unrun != after.unrun:
        few, many = sorted((before, after), key=lambda one: one.unrun)
        return f"No recommendation: {many.name} leaves {many.unrun - few.unrun:,} tasks more undone than {few.name}."
    cost = f"costs {_compared(after.cost, before.cost, 'as much')}"
    waiting = f"its tasks wait {_compared(after.waited_s, before.waited_s, 'as long')} in all"
    p95 = f"one task in 20 waits more than {span(after.wait_p95_s)} ({before.name}: {span(before.wait_p95_s)})"
    told = f"{cost}; {waiting}; {p95}."
    costs = _sign(after.cost, before.cost)
    waits = {_sign(after.waited_s, before.waited_s), _sign(after.wait_p95_s, before.wait_p95_s)}
    if costs < 0 and waits <= {-1, 0}:
        return f"Recommendation: {after.name}. It {told}" if -1 in waits else f"No trade-off: {after.name} {told}"
    if costs >= 0 and waits <= {0, 1}:
        return f"Recommendation: keep {before.name}. {_begun(after.name)} {told}"
    return f"A trade-off: {after.name} {told}"


def _sign(after: float, before: float) -> int:
    """Return -1 for noticeably less, 1 for noticeably more, and 0."""
    share = change(after, before)
    if share is None:
        return 1 if after > 0 else 0
    return 0 if abs(share) < NOTICEABLE else 1 if share > 0 else -1


def _cents(amount: float) -> str:
    """Return dollars; a small amount with more digits, so that two of them can be compared."""
    return usd(amount, FINE) if amount < 1 else usd(amount)


def _begun(name: str) -> str:
    """Return a rule's name as the first word of a sentence; the name of a setting stays as it is."""
    return name if "=" in name else name.capitalize()


def _compared(after: float, before: float, same: str) -> str:
    """`18% less`, `4% more`, `as long`."""
    share = change(after, before)
    if share is None or abs(share) < NOTICEABLE:
        return same if share is not None or not after else "more"
    return f"{abs(share):.0%} {'more' if share > 0 else 'less'}"
