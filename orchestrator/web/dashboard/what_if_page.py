"""A page about a replay, complete in one file: no script, no other file, and every text escaped."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from orchestrator.core.economics.pod_counts import PodCount
from orchestrator.core.economics.scenarios import CurvePoint
from orchestrator.diagnostics.amounts import span, usd
from orchestrator.web.dashboard.render import STATIC, clean, environment
from orchestrator.web.dashboard.series import ChartSpan, scale
from orchestrator.web.dashboard.stacked import Dot, Layer, dots, stacked

STEPS = 240  # of a chart over time
LABELLED = (0.1, 1.0, 10.0)  # wait prices that stand beside their points


def page(facts: Mapping[str, Any]) -> str:
    """Return the document. `facts` are the names in the template."""
    style = Markup((STATIC / "style.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file
    now = datetime.now(UTC)
    made = f"Made by `orchestrator what-if` at {now:%Y-%m-%d %H:%M} UTC."
    return environment().get_template("what_if.html").render(facts, style=style, made=made, now=now)


def pod_charts(named: Mapping[str, Sequence[PodCount]], until: float) -> list[tuple[str, Markup]]:
    """Return a chart for each replay, all with the same scale."""
    most = max((one.busy + one.idle + one.booting for counts in named.values() for one in counts), default=0.0)
    return [(name, _pods(clean(name), counts, until, scale(most))) for name, counts in named.items() if counts]


def _pods(name: str, counts: Sequence[PodCount], until: float, top: float) -> Markup:
    at = [datetime.fromtimestamp(one.at, UTC) for one in counts]
    end = datetime.fromtimestamp(until, UTC)
    shown = ChartSpan(at[0], end, (end - at[0]).total_seconds() / len(at))
    layers = [
        Layer("busy", "busy", [one.busy for one in counts]),
        Layer("idle", "idle", [one.idle for one in counts]),
        Layer("booting", "over", [one.booting for one in counts]),
    ]
    return stacked(f"Pods, {name}", shown, at, layers, top)


def curve_chart(curve: Sequence[CurvePoint], others: Sequence[tuple[str, str, float, float | None]]) -> Markup | None:
    """Return the learned rule at each wait price, with other points: name, class, dollars, p95 wait in seconds."""
    points = [
        Dot(one.usd, one.wait_p95_s, _title(f"w {one.wait_price:g}", one.usd, one.wait_p95_s),
            f"w {one.wait_price:g}" if one.wait_price in LABELLED else "")
        for one in curve if one.wait_p95_s is not None
    ]  # fmt: skip
    beside = [
        Dot(dollars, wait_s, _title(name, dollars, wait_s), kind=kind)
        for name, kind, dollars, wait_s in others
        if wait_s is not None
    ]
    if not points:
        return None
    key = {"dot": "learned", **{kind: clean(name) for name, kind, _, _ in others}}
    label = "Dollars and p95 wait: " + "; ".join(one.title for one in (*points, *beside))
    return dots(label, points, beside, (usd, span), key)


def _title(name: str, dollars: float, wait_s: float) -> str:
    return f"{clean(name)}: {usd(dollars)}, p95 wait {span(wait_s)}"
