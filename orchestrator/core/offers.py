"""The offer for an intent: the first in the operator's order that refusals, budget and failed hosts allow.

An offer cools down after a refusal. Then its probe budget applies: one create call under way at a time, twice as many
after each success, and any number after an hour without a refusal. So an offer without capacity gets a few calls a
minute. Places where hosts failed recently come last. A network volume determines the data centre.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from orchestrator.core import breaker, scale_limits, store_outage
from orchestrator.core.actions import Create, Wait
from orchestrator.core.blocked import SPAWNS, Blocked, BlockedReason, line
from orchestrator.core.budget import BudgetRoom
from orchestrator.core.model import EVERY_POOL, Snapshot, Worker
from orchestrator.core.policy import Policy, Pool
from orchestrator.core.provider import Offer, place_of
from orchestrator.core.states import Stage, State, WaitingOn

FORGIVEN = timedelta(hours=1)  # after an hour without a refusal, the probe budget ends
PROBE_RETRY_S = 2.0  # while another create call for the offer runs
BLOCKED_RETRY_S = 30.0  # while an intent waits for the budget or for a person


class OfferSelector:
    """The offers during one tick. A choice counts at once, for all pools."""

    def __init__(self, snapshot: Snapshot, policy: Policy, *, leaving: frozenset[str] = frozenset()) -> None:
        self._now, self._offers, self._snapshot = snapshot.now, snapshot.offers, snapshot
        self._left = scale_limits.room(snapshot, leaving=leaving)  # new workers; None: any number
        self.room = BudgetRoom(snapshot, policy)
        self.unpaid: dict[str, Blocked] = {}  # cluster pools for whose missing nodes there is no money or no room left
        asking = (w for w in snapshot.workers if w.state is State.SPAWNING and _has_create_call(w, snapshot))
        self._asked = Counter(worker.metadata.offer for worker in asking)

    def choose(self, pool: Pool, own: Worker | None = None) -> Offer | None:
        """Choose the next offer and count it. None if no offer is free."""
        if own is None and self._left == 0:
            return None
        free = [offer for offer in self.within(pool) if self._is_free(pool, offer, own)]
        free.sort(key=self._is_avoided)  # a stable sort: the operator's order, with the avoided places last
        if not free:
            return None
        self._asked[free[0].key] += 1
        if own is None and self._left is not None:
            self._left -= 1
        self.room.take(pool, free[0], own)
        return free[0]

    def obstacle(self, pool: Pool, own: Worker | None = None) -> Blocked:
        """Return why no offer is free, and when the first one may be free again."""
        volume = self._snapshot.volumes.get(pool.volume_name or "")
        if volume and volume.problem:
            return Blocked(BlockedReason.VOLUME_UNUSABLE, detail={"error": volume.problem})
        registry_problem = self._snapshot.registry_problems.get(pool.registry_auth or "")
        if registry_problem:
            return Blocked(BlockedReason.REGISTRY_UNUSABLE, detail={"error": registry_problem})
        offers = self.within(pool)
        if not offers:
            center = volume.data_center if volume else None
            return Blocked(BlockedReason.NO_OFFER_AT_VOLUME, detail={"volume": pool.volume_name, "data_center": center})
        if own is None and self._left == 0:
            return scale_limits.reason(self._snapshot.scale_limits[EVERY_POOL], 0, SPAWNS)
        for offer in offers:
            money = self.room.refusal(pool, offer, own)
            if money and not self._is_closed(offer):
                return money
        ends = [state.cooldown_until for state in map(self._offers.get, (offer.key for offer in offers)) if state]
        until = min((end for end in ends if end and end > self._now), default=None)
        return Blocked(BlockedReason.OFFERS_REFUSED, until=until)

    def lacks_room(self, workers: int) -> Blocked | None:
        """Return why the limit of the whole fleet does not allow so many more workers, if it does not."""
        if self._left is None or workers <= self._left:
            return None
        return scale_limits.reason(self._snapshot.scale_limits[EVERY_POOL], 0, SPAWNS)

    def within(self, pool: Pool) -> list[Offer]:
        """Return the pool's offers in which its network volume can be mounted. None without usable credentials."""
        if pool.registry_auth in self._snapshot.registry_problems:
            return []
        volume = self._snapshot.volumes.get(pool.volume_name or "")
        if volume is None:
            return list(pool.offers)
        center = volume.data_center
        here = [offer for offer in pool.offers if offer.data_center in (None, center)] if center else []
        return list(dict.fromkeys(replace(offer, data_center=center) for offer in here))

    def passed_over(self, pool: Pool) -> Iterator[Blocked]:
        """Return the listed offers that the pool does not use, or uses last, and why."""
        volume = self._snapshot.volumes.get(pool.volume_name or "")
        if volume and volume.data_center:
            for offer in pool.offers:
                if offer.data_center not in (None, volume.data_center):
                    where = {"volume": pool.volume_name, "data_center": volume.data_center}
                    yield Blocked(BlockedReason.OFFER_OUTSIDE_VOLUME, detail={"offer": offer.key, **where})
        for offer in self.within(pool):
            if self._is_avoided(offer):
                until = self._snapshot.avoid[_place(offer)]
                yield Blocked(BlockedReason.OFFER_AVOIDED, detail={"offer": offer.key}, until=until)

    def _is_free(self, pool: Pool, offer: Offer, own: Worker | None) -> bool:
        return not self._is_closed(offer) and self.room.refusal(pool, offer, own) is None

    def _is_closed(self, offer: Offer) -> bool:
        """Whether the offer is in its cool-down, or is being probed."""
        known = self._offers.get(offer.key)
        if known is None:
            return False
        if known.cooldown_until and known.cooldown_until > self._now:
            return True
        probing = known.last_refusal is not None and self._now - known.last_refusal < FORGIVEN
        budget = known.probe_budget if probing else None
        return budget is not None and self._asked[offer.key] >= budget

    def _is_avoided(self, offer: Offer) -> bool:
        until = self._snapshot.avoid.get(_place(offer))
        return until is not None and until > self._now


