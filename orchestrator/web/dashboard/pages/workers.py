"""`/workers`: the workers that are there, and those that ended."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from orchestrator.core import moments
from orchestrator.core.model import ID_PATTERN
from orchestrator.web.api.cursors import cursor_of, place_of
from orchestrator.web.dashboard.views import Facts, Page, Reads, View

ENDED, LIVE = 50, 100  # on a page
CENT = 0.01
STATES = ("spawning", "active", "idle", "terminating")


async def facts(reads: Reads, view: View) -> Facts:
    """A page of the live workers by state and pool, and one of those that ended."""
    place = place_of(view.query.get("cursor"), _worker_id)
    after = place_of(view.query.get("after"), _state_and_id)
    wanted = {name: view.query[name] for name in ("state", "pool") if name in view.query}
    seen, rows = await asyncio.gather(
        reads.get("observe"),
        reads.seen("workers", ended=None, after=tuple(place) if place else None, limit=ENDED, pool=wanted.get("pool")),
    )
    live = [one for one in seen["workers"] if view.holder.sees(one["pool"])]
    fits = sorted((one for one in live if _fits(one, wanted)), key=lambda one: _rank(_place(one)))
    now = moments.moment(seen["now"])
    begin = sum(_rank(_place(one)) <= _rank(after) for one in fits) if after else 0
    end = begin + LIVE
    last = [rows[-1]["created_at"], rows[-1]["id"]] if len(rows) == ENDED else None
    return {
        "title": f"Workers: {len(live):,}",
        "workers": [{**one, "spent_usd": _spent_usd(one, now)} for one in fits[begin:end]],
        "before": _address(wanted, fits[begin - LIVE - 1] if begin > LIVE else None) if after else None,
        "after": _address(wanted, fits[end - 1]) if len(fits) > end else None,
        "first": begin + 1,
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
    begin, end = (moments.moment(worker[name]) for name in ("created_at", "terminated_at"))
    return (end - begin).total_seconds()


def _spent_usd(worker: Mapping[str, Any], now: datetime) -> float | None:
    """Return what a worker has cost at its present price. A cent or more is in full cents, so that its row stays.

    None: its pod has no machine yet, or its price is not known.
    """
    if worker["billing_since"] is None or worker["price_usd_per_hour"] is None:
        return None
    begin, end = (moments.moment(worker[name]) if worker[name] else now
                  for name in ("billing_since", "billing_until"))  # fmt: skip
    hours = (min(end, now) - begin).total_seconds() / 3600
    usd = float(worker["price_usd_per_hour"]) * max(0.0, hours)
    return round(usd, 2 if usd >= CENT else 4)


def _place(worker: Mapping[str, Any]) -> list[str]:
    """The place of a live worker in the list, as cursors have it: [time, state and id]."""
    return [worker["created_at"], f"{worker['status']} {worker['id']}"]


def _rank(place: Sequence[str]) -> tuple[int, datetime, str]:
    """The order of places: by state, then by age."""
    state, _, name = place[1].partition(" ")
    return STATES.index(state), moments.moment(place[0]), name


def _address(wanted: Mapping[str, str], last: Mapping[str, Any] | None) -> str:
    """The page of the live workers after this one; None: the first page."""
    query = urlencode({**wanted, **({"after": cursor_of(_place(last))} if last else {})})
    return f"/workers?{query}" if query else "/workers"


def _state_and_id(text: str) -> str:
    state, _, name = text.partition(" ")
    if state not in STATES:
        raise ValueError(text)
    return f"{state} {_worker_id(name)}"


def _worker_id(name: str) -> str:
    if not ID_PATTERN.fullmatch(name):
        raise ValueError(name)
    return name


PAGE = Page("/workers", "Workers", "workers.html", facts, lambda _: "orchestrator list")
