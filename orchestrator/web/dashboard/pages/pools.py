"""`/pools`: each pool's target, queue, workers, limits and offers, and what holds it back."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.core import moments, scheduled_sizes
from orchestrator.core.actions import PoolDecision
from orchestrator.core.api_tokens import TokenScope
from orchestrator.core.blocked import from_json
from orchestrator.core.model import EVERY_POOL
from orchestrator.core.plurals import counted
from orchestrator.core.policy import Policy
from orchestrator.core.provider import place_of
from orchestrator.diagnostics import scaling
from orchestrator.web.dashboard.action_effects import unpriced
from orchestrator.web.dashboard.pages.lists import others
from orchestrator.web.dashboard.views import Facts, Page, Reads, View

Row = Mapping[str, Any]
FEW = 6  # pools that need no list of links to them


async def facts(reads: Reads, view: View) -> Facts:
    """The pools that the holder sees."""
    seen, found, hosts = await asyncio.gather(reads.get("observe"), reads.get("scaling"), _avoided(reads, view))
    pools = _pools(seen, found, reads.api.policy, view)
    held = [bool(one["paused"] or one["limit"] or (one["why"] and one["why"].blocked)) for one in pools]
    limited = sum(bool(one["why"] and one["why"].blocked) for one in pools)
    paused = sum(one["paused"] is not None for one in pools)
    cooling = len({offer.key for one in pools for offer in one["offers"] if offer.state == "cooling"})
    keys = {*(one["key"] for one in seen["offers"]), *(offer.key for one in pools for offer in one["offers"])}
    return {
        "title": counted(len(pools), "pool"),
        "limited": limited,
        "paused": paused,
        "cooling": cooling,
        "pools": pools,
        "jumps": sorted(zip(held, pools, strict=True), key=lambda one: not one[0]) if len(pools) > FEW else (),
        "every": (seen["paused"] or {}).get(EVERY_POOL),
        "fleet_limit": seen["scale_limits"].get(EVERY_POOL),
        "offers": seen["offers"],
        "places": {key: place_of(key) for key in keys},
        "avoided": hosts,
        "prices": prices(seen),
        "lists": others(view),
        "knows": reads.api.policy is not None,
        "may_act": view.holder.may({TokenScope.OPERATE}),
        "sees_all": view.holder.pools is None,
    }


async def _avoided(reads: Reads, view: View) -> Sequence[Row]:
    """What is avoided, with evidence; nothing for a holder of some pools, because hosts are those of every pool."""
    hosts: Sequence[Row] = await reads.get("hosts", avoided=True) if view.holder.pools is None else ()
    return hosts


def prices(seen: Row) -> Mapping[str, float]:
    """The dollars per hour of one GPU of the newest pod of each offer, as far as it is known."""
    known = {one["offer"]: float(one["usd_per_gpu_hour"]) for one in seen["pod_prices"]}
    for one in sorted(seen["workers"], key=lambda worker: worker["created_at"]):
        offer, usd, count = one["metadata"].get("offer"), one["price_usd_per_hour"], one["gpu_count"]
        if offer and usd is not None and count:
            known[offer] = float(usd) / count
    return known


def _pools(seen: Row, found: Row, policy: Policy | None, view: View) -> Sequence[Row]:
    """Each pool that is configured, or that has work, a worker or a decision."""
    made = [
        PoolDecision(name, row["rule"], row["target"], row["inputs"], tuple(map(from_json, row["blocked"])))
        for name, row in sorted(found["decisions"].items())
        if row
    ]
    explained = {one.pool: one for one in scaling.explained(found, made, policy)}
    now = moments.moment(seen["now"])
    configured = {one.name: one for one in (scheduled_sizes.in_force(policy, now).pools if policy else ())}
    queue = {one["pool"]: one for one in seen["demand"]}
    live: defaultdict[str, list[Row]] = defaultdict(list)
    for one in seen["workers"]:
        live[one["pool"] or ""].append(one)
    paused = seen["paused"] or {}
    return [
        {
            "name": name,
            "why": explained.get(name),
            "decided": found["decisions"].get(name),
            "offers": explained[name].offers if name in explained else (),
            "queue": queue.get(name),
            "workers": Counter(one["status"] for one in live[name]),
            "usd_per_hour": sum(float(one["price_usd_per_hour"] or 0) for one in live[name]),
            "unpriced": unpriced(live[name]),
            "paused": paused.get(name) or paused.get(EVERY_POOL),
            "resumable": name in paused,  # a pause of every pool ends for all of them
            "limit": seen["scale_limits"].get(name),
            "policy": configured.get(name),
        }
        for name in sorted({*explained, *configured, *queue, *filter(None, live)})
        if view.holder.sees(name)
    ]  # fmt: skip


PAGE = Page("/pools", "Pools", "pools.html", facts, lambda _: "orchestrator explain scaling")