def plan(
    pool: Pool, snapshot: Snapshot, policy: Policy, selector: OfferSelector, *, leaving: frozenset[str]
) -> tuple[list[Create], list[Wait]]:
    """Return a create for each due intent with an offer, and a recorded wait for each one without."""
    creates: list[Create] = []
    waits: list[Wait] = []
    adoptable = {pod.worker_id for pod in snapshot.pods or () if pod.fleet_id == policy.fleet_id}
    others = leaving | snapshot.in_flight | adoptable
    spawning = [w for w in snapshot.workers if w.pool == pool.name and w.state is State.SPAWNING]
    due = [w for w in spawning if w.stage is Stage.INTENT and w.id not in others and w.next_attempt_at <= snapshot.now]
    bringing_up = sum(1 for w in spawning if w.stage is not Stage.INTENT or w.id in others)
    for worker in due:
        blocked = _blocked_intent(pool, snapshot, policy, bringing_up + len(creates), worker)
        offer = None if blocked else selector.choose(pool, worker)
        if offer:
            why = f"intent recorded; asking for {place_of(offer.key)}"
            creates.append(Create(worker.id, pool.name, offer, why, selector.room.price(pool, offer)))
            continue
        reason = blocked or selector.obstacle(pool, worker)
        waiting_on, words, until = WaitingOn(reason.kind.row.who), line(reason), reason.until
        silent_s = (snapshot.now - worker.next_attempt_at).total_seconds()
        if (worker.waiting_on, worker.waiting_for) != (waiting_on, words) or silent_s >= BLOCKED_RETRY_S:
            retry_s = PROBE_RETRY_S if waiting_on is WaitingOn.CAPACITY else BLOCKED_RETRY_S
            until_s = (until - snapshot.now).total_seconds() if until else retry_s
            left_s = policy.spawning_timeout_s - (snapshot.now - worker.created_at).total_seconds()
            waits.append(Wait(worker.id, State.SPAWNING, waiting_on, words, until_s, max(0, left_s)))
    return creates, waits


def _blocked_intent(pool: Pool, snapshot: Snapshot, policy: Policy, bringing_up: int, worker: Worker) -> Blocked | None:
    """Return what blocks an intent as it blocks new ones. An operator's request is not blocked."""
    if worker.metadata.asked_for:
        return None
    pause = snapshot.pause_of(pool.name)
    if pause:
        return Blocked(
            BlockedReason.PAUSED, detail={"reason": pause.reason}
        )  # without its end: an operator may resume it earlier
    if snapshot.store_outage:
        return store_outage.reason(snapshot.store_outage)
    limit = breaker.spawn_limit(pool, snapshot, policy, bringing_up)
    if limit is None or limit.spawns > 0 or limit.reason.kind not in (BlockedReason.HALTED, BlockedReason.BREAKER_OPEN):
        return None
    return limit.reason


def _has_create_call(worker: Worker, snapshot: Snapshot) -> bool:
    """Whether a create call for it runs, or is about to start."""
    return worker.stage is Stage.POD_CREATED or (worker.stage is Stage.INTENT and worker.id in snapshot.in_flight)


def _place(offer: Offer) -> str:
    return f"place:{offer.data_center}|{offer.gpu_type}"
