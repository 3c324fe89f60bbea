"""`/workers`: the workers that are there, and those that ended."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from orchestrator.core.model import ID_PATTERN
from orchestrator.web.api.cursors import cursor_of, place_of
from orchestrator.web.dashboard.views import Facts, Page, Reads, View

ENDED, LIVE = 50, 100  # on a page
MAX_DIGITS = 6  # of a number in an address
STATES = ("spawning", "active", "idle", "terminating")


async def facts(reads: Reads, view: View) -> Facts:
    """Live workers by state and pool, and a page of those that ended."""
    place = place_of(view.query.get("cursor"), _worker_id)
    wanted = {name: view.query[name] for name in ("state", "pool") if name in view.query}
    seen, rows = await asyncio.gather(
        reads.get("observe"),
        reads.seen("workers", ended=None, after=tuple(place) if place else None, limit=ENDED, pool=wanted.get("pool")),
    )
    live = [one for one in seen["workers"] if view.holder.sees(one["pool"])]
    fits = sorted(
        (one for one in live if _fits(one, wanted)), key=lambda one: (STATES.index(one["status"]), one["created_at"])
    )
    now = datetime.fromisoformat(seen["now"])
    skip = _number(view.query.get("skip", ""))
    last = [rows[-1]["created_at"], rows[-1]["id"]] if len(rows) == ENDED else None
    return {
        "title": f"Workers: {len(live):,}",
        "workers": [{**one, "spent_usd": _spent_usd(one, now)} for one in fits[skip : skip + LIVE]],
        "before": None if not skip else _address(wanted, max(0, skip - LIVE)),
        "after": None if len(fits) <= skip + LIVE else _address(wanted, skip + LIVE),
        "first": skip + 1,
        "fit": len(fits),
        "ended": [{**one, "lived_s": _lived_s(one)} for one in rows],
        "is_first": place is None,
        "states": Counter(one["status"] for one in live),
        "pools": sorted({one["pool"] for one in live if one["pool"]}),
        "wanted": wanted,
        "earlier": f"/workers?{urlencode({**wanted, 'cursor': cursor_of(last)})}#ended" if last else None,
        "total": len(live),
    }


def _fits(worker: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    found = {"state": worker["status"], "pool": worker["pool"]}
    return all(found[name] == value for name, value in wanted.items())


def _lived_s(worker: Mapping[str, Any]) -> float | None:
    if worker["terminated_at"] is None:
        return None
    begin, end = (datetime.fromisoformat(worker[name]) for name in ("created_at", "terminated_at"))
    return (end - begin).total_seconds()


def _spent_usd(worker: Mapping[str, Any], now: datetime) -> float | None:
    """Return what a worker has cost at its present price, in full cents, so that its row does not change all the time.

    None: its pod has no machine yet, or its price is not known.
    """
    if worker["billing_since"] is None or worker["price_usd_per_hour"] is None:
        return None
    hours = (now - datetime.fromisoformat(worker["billing_since"])).total_seconds() / 3600
    return round(float(worker["price_usd_per_hour"]) * max(0.0, hours), 2)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else 0


def _address(wanted: Mapping[str, str], skip: int) -> str:
    query = urlencode({**wanted, **({"skip": skip} if skip else {})})
    return f"/workers?{query}" if query else "/workers"


def _worker_id(name: str) -> str:
    if not ID_PATTERN.fullmatch(name):
        raise ValueError(name)
    return name


PAGE = Page("/workers", "Workers", "workers.html", facts, lambda _: "orchestrator list")
