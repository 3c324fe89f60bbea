"""GPU types that RunPod offers: price, stock by data centre, and the pools that would take them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.policy import Pool
from orchestrator.core.provider import Offer

LEVELS = ("HIGH", "MEDIUM", "LOW", "NONE")
UNKNOWN = "unknown"

# GPU type -> (cloud, data centre) -> stock level. An empty data centre means the whole cloud.
Stock = Mapping[str, Mapping[tuple[str, str], str]]


@dataclass(frozen=True, slots=True)
class PoolUse:
    """The place of a GPU type in the order of a pool."""

    pool: str
    place: int  # from 1
    is_next: bool  # the first of the pool's offers that is in stock


@dataclass(frozen=True, slots=True)
class GpuOffer:
    """One GPU type in one cloud."""

    gpu_type: str
    cloud: str
    usd_per_hour: float | None  # of one GPU
    stock: str  # HIGH, MEDIUM, LOW, NONE or unknown: the best of all data centres
    data_centers: Mapping[str, str]  # in stock there: data centre -> level
    pools: Sequence[PoolUse]

    @property
    def in_stock(self) -> bool:
        """Whether one can be rented now, as far as it is known."""
        return self.stock != "NONE"


def offers(prices: Mapping[str, float], stock: Stock, pools: Iterable[Pool]) -> list[GpuOffer]:
    """Return every GPU type and cloud: those that a pool takes come first, then by price.

    `prices` has dollars per hour of one GPU by "<type>|<cloud>".
    """
    uses = _uses(stock, pools)
    clouds = {cloud for places in stock.values() for cloud, _ in places}
    named = {(gpu, cloud) for gpu, places in stock.items() for cloud in clouds if any(c == cloud for c, _ in places)}
    named |= {(gpu, cloud) for gpu, _, cloud in (key.partition("|") for key in prices)} | set(uses)
    found = [
        GpuOffer(
            gpu,
            cloud,
            prices.get(f"{gpu}|{cloud}"),
            level_of(stock.get(gpu, {}), Offer(gpu, None, cloud)),
            {
                center: at
                for (where, center), at in stock.get(gpu, {}).items()
                if where == cloud and center and at != "NONE"
            },
            uses.get((gpu, cloud), ()),
        )
        for gpu, cloud in named
    ]
    return sorted(found, key=lambda one: (not one.pools, one.usd_per_hour or 0, one.gpu_type, one.cloud))


def level_of(places: Mapping[tuple[str, str], str], offer: Offer) -> str:
    """Return the best stock level that an offer can have."""
    known = {at for (cloud, center), at in places.items() if cloud == offer.cloud and _is_at(offer, center)}
    return next((level for level in LEVELS if level in known), UNKNOWN)


def _is_at(offer: Offer, center: str) -> bool:
    return offer.data_center in {None, center}


def _uses(stock: Stock, pools: Iterable[Pool]) -> dict[tuple[str, str], list[PoolUse]]:
    uses: dict[tuple[str, str], list[PoolUse]] = {}
    for pool in pools:
        kinds = list(dict.fromkeys((offer.gpu_type, offer.cloud) for offer in pool.offers))
        there = [o for o in pool.offers if level_of(stock.get(o.gpu_type, {}), o) != "NONE"]
        first = (there[0].gpu_type, there[0].cloud) if there else None
        for place, kind in enumerate(kinds, 1):
            uses.setdefault(kind, []).append(PoolUse(pool.name, place, kind == first))
    return uses
