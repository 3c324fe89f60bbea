"""`/cost`: what was spent in a time, on what, what of it did no work, and where the day ends."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrator.core import moments
from orchestrator.diagnostics import spending
from orchestrator.diagnostics.amounts import usd
from orchestrator.diagnostics.cost import lines
from orchestrator.diagnostics.scaling_reviews import told
from orchestrator.errors import BAD_ARGUMENT
from orchestrator.web.api.problems import Problem
from orchestrator.web.dashboard.day_costs import ORDER, SHAPES, month
from orchestrator.web.dashboard.views import Facts, Page, Reads, View

TODAY = "today"
RANGES = {TODAY: "today", "1h": "last hour", "24h": "last 24 hours", "7d": "last 7 days", "30d": "last 30 days"}
LENGTHS = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
USUAL = "24h"
WORKERS = 20  # the most expensive ones
Row = Mapping[str, Any]


async def facts(reads: Reads, view: View) -> Facts:
    """The cost of a time that begins at a full hour, as the provider bills."""
    asked = _range(view)
    now = datetime.now(UTC)
    begin = _begin(asked, now)
    report, done, seen, charged, days, reviews = await asyncio.gather(
        reads.get("cost", begin.isoformat(), None),
        reads.get("efficiency", begin.isoformat(), None),
        reads.get("observe"),
        reads.get("bill"),
        month(reads, now),
        reads.get("reviews"),
    )
    total, workers = float(report["usd"]), lines(report, "worker")
    prices = {row["id"]: row for row in report["workers"]}
    policy, wasted = reads.api.policy, spending.wasted(report)
    budgets = (policy.daily_budget_usd, policy.hourly_budget_usd) if policy else (None, None)
    return {
        "title": f"{usd(total)} {RANGES[asked]}" if asked == TODAY else f"{usd(total)} in the {RANGES[asked]}",
        "ranges": RANGES,
        "asked": asked,
        "report": report,
        "total": total,
        "kinds": kinds(report, total),
        "groups": {"pool": lines(report, "pool"), "GPU": lines(report, "gpu")},
        "types": lines(report, "type"),
        "workers": [{"line": one, "row": prices[one.name]} for one in workers[:WORKERS]],
        "counted_workers": len(workers),
        "unpriced": sum(row["price_usd_per_hour"] is None and bool(row["pod_id"]) for row in report["workers"]),
        "bought": spending.bought(report),
        "wasted": wasted,
        "wasted_usd": sum(one.usd for one in wasted),
        "done": done,
        "day": spending.forecast(seen["spent"], now, *budgets),
        "month": days,
        "bill": bill_of(charged),
        "fleet": reads.api.rows.fleet,
        "reviews": told(reviews["reviews"]),
        "knows_budgets": policy is not None,
    }


def bill_of(found: Row | None) -> Row | None:
    """The last comparison with RunPod's bill, with what the page says of it; without `at`, none was possible yet."""
    if found is None:
        return None
    found = {"at": None, "error": None, **found}
    if found["at"] is None:
        return found
    since, pods = moments.moment(found["since"]), found["unbooked"]
    return {
        **found,
        "command": f"orchestrator cost --since {since:%Y-%m-%dT%H:%MZ}",
        "difference_usd": found["theirs_usd"] - found["ours_usd"],
        "is_empty": not found["pods"] and not found["unbooked_pods"] and found["ours_usd"] > 0,
        "unbooked": [{**one, "is_leak": _ended_before(one["terminated_at"], since)} for one in pods],
        "more_pods": found["unbooked_pods"] - len(pods),
        "more_usd": found["unbooked_usd"] - sum(one["usd"] for one in pods),
    }


def _ended_before(at: str | None, moment: datetime) -> bool:
    return at is not None and moments.moment(at) < moment


def kinds(report: Row, total: float) -> list[Row]:
    """Each kind of state with its share, and where its part of the bar begins, in percent."""
    found = {line.name: line for line in lines(report, "kind")}
    made: list[Row] = []
    begins = 0.0
    for name in ORDER:
        line = found.get(name)
        spent = line.usd if line else 0.0
        share = 100 * spent / total if total else 0.0
        made.append({
            "name": name, "shape": SHAPES[name], "usd": spent, "seconds": line.seconds if line else 0.0,
            "share": share, "begins": round(begins, 3), "wide": round(share, 3),
        })  # fmt: skip
        begins += share
    return made


def _begin(asked: str, now: datetime) -> datetime:
    """Where a range begins: at a full hour, or with the day (UTC)."""
    if asked == TODAY:
        return now.replace(hour=0, minute=0, second=0, microsecond=0)
    return (now - LENGTHS[asked]).replace(minute=0, second=0, microsecond=0)


def since_of(view: View) -> str:
    """The range as the command line takes it."""
    asked = _range(view)
    return f"{_begin(asked, datetime.now(UTC)):%Y-%m-%dT%H:%MZ}" if asked == TODAY else asked


def _range(view: View) -> str:
    asked = view.query.get("since", USUAL)
    if asked not in RANGES:
        raise Problem(400, BAD_ARGUMENT, f"the ranges are {', '.join(RANGES)}", fix="use a link of the page")
    return asked


PAGE = Page(
    "/cost", "Cost", "cost.html", facts, lambda view: f"orchestrator cost --since {since_of(view)}",
    is_fleets=True, look_s=10.0,
)  # fmt: skip
