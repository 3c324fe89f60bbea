"""`/cost`: what was spent in a time, on what, and what of it did no work."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import span, usd
from orchestrator.diagnostics.cost import KINDS, CostLine, lines
from orchestrator.errors import BAD_ARGUMENT
from orchestrator.web.api.problems import Problem
from orchestrator.web.dashboard.views import Facts, Page, Reads, View

RANGES = {"1h": "last hour", "24h": "last 24 hours", "7d": "last 7 days", "30d": "last 30 days"}
LENGTHS = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
USUAL = "24h"
WORKERS = 20  # the most expensive ones
SHAPES = {"busy": "busy", "booting": "over", "idle": "idle", "draining": "drain"}  # classes of the style sheet
Row = Mapping[str, Any]


async def facts(reads: Reads, view: View) -> Facts:
    """The cost of a time that begins at a full hour, as the provider bills."""
    asked = _range(view)
    begin = (datetime.now(UTC) - LENGTHS[asked]).replace(minute=0, second=0, microsecond=0)
    report = await reads.get("cost", begin.isoformat(), None)
    total, workers = float(report["usd"]), lines(report, "worker")
    prices = {row["id"]: row for row in report["workers"]}
    return {
        "title": f"{usd(total)} in the {RANGES[asked]}",
        "ranges": RANGES,
        "asked": asked,
        "report": report,
        "total": total,
        "kinds": kinds(report, total),
        "groups": {"pool": lines(report, "pool"), "GPU": lines(report, "gpu")},
        "types": lines(report, "type"),
        "workers": [{"line": one, "row": prices[one.name]} for one in workers[:WORKERS]],
        "counted_workers": len(workers),
        "wasted": wasted(report, workers),
    }


def kinds(report: Row, total: float) -> list[Row]:
    """Each kind of state with its share, and where its part of the bar begins, in percent."""
    found = {line.name: line for line in lines(report, "kind")}
    made: list[Row] = []
    begins = 0.0
    for name in sorted(KINDS, key=lambda kind: kind != "busy"):
        line = found.get(name)
        spent = line.usd if line else 0.0
        share = 100 * spent / total if total else 0.0
        made.append({
            "name": name, "shape": SHAPES[name], "usd": spent, "seconds": line.seconds if line else 0.0,
            "share": share, "begins": round(begins, 3), "wide": round(share, 3),
        })  # fmt: skip
        begins += share
    return made


def wasted(report: Row, workers: tuple[CostLine, ...]) -> list[Row]:
    """What did no work, by name, the most expensive first."""
    kind = {line.name: line for line in lines(report, "kind")}
    texts = {
        "idle": ("idle, waiting for work", "a shorter idle timeout, or tasks that come together"),
        "booting": ("booting, before the first task", "fewer and longer-lived workers; failed bring-ups count here"),
        "draining": ("draining, before the pod is deleted", "nothing: logs are shipped in this time"),
    }
    made: list[Row] = []
    for name, (label, less) in texts.items():
        line = kind.get(name)
        if line is None or not line.usd:
            continue
        of = sum(one.kinds.get(name, 0.0) > 0 for one in workers)
        sum_of = f"{span(line.seconds)} of {counted(of, 'worker')}, each second at the price of its worker"
        most = [one for one in sorted(workers, key=lambda one: -one.kinds.get(name, 0.0))[:3] if one.kinds.get(name)]
        made.append({"name": label, "usd": line.usd, "sum": sum_of, "less": less, "part": None,
                     "most": [(one.name, one.kinds[name]) for one in most]})  # fmt: skip
    lost = [line for line in lines(report, "type") if line.wasted_usd]
    if lost:
        made.append({
            "name": "attempts that did not complete", "usd": sum(line.wasted_usd for line in lost),
            "sum": "the time of each attempt that failed or was lost, times the price of its worker", "most": (),
            "less": "see the errors of " + ", ".join(line.name for line in lost[:3]), "part": "of busy",
        })  # fmt: skip
    return sorted(made, key=lambda one: -one["usd"])


def _range(view: View) -> str:
    asked = view.query.get("since", USUAL)
    if asked not in RANGES:
        raise Problem(400, BAD_ARGUMENT, f"the ranges are {', '.join(RANGES)}", fix="use a link of the page")
    return asked


PAGE = Page(
    "/cost", "Cost", "cost.html", facts, lambda view: f"orchestrator cost --since {_range(view)}",
    is_fleets=True, look_s=10.0,
)  # fmt: skip
