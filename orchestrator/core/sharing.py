"""Which pool gets the next offer, if pools share a budget or a scarce offer.

Pools take turns, one worker per turn, so that no pool takes everything. Pools below their MIN_ACTIVE_GPUS come first,
then pools without any worker, then the pool whose oldest task has waited longest.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from orchestrator.core import scaling
from orchestrator.core.model import Offer, Policy, Pool, Snapshot
from orchestrator.core.offers import OfferSelector
from orchestrator.core.pool_size import Size


def offers(
    pools: Sequence[Pool], sizes: Mapping[str, Size], snapshot: Snapshot, policy: Policy, selector: OfferSelector
) -> dict[str, list[Offer]]:
    """Return the offers for each pool's spawns in this tick. `selector` counts them."""
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
    """Try to give the pool one more offer. Return whether there was one."""
    offer = selector.choose(pool) if len(share) < up_to else None
    if offer is not None:
        share.append(offer)
    return offer is not None


def _urgency(size: Size, now: datetime) -> tuple[bool, datetime]:
    return size.live > 0, size.demand.oldest_claimable_at or now
