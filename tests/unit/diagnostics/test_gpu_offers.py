"""GPU types on offer: the order of the pools, stock by place, and which offer is next."""

from dataclasses import replace

from orchestrator.core.provider import Offer
from orchestrator.diagnostics.gpu_offers import PoolUse, offers
from tests.unit.core.build import pool

PRICES = {"A|SECURE": 2.0, "A|COMMUNITY": 1.0, "B|SECURE": 0.5}
STOCK = {
    "A": {("SECURE", "EU"): "NONE", ("SECURE", "US"): "LOW", ("COMMUNITY", ""): "HIGH"},
    "B": {("SECURE", "EU"): "NONE"},
}
POOL = pool(name="default", offers=(Offer("B", None, "SECURE"), Offer("A", "EU", "SECURE")))


def test_a_pool_takes_its_first_type_in_stock() -> None:
    """In a place that it allows; types of pools come first, the others by price."""
    found = offers(PRICES, STOCK, [POOL])
    assert [(one.gpu_type, one.cloud, one.stock) for one in found] == [
        ("B", "SECURE", "NONE"), ("A", "SECURE", "LOW"), ("A", "COMMUNITY", "HIGH"),
    ]  # fmt: skip
    assert found[0].pools == [PoolUse("default", 1, is_next=False)]
    assert found[1].pools == [PoolUse("default", 2, is_next=False)]  # in stock, and not in EU
    assert (found[1].data_centers, found[2].data_centers) == ({"US": "LOW"}, {})
    anywhere = replace(POOL, offers=(Offer("B", None, "SECURE"), Offer("A", None, "SECURE")))
    assert [one.pools[0].is_next for one in offers(PRICES, STOCK, [anywhere]) if one.pools] == [False, True]


def test_a_type_missing_from_the_catalogue_is_unknown() -> None:
    """A configured type without stock or price is listed; it may be next."""
    (one,) = offers({}, {}, [replace(POOL, offers=(Offer("C", None, "SECURE"),))])
    assert (one.stock, one.usd_per_hour, one.in_stock) == ("unknown", None, True)
    assert one.pools == [PoolUse("default", 1, is_next=True)]
