"""The page of a replay: charts made of numbers, and every text escaped."""

from datetime import UTC, datetime

from orchestrator.core.economics.pod_counts import PodCount
from orchestrator.core.economics.scenarios import CurvePoint
from orchestrator.web.dashboard.what_if_page import curve_chart, page, pod_charts

HOSTILE = "<script>alert(1)</script>\x1b[31m"
COUNTS = [PodCount(1e9 + 60 * step, 1.0, 0.5, 0.25) for step in range(3)]
CURVE = [CurvePoint(0.1, 5.0, 90.0), CurvePoint(1.0, 7.0, 40.0), CurvePoint(10.0, 12.0, 10.0)]


def test_no_text_of_a_page_is_markup() -> None:
    """Names of pools, settings and notes come from anywhere."""
    texts = dict.fromkeys(("title", "trust", "advice", "scope", "changes"), HOSTILE)
    lists = {"notes": [HOSTILE], "columns": [HOSTILE] * 2, "rows": [(HOSTILE, [HOSTILE])],
             "points": [(HOSTILE, HOSTILE, HOSTILE)]}  # fmt: skip
    charts = {
        "pods": pod_charts({HOSTILE: COUNTS}, 1e9 + 180),
        "curve": curve_chart(CURVE, [(HOSTILE, "dot-now", 6, 50)]),
    }
    text = page({**texts, **lists, **charts})
    assert "<script" not in text
    assert "\x1b" not in text
    assert text.count("&lt;script&gt;") > 10


def test_charts_of_several_replays_have_one_scale() -> None:
    """So that they can be compared; a replay without a step has none."""
    many = [PodCount(one.at, 9.0, 0.0, 0.0) for one in COUNTS]
    charts = pod_charts({"few": COUNTS, "many": many, "none": []}, 1e9 + 180)
    assert [name for name, _ in charts] == ["few", "many"]
    assert all(">10</text>" in chart for _, chart in charts)
    assert datetime.fromtimestamp(1e9, UTC).strftime("%H:%M UTC") in charts[0][1]


def test_the_curve_has_its_points_and_those_beside_it() -> None:
    """Each says in its title what it is. Without a wait there is no point, and without points no curve."""
    chart = curve_chart([*CURVE, CurvePoint(3.0, 8.0, None)], [("your settings", "dot-now", 6.0, 50.0)])
    assert chart is not None
    assert chart.count("<circle") == 4
    assert chart.count('class="line"') == 2
    assert "<title>w 0.1: $5.00, p95 wait 1m30s</title>" in chart
    assert "<title>your settings: $6.00, p95 wait 50s</title>" in chart
    assert "style=" not in chart
    assert curve_chart([CurvePoint(1.0, 0.0, None)], []) is None
    alone = curve_chart([CurvePoint(1.0, 0.0, 0.0)], [])
    assert alone is not None
    assert "nan" not in alone
