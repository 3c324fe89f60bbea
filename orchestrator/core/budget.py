"""Money: what a worker reserves, whether another one fits, and which workers end when the budget is used up.

A worker reserves the cost of ending it: its price for the time that draining, flushing and deleting may take. So spent
+ committed (the reservations of all live workers) is the worst case at every moment. When it reaches DAILY_BUDGET_USD,
every worker is drained, and the cost of this stays within the budget. A new worker must fit with its bring-up on top,
or it would be drained before it completes a task. The statement that records an intent checks the same sums in the
database; here they explain why nothing is spawned.

A pod may cost more than the catalogue says. Then its price counts for the next pods of its offer, until a newer pod of
the offer shows another one: otherwise pods would be created and drained again without end, and each would cost money.
The prices come from the database, so a new leader knows them too.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from orchestrator.core.actions import Terminate
from orchestrator.core.blocked import Blocked, BlockedReason
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import PodPrice, Snapshot, Worker
from orchestrator.core.policy import Policy, Pool
from orchestrator.core.provider import Offer
from orchestrator.core.states import Stage, State

SLACK_S = 180.0  # for the tick to notice, and for the provider to complete a delete
ORDER = (State.SPAWNING, State.IDLE, State.ACTIVE)  # which workers end first when the hourly cost is too high
HOUR_S = 3600.0
PRICE_SEEN_S = 600.0  # for how long the price of an ended pod counts, if the budget did not end it
TOO_DEAR_S = 3600.0  # and if it did: no pod of its offer is tried at the catalogue's price before; doubles in a row
TOO_DEAR_MAX_S = 86_400.0


def wind_down_s(policy: Policy) -> float:
    """Return the longest time for which a worker costs money after the decision to end it."""
    return policy.drain_grace_s + policy.flush_deadline_s + SLACK_S


def reservation(usd_per_hour: float | None, policy: Policy) -> dict[str, object]:
    """Return the fields of an intent or a move that reserve a worker's money and name its budget."""
    rate = usd_per_hour or 0.0
    limits = {"hourly_usd": policy.hourly_budget_usd, "daily_usd": policy.daily_budget_usd}
    return {
        "reserved_usd": round(rate * wind_down_s(policy) / HOUR_S, 6),
        "reserved_usd_per_hour": rate,
        "budget": limits | {"useful_usd": round(rate * policy.spawning_timeout_s / HOUR_S, 6)},
    }


def reservation_of_pod(usd_per_hour: float | None, policy: Policy) -> dict[str, Any]:
    """Return the same fields for an existing pod, which costs money even beyond the budget. {} without a price."""
    if usd_per_hour is None:
        return {}
    return reservation(usd_per_hour, policy) | {"price_usd_per_hour": usd_per_hour, "budget": None}


