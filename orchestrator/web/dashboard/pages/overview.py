"""`/`: is it all right, why not, and what does it cost."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from orchestrator.core import moments
from orchestrator.core.actions import PoolDecision
from orchestrator.core.blocked import from_json
from orchestrator.core.decision_text import row_sentence
from orchestrator.core.model import EVERY_POOL
from orchestrator.core.plurals import counted
from orchestrator.diagnostics import amounts, first_cause, scaling
from orchestrator.diagnostics.condition_kinds import HIGH
from orchestrator.web.dashboard.action_effects import unpriced
from orchestrator.web.dashboard.actions import OPERATE
from orchestrator.web.dashboard.series import ChartSpan, Series, chart, summed, whole
from orchestrator.web.dashboard.views import Facts, Page, Reads, View

LAST_DECISIONS = 8
LAST_FAILURES = 5
OF_A_KIND = 3  # problems of one kind that are shown as a whole
HOUR, DAY = "1h", "24h"
RANGES = {HOUR: timedelta(hours=1), DAY: timedelta(days=1), "7d": timedelta(days=7)}
Row = Mapping[str, Any]


async def facts(reads: Reads, view: View) -> Facts:
    """The state of the fleet."""
    standing, seen, found, paused, failures, decisions, (chosen, history) = await asyncio.gather(
        reads.get("standing"), reads.get("observe"), reads.get("scaling"), reads.get("pauses"),
        reads.seen("failures", LAST_FAILURES),
        reads.seen("decisions", before=None, limit=LAST_DECISIONS), past(reads, view.query.get("range")),
    )  # fmt: skip
    sees = view.holder.sees
    needs = [one for one in first_cause.known(standing) if view.holder.concerned(one["pools"])]
    workers = [one for one in seen["workers"] if sees(one["pool"])]
    demand = [one for one in seen["demand"] if sees(one["pool"])]
    pools = [
        {**one, "paused": paused.get(one["pool"]) or paused.get(EVERY_POOL)}
        for one in pool_rows(found, demand, workers, reads.api.policy, view)
    ]
    there = {one["id"] for one in workers}
    states = Counter(one["status"] for one in workers)
    figures = {
        "ready": sum(one["claimable"] for one in demand),
        "waiting": sum(sum(one["blocked"].values()) for one in demand),
        "running": sum(one["running"] for one in demand),
        "oldest": min((one["oldest_claimable_at"] for one in demand if one["oldest_claimable_at"]), default=None),
        "blocked": _sums(one["blocked"] for one in demand),
        "workers": len(workers),
        "states": {name: states[name] for name in ("active", "idle", "spawning", "terminating") if states[name]},
        "wanted": sum(one["target"] for one in pools),
        "usd_per_hour": sum(float(one["price_usd_per_hour"] or 0) for one in workers),
        "unpriced": unpriced(workers),
        "spent": seen["spent"] if view.holder.pools is None else None,
    }
    return {
        "title": headline(needs, figures, standing),
        "healthy": not any(one["priority"] == HIGH for one in needs),
        "sentence": sentence(figures),
        "needs": folded(
            [
                {**one, "about": f"/workers/{quote(one['subject'])}" if one["subject"] in there else None}
                for one in needs
            ]
        ),
        "figures": figures,
        "pools": sorted(pools, key=lambda one: not (one["paused"] or (one["why"] and one["why"].blocked))),
        "failures": failures["failures"],
        "all_failures": failures["is_all"],
        "decisions": [{**one, "text": row_sentence(one), "held": held_back(one)} for one in decisions],
        "range": chosen,
        "ranges": RANGES,
        "charts": charts(history, view),
        "urgent": len(first_cause.pressing(needs, standing["now"])),
        "known": standing["conditions"] is not None,
        "may_stop": view.holder.pools is None and view.holder.may(OPERATE),
    }


def folded(needs: Sequence[Row]) -> list[Row]:
    """The problems in their order; of each kind and priority only the first few, and the last of these has the `more`.

    So two hundred pools with the same problem hide no other one.
    """
    shown: list[Row] = []
    alike: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for one in needs:
        same = alike[one["kind"], one["priority"]]
        if len(same) < OF_A_KIND:
            same.append({**one, "more": []})
            shown.append(same[-1])
        else:
            same[-1]["more"].append(one)
    return shown


async def past(reads: Reads, wanted: str | None) -> tuple[str, Row]:
    """The minutes of every pool in a range; of a fleet that is younger than an hour, those of an hour.

    It begins with a full minute, so that it changes once a minute.
    """
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    chosen = wanted if wanted in RANGES else DAY
    found: Row = await reads.get("history", (now - RANGES[chosen]).isoformat())
    first = min((points[0]["at"] for points in found["pools"].values()), default=None)
    if wanted is None and (first is None or moments.moment(first) > now - RANGES[HOUR]):
        return HOUR, await reads.get("history", (now - RANGES[HOUR]).isoformat())
    return chosen, found


def charts(history: Row, view: View) -> dict[str, Markup]:
    """The queue, the fleet and the cost over time, of the pools that the holder sees."""
    points = [one for pool, one in history["pools"].items() if view.holder.sees(pool)]
    since, now = (moments.moment(history[name]) for name in ("since", "now"))
    time = ChartSpan(since, now, step_s=history["step_s"])
    ready, active, usd = (summed(points, name) for name in ("ready", "active", "usd_per_hour"))
    live = [summed(points, name) for name in ("spawning", "active", "idle", "ending")]
    there = [(moments[0][0], sum(value for _, value in moments)) for moments in zip(*live, strict=True)]
    return {
        "queue": chart("Tasks ready to run", time, [Series("ready to run", "area", ready)], whole),
        "fleet": chart("Workers", time, [Series("active", "area", active), Series("workers", "line", there)],
                       whole),
        "cost": chart("Dollars an hour", time, [Series("$/h", "line", usd)], amounts.usd),
    }  # fmt: skip


def headline(needs: Sequence[Row], figures: Row, standing: Row) -> str:
    """The title of the page: how many things need somebody, and what the first of them is."""
    if urgent := first_cause.pressing(needs, standing["now"]):
        verb = "needs" if len(urgent) == 1 else "need"
        return f"{counted(len(urgent), 'thing')} {verb} you: {urgent[0]['issue']}"
    if standing["conditions"] is None:
        return "Nothing is known yet"
    return "All right" if figures["workers"] or figures["ready"] else "All right, nothing to do"


def sentence(figures: Row) -> str:
    """The queue and the fleet in a sentence."""
    busy = figures["states"].get("active", 0)
    text = f"{counted(figures['ready'], 'task')} ready, {figures['running']:,} running"
    if figures["workers"]:
        return f"{text}; {busy:,} of {counted(figures['workers'], 'worker')} active."
    return f"{text}; no worker."


def pool_rows(found: Row, demand: Sequence[Row], workers: Sequence[Row], policy: Any, view: View) -> list[Row]:
    """Each pool with its queue, its workers, and what its last decision says."""
    made = [
        PoolDecision(pool, row["rule"], row["target"], row["inputs"], tuple(map(from_json, row["blocked"])))
        for pool, row in sorted(found["decisions"].items())
        if row and view.holder.sees(pool)
    ]
    explained = {one.pool: one for one in scaling.explained(found, made, policy)}
    queue = {one["pool"]: one for one in demand}
    names = sorted({*explained, *queue, *(one["pool"] for one in workers if one["pool"])})
    return [
        {
            "pool": name,
            "target": explained[name].target if name in explained else 0,
            "why": explained.get(name),
            "queue": queue.get(name),
            "workers": [one for one in workers if one["pool"] == name],
        }
        for name in names
    ]


def held_back(decision: Row) -> list[str]:
    """What a decision wanted and did not get."""
    return [scaling.explained_reason(from_json(one)).text for one in decision.get("blocked") or ()]


def _sums(parts: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in parts:
        total.update(one)
    return {name: number for name, number in total.items() if number}


PAGE = Page("/", "Overview", "overview.html", facts, lambda _: "orchestrator health")
