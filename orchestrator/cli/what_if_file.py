"""The page of `what-if --html`."""

from pathlib import Path

from orchestrator.cli.what_if_view import SET, YOURS, Compared, scope, written
from orchestrator.core.economics.pod_counts import pod_counts
from orchestrator.diagnostics.amounts import span, usd
from orchestrator.diagnostics.what_if import trust
from orchestrator.errors import BAD_ARGUMENT, Failure
from orchestrator.web.dashboard.what_if_page import STEPS, curve_chart, page, pod_charts


def write_page(path: str, found: Compared) -> None:
    """Replay each wait price, and write the page. Raises Failure."""
    text = page_text(found)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        what, why = "the page cannot be written", f"{path}: {error.strerror or error}"
        raise Failure(BAD_ARGUMENT, what=what, why=why, fix="name a file in a folder that you may write to") from None


def page_text(found: Compared) -> str:
    """Return the page."""
    time, scenarios = found.time, (found.present, found.other)
    pods = {one.name: pod_counts(one.pools, time.since, time.until, STEPS) for one in scenarios}
    curve = time.curve(found.present.settings)
    beside = [(YOURS, "dot-now", found.present)]
    if found.changes:
        beside.append((SET, "dot-set", found.other))
    others = [(name, kind, one.figures.usd, one.figures.waits.p95_s) for name, kind, one in beside]
    return page({
        "title": f"What if: {found.other.name if not found.changes else written(found.changes, ' ')}",
        "trust": trust(found.present.figures, found.recorded),
        "advice": found.advice,
        "scope": scope(found),
        "notes": found.notes,
        "changes": f"{SET}: {written(found.changes, ', ')}" if found.changes else "",
        "columns": found.columns,
        "rows": found.rows(),
        "pods": pod_charts(pods, time.until),
        "curve": curve_chart(curve, others),
        "points": [(f"{one.wait_price:g}", usd(one.usd), span(one.wait_p95_s)) for one in curve],
    })  # fmt: skip