class BudgetRoom:
    """The money that may still be committed in this tick. A reservation counts at once."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._policy, self._prices, self._seen = policy, snapshot.prices, _seen_prices(snapshot)
        self._hourly_usd = snapshot.spent.hourly_usd
        self._today_usd, self._committed_usd = snapshot.spent.today_usd, snapshot.spent.committed_usd

    def price(self, pool: Pool, offer: Offer) -> float | None:
        """Return the dollars per hour of one worker: by the catalogue, or what the offer's last pod cost if more."""
        seen = self._seen.get(offer.key)
        known = (self._listed(pool, offer), None if seen is None else seen.usd_per_gpu_hour * pool.gpu_count)
        return max((usd for usd in known if usd is not None), default=None)

    def refusal(self, pool: Pool, offer: Offer, own: Worker | None = None) -> Blocked | None:
        """Return why the budgets do not allow this offer, with the sums.

        `own` has a reservation that this one replaces.
        """
        if self._policy.hourly_budget_usd is None and self._policy.daily_budget_usd is None:
            return None
        rate, listed = self.price(pool, offer), self._listed(pool, offer)
        if rate is None:
            return Blocked(BlockedReason.PRICE_UNKNOWN, detail={"gpu_type": offer.gpu_type, "cloud": offer.cloud})
        reason = self._excess(offer, rate, own)
        if reason is None or listed is None or self._excess(offer, listed, own):
            return reason
        detail = {**reason.detail, "offer": offer.key, "rate_usd": rate, "listed_usd": listed}
        return Blocked(BlockedReason.DEAR_PODS, detail=detail, until=_counts_until(self._seen[offer.key]))

    def _listed(self, pool: Pool, offer: Offer) -> float | None:
        """Return the dollars per hour of one worker by the catalogue."""
        usd = self._prices.get(f"{offer.gpu_type}|{offer.cloud}")
        return None if usd is None else usd * pool.gpu_count

    def _excess(self, offer: Offer, rate: float, own: Worker | None) -> Blocked | None:
        """Return why the budgets do not allow a worker of this price."""
        hourly, daily = self._policy.hourly_budget_usd, self._policy.daily_budget_usd
        running = self._hourly_usd - (own.reserved_usd_per_hour if own else 0)
        if hourly is not None and running + rate > hourly:
            detail = {"running_usd": running, "rate_usd": rate, "gpu_type": offer.gpu_type, "limit_usd": hourly}
            return Blocked(BlockedReason.HOURLY_BUDGET, detail=detail)
        committed = self._committed_usd - (own.reserved_usd if own else 0)
        room = rate * (wind_down_s(self._policy) + self._policy.spawning_timeout_s) / HOUR_S
        if daily is not None and self._today_usd + committed + room > daily:
            spent = {"spent_usd": self._today_usd, "committed_usd": committed, "needed_usd": room}
            return Blocked(BlockedReason.DAILY_BUDGET, detail={**spent, "gpu_type": offer.gpu_type, "limit_usd": daily})
        return None

    def take(self, pool: Pool, offer: Offer, own: Worker | None = None) -> None:
        """Count the reservation of a worker on this offer."""
        rate = self.price(pool, offer) or 0.0
        self._hourly_usd += rate - (own.reserved_usd_per_hour if own else 0)
        self._committed_usd += rate * wind_down_s(self._policy) / HOUR_S - (own.reserved_usd if own else 0)


def _seen_prices(snapshot: Snapshot) -> Mapping[str, PodPrice]:
    """Return the price that counts of each offer: of its newest pod, the most expensive one if several are as new."""
    live = [
        PodPrice(w.metadata.offer, w.price_usd_per_hour / w.gpu_count, w.created_at, None, 0)
        for w in snapshot.workers
        if w.metadata.offer is not None and w.price_usd_per_hour is not None and w.gpu_count
    ]
    oldest_first = sorted((*snapshot.pod_prices, *live), key=lambda one: (one.created_at, one.usd_per_gpu_hour))
    newest = {one.offer: one for one in oldest_first}
    return {
        offer: one for offer, one in newest.items() if (until := _counts_until(one)) is None or until > snapshot.now
    }


def _counts_until(price: PodPrice) -> datetime | None:
    """Return when the price of a pod counts no more; None while the pod lives."""
    if price.ended_at is None:
        return None
    in_a_row = min(price.ended_for_budget, 10)
    held_s = min(TOO_DEAR_S * 2 ** (in_a_row - 1), TOO_DEAR_MAX_S) if in_a_row else PRICE_SEEN_S
    return price.ended_at + timedelta(seconds=held_s)


def plan(snapshot: Snapshot, policy: Policy, *, leaving: frozenset[str]) -> list[Terminate]:
    """Drain all workers when the day's budget is used up, or the newest ones when the hourly cost is too high."""
    others = leaving | snapshot.in_flight
    here = [w for w in snapshot.workers if w.state in ORDER and w.id not in others]
    here.sort(key=lambda w: (-ORDER.index(w.state), w.created_at), reverse=True)
    spent, daily = snapshot.spent, policy.daily_budget_usd
    if daily is not None and spent.today_usd + spent.committed_usd >= daily:
        sums = f"${spent.today_usd:.2f} spent today and ${spent.committed_usd:.2f} to end the workers"
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
