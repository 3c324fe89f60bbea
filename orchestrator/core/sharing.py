"""Which pool gets the next offer, if pools share a budget or a scarce offer.

Pools take turns, one worker per turn, so that no pool takes everything. Pools below their MIN_ACTIVE_GPUS come first,
then clusters that have a part of their nodes, then pools without any worker, then the pool whose oldest task has waited
longest. A cluster takes all its nodes in one turn, or none: two clusters with half of their nodes would both cost
money, and both fail.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from orchestrator.core import cluster_scaling, scaling
from orchestrator.core.model import Snapshot
from orchestrator.core.offers import OfferSelector
from orchestrator.core.policy import Policy, Pool, PoolKind
from orchestrator.core.pool_size import Size
from orchestrator.core.provider import Offer


def offers(
    pools: Sequence[Pool], sizes: Mapping[str, Size], snapshot: Snapshot, policy: Policy, selector: OfferSelector
) -> dict[str, list[Offer]]:
    """Return the offers for each pool's spawns in this tick. `selector` counts them."""
    shares: dict[str, list[Offer]] = {pool.name: [] for pool in pools}
    limits = {pool.name: scaling.allowed(pool, sizes[pool.name], snapshot, policy) for pool in pools}
    least = {p.name: min(limits[p.name], max(0, p.min_active - sizes[p.name].live)) for p in pools}
    queue = sorted(pools, key=lambda pool: _urgency(pool, sizes[pool.name], snapshot.now))

    def serve(pool: Pool, up_to: int) -> bool:
        if pool.kind is not PoolKind.CLUSTER:
            return _serve(pool, shares[pool.name], up_to, selector)
        if not snapshot.pause_of(pool.name):
            _serve_cluster(pool, sizes[pool.name], shares[pool.name], up_to, selector)
        return False

    ordinary = [pool for pool in queue if pool.kind is not PoolKind.CLUSTER]
    for first, up_to in ((ordinary, least), (queue, limits)):
        waiting = first
        for _ in range(scaling.SPAWNS_PER_TICK):
            waiting = [pool for pool in waiting if serve(pool, up_to[pool.name])]
    return shares


def _serve(pool: Pool, share: list[Offer], up_to: int, selector: OfferSelector) -> bool:
    """Try to give the pool one more offer. Return whether there was one."""
    offer = selector.choose(pool) if len(share) < up_to else None
    if offer is not None:
        share.append(offer)
    return offer is not None


def _serve_cluster(pool: Pool, mine: Size, share: list[Offer], up_to: int, selector: OfferSelector) -> None:
    """Give a cluster the offers of this tick if all its missing nodes can be paid, and are allowed.

    Once it has begun, the money of nodes that start in a later tick is kept for them, also while none may start.
    """
    if mine.missing <= 0 or not (up_to or mine.live):
        return
    refused = cluster_scaling.refusal(pool, mine.missing, selector.room)
    if refused is None and cluster_scaling.begins(mine.cluster):
        refused = selector.lacks_room(mine.missing)
    if refused is not None:
        selector.unpaid[pool.name] = refused
        return
    while _serve(pool, share, up_to, selector):
        pass
    if share or mine.live:
        cluster_scaling.keep(pool, mine.missing - len(share), selector.room)


def _urgency(pool: Pool, size: Size, now: datetime) -> tuple[bool, bool, datetime]:
    has_begun = pool.kind is PoolKind.CLUSTER and size.live > 0 and size.missing > 0
    return not has_begun, size.live > 0, size.demand.oldest_claimable_at or now
