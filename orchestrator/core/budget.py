"""Money: what a worker reserves, whether another one fits, and who goes when there is none left.

A worker reserves what ending it in good order may still cost: its price for as long as draining, flushing and deleting
may take. So spent + committed (the reservations of all live workers) is the worst case at every moment: when it
reaches DAILY_BUDGET_USD every worker is drained, and what that costs is within the budget. A new worker must fit with
room for a bring-up on top, or it would be drained before it did anything. The database checks the same sums in the
statement that records an intent; here they say why nothing is spawned.
"""

from collections.abc import Iterable
from typing import Any

from orchestrator.core.actions import Terminate
from orchestrator.core.blocked import Blocked, Kind
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import Offer, Policy, Pool, Snapshot, Worker
from orchestrator.core.states import Stage, State

SLACK_S = 180.0  # until a tick has seen it, and until the provider has carried out a delete
ORDER = (State.SPAWNING, State.IDLE, State.ACTIVE)  # who goes first when an hour costs too much
HOUR_S = 3600.0


def wind_down_s(policy: Policy) -> float:
    """The longest that a worker bills from the decision to end it."""
    return policy.drain_grace_s + policy.flush_deadline_s + SLACK_S


def reservation(usd_per_hour: float | None, policy: Policy) -> dict[str, object]:
    """The fields of an intent, or of a move, that reserve a worker's money and name the budget it must fit into."""
    rate = usd_per_hour or 0.0
    limits = {"hourly_usd": policy.hourly_budget_usd, "daily_usd": policy.daily_budget_usd}
    return {
        "reserved_usd": round(rate * wind_down_s(policy) / HOUR_S, 6),
        "reserved_usd_per_hour": rate,
        "budget": limits | {"useful_usd": round(rate * policy.spawning_timeout_s / HOUR_S, 6)},
    }


def rented(usd_per_hour: float | None, policy: Policy) -> dict[str, Any]:
    """The same of a pod that is there: what it may cost is a fact, whatever the budget; nothing without a price."""
    if usd_per_hour is None:
        return {}
    return reservation(usd_per_hour, policy) | {"price_usd_per_hour": usd_per_hour, "budget": None}


class BudgetRoom:
    """What may still be committed in this tick; what is taken counts at once."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._policy, self._prices = policy, snapshot.prices
        self._hourly_usd = snapshot.spent.hourly_usd
        self._today_usd, self._committed_usd = snapshot.spent.today_usd, snapshot.spent.committed_usd

    def price(self, pool: Pool, offer: Offer) -> float | None:
        """Dollars an hour of one worker."""
        of_one = self._prices.get(f"{offer.gpu_type}|{offer.cloud}")
        return None if of_one is None else of_one * pool.gpu_count

    def refusal(self, pool: Pool, offer: Offer, own: Worker | None = None) -> Blocked | None:
        """Why the budgets do not allow this offer, with the arithmetic; `own` has a reservation that this replaces."""
        hourly, daily = self._policy.hourly_budget_usd, self._policy.daily_budget_usd
        if hourly is None and daily is None:
            return None
        rate = self.price(pool, offer)
        if rate is None:
            return Blocked(Kind.PRICE_UNKNOWN, detail={"gpu_type": offer.gpu_type, "cloud": offer.cloud})
        running = self._hourly_usd - (own.reserved_usd_per_hour if own else 0)
        if hourly is not None and running + rate > hourly:
            detail = {"running_usd": running, "rate_usd": rate, "gpu_type": offer.gpu_type, "limit_usd": hourly}
            return Blocked(Kind.HOURLY_BUDGET, detail=detail)
        committed = self._committed_usd - (own.reserved_usd if own else 0)
        room = rate * (wind_down_s(self._policy) + self._policy.spawning_timeout_s) / HOUR_S
        if daily is not None and self._today_usd + committed + room > daily:
            spent = {"spent_usd": self._today_usd, "committed_usd": committed, "needed_usd": room}
            return Blocked(Kind.DAILY_BUDGET, detail={**spent, "gpu_type": offer.gpu_type, "limit_usd": daily})
        return None

    def take(self, pool: Pool, offer: Offer, own: Worker | None = None) -> None:
        """Count the reservation of a worker on this offer."""
        rate = self.price(pool, offer) or 0.0
        self._hourly_usd += rate - (own.reserved_usd_per_hour if own else 0)
        self._committed_usd += rate * wind_down_s(self._policy) / HOUR_S - (own.reserved_usd if own else 0)


def plan(snapshot: Snapshot, policy: Policy, *, leaving: frozenset[str]) -> list[Terminate]:
    """Drain everybody when the day's budget is used up, and the newest when an hour costs more than it may."""
    others = leaving | snapshot.in_flight
    here = [w for w in snapshot.workers if w.state in ORDER and w.id not in others]
    here.sort(key=lambda w: (-ORDER.index(w.state), w.created_at), reverse=True)
    spent, daily = snapshot.spent, policy.daily_budget_usd
    if daily is not None and spent.today_usd + spent.committed_usd >= daily:
        sums = f"${spent.today_usd:.2f} spent today + ${spent.committed_usd:.2f} committed"
        why = f"{sums} reach DAILY_BUDGET_USD={daily:g}"
        return [_end(worker, why) for worker in here]
    if policy.hourly_budget_usd is None:
        return []
    staying = spent.hourly_usd - sum(
        _rate(w) for w in snapshot.workers if w.state is State.TERMINATING or w.id in leaving
    )
    return list(_down_to(policy.hourly_budget_usd, staying, here))


def _down_to(limit: float, hourly_usd: float, workers: Iterable[Worker]) -> Iterable[Terminate]:
    for worker in workers:
        if hourly_usd <= limit:
            return
        yield _end(worker, f"${hourly_usd:.2f}/h running > MAX_HOURLY_COST_USD={limit:g}")
        hourly_usd -= _rate(worker)


def _end(worker: Worker, why: str) -> Terminate:
    no_pod = FailureCode.INTENT_STALE if worker.stage is Stage.INTENT else None
    return Terminate(worker.id, worker.state, ExitCause.BUDGET, no_pod, why)


def _rate(worker: Worker) -> float:
    known = worker.price_usd_per_hour
    return worker.reserved_usd_per_hour if known is None else known
