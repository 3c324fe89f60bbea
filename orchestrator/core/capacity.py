"""Which offer an intent asks for: the first in the operator's order that is not cooling down after a refusal.

An offer that was just refused is probed with one create at a time, so a dry market sees a few calls a minute.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from orchestrator.core.actions import Action, Create, Spawn, Wait
from orchestrator.core.model import Offer, Policy, Pool, Snapshot
from orchestrator.core.states import Stage, State, WaitingOn


def usable(pool: Pool, snapshot: Snapshot, planned: Iterable[Offer] = ()) -> Offer | None:
    """The offer to ask for next, or None while all of them cool down or are being probed."""
    asked = Counter(offer.key for offer in planned)
    for worker in snapshot.workers:
        if worker.stage is Stage.POD_CREATED and worker.state is State.SPAWNING:
            asked[str(worker.metadata.get("offer"))] += 1
    for offer in pool.offers:
        known = snapshot.offers.get(offer.key)
        if known and known.cooldown_until and known.cooldown_until > snapshot.now:
            continue
        if known and known.refusals and asked[offer.key]:
            continue
        return offer
    return None


def next_chance(pool: Pool, snapshot: Snapshot) -> datetime | None:
    """When the first cool-down of the pool's offers ends; None if none is cooling."""
    ends = [o.cooldown_until for o in map(snapshot.offers.get, (offer.key for offer in pool.offers)) if o]
    return min((end for end in ends if end and end > snapshot.now), default=None)


def plan(
    pool: Pool, snapshot: Snapshot, policy: Policy, *, leaving: frozenset[str], planned: Sequence[Action]
) -> tuple[list[Create], list[Wait]]:
    """A create for each recorded intent that is due and finds an offer; a written wait for each that does not."""
    creates: list[Create] = []
    waits: list[Wait] = []
    chosen = [action.offer for action in planned if isinstance(action, Spawn)]
    adoptable = {pod.worker_id for pod in snapshot.pods or () if pod.fleet_id == policy.fleet_id}
    for worker in snapshot.workers:
        if worker.pool != pool.name or worker.state is not State.SPAWNING or worker.stage is not Stage.INTENT:
            continue
        if worker.id in leaving | snapshot.in_flight | adoptable or worker.next_attempt_at > snapshot.now:
            continue
        offer = usable(pool, snapshot, chosen)
        if offer:
            chosen.append(offer)
            creates.append(Create(worker.id, pool.name, offer, f"intent recorded; asking for {offer.key}"))
        elif worker.waiting_on is not WaitingOn.CAPACITY:
            until = next_chance(pool, snapshot)
            until_s = (until - snapshot.now).total_seconds() if until else 2.0
            waits.append(Wait(worker.id, State.SPAWNING, WaitingOn.CAPACITY, "every offer was refused lately", until_s))
    return creates, waits
