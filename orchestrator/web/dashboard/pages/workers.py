"""`/workers`: the workers that are there, and those that ended."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from orchestrator.core.model import ID_PATTERN
from orchestrator.web.api.cursors import cursor_of, place_of
from orchestrator.web.dashboard.views import Facts, Page, Reads, View

ENDED = 50  # on a page
STATES = ("spawning", "active", "idle", "terminating")


async def facts(reads: Reads, view: View) -> Facts:
    """Live workers by state and pool, and a page of those that ended."""
    place = place_of(view.query.get("cursor"), _worker_id)
    seen, rows = await asyncio.gather(
        reads.get("observe"),
        reads.seen("workers", ended=True, after=tuple(place) if place else None, limit=ENDED),
    )
    live = [one for one in seen["workers"] if view.holder.sees(one["pool"])]
    wanted = {name: view.query[name] for name in ("state", "pool") if name in view.query}
    shown = [one for one in live if _fits(one, wanted)]
    ended = [one for one in rows if one["status"] == "terminated" and _fits(one, {**wanted, "state": "terminated"})]
    last = [rows[-1]["created_at"], rows[-1]["id"]] if len(rows) == ENDED else None
    return {
        "title": f"Workers: {len(live)}",
        "workers": sorted(shown, key=lambda one: (STATES.index(one["status"]), one["created_at"])),
        "ended": ended,
        "states": Counter(one["status"] for one in live),
        "pools": sorted({one["pool"] for one in live if one["pool"]}),
        "wanted": wanted,
        "next": cursor_of(last),
        "total": len(live),
    }


def _fits(worker: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    found = {"state": worker["status"], "pool": worker["pool"]}
    return all(found[name] == value for name, value in wanted.items())


def _worker_id(name: str) -> str:
    if not ID_PATTERN.fullmatch(name):
        raise ValueError(name)
    return name


PAGE = Page("/workers", "Workers", "workers.html", facts, lambda _: "orchestrator list")
