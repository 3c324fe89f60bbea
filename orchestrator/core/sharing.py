"""Which pool gets the next offer, where pools share a budget or a scarce offer.

Pools take turns, one worker a turn, so that no pool takes all there is. Those below their MIN_ACTIVE_GPUS come before
all others. Then a pool without any worker comes first, and after it the pool whose oldest task has waited longest.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from orchestrator.core import scaling
from orchestrator.core.model import Offer, Policy, Pool, Snapshot
from orchestrator.core.offers import OfferSelector
from orchestrator.core.scaling import Size


def offers(
    pools: Sequence[Pool], sizes: Mapping[str, Size], snapshot: Snapshot, policy: Policy, selector: OfferSelector
) -> dict[str, list[Offer]]:
    """For each pool the offers of its spawns in this tick; they are counted in `selector`."""
    shares: dict[str, list[Offer]] = {pool.name: [] for pool in pools}
    limits = {pool.name: scaling.allowed(pool, sizes[pool.name], snapshot, policy) for pool in pools}
    least = {p.name: min(limits[p.name], max(0, p.min_active - sizes[p.name].live)) for p in pools}
    queue = sorted(pools, key=lambda pool: _urgency(sizes[pool.name], snapshot.now))
    for up_to in (least, limits):
        waiting = queue
        for _ in range(scaling.SPAWNS_PER_TICK):
            waiting = [pool for pool in waiting if _serve(pool, shares[pool.name], up_to[pool.name], selector)]
    return shares


def _serve(pool: Pool, share: list[Offer], up_to: int, selector: OfferSelector) -> bool:
    """Give the pool one more offer; whether it got one."""
    offer = selector.choose(pool) if len(share) < up_to else None
    if offer is not None:
        share.append(offer)
    return offer is not None


def _urgency(size: Size, now: datetime) -> tuple[bool, datetime]:
    return size.live > 0, size.demand.oldest_claimable_at or now
