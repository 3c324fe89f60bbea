"""Charts as SVG that the server draws: x in percent, so that nothing is stretched, y in pixels. No style attribute."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

LANE_PX, BAND_PX, BAR_PX = 18, 14, 6
NARROWEST = 0.004  # of the width: a bar that can be seen


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time in a lane, in seconds from the begin of the chart."""

    begin_s: float
    took_s: float
    kind: str  # the class: busy, over, bad
    title: str


def lane(bars: Sequence[Bar], whole_s: float, usual: tuple[float, float, float] | None) -> Markup:
    """One row of a bring-up. `usual`: (begin, p50, p95) of the stage, as a grey band with a tick."""
    whole_s = max(whole_s, 0.001)
    parts = []
    if usual is not None:
        begin_s, p50_s, p95_s = usual
        parts.append(_rect(begin_s / whole_s, p95_s / whole_s, BAND_PX, "band", f"usual: up to {p95_s:.3g} s"))
    parts += [_rect(one.begin_s / whole_s, one.took_s / whole_s, BAR_PX, f"bar-{one.kind}", one.title) for one in bars]
    if usual is not None:
        at = _percent((begin_s + p50_s) / whole_s)
        parts.append(Markup('<line x1="{0}" x2="{0}" y1="1" y2="{1}" class="tick"/>').format(at, LANE_PX - 1))
    body = Markup("").join(parts)
    return Markup('<svg class="lane" width="100%" height="{}" aria-hidden="true">{}</svg>').format(LANE_PX, body)


def split(parts: Sequence[tuple[str, float]], label: str) -> Markup:
    """One bar, divided: (kind, amount)."""
    whole, at, made = sum(amount for _, amount in parts) or 1.0, 0.0, []
    for kind, amount in parts:
        made.append(_rect(at, amount / whole, LANE_PX, f"bar-{kind}", kind))
        at += amount / whole
    body = Markup("").join(made)
    return Markup('<svg class="split" width="100%" height="{}" role="img" aria-label="{}">{}</svg>').format(
        LANE_PX, label, body
    )


def _rect(x: float, width: float, height: int, name: str, title: str) -> Markup:
    x = min(max(x, 0.0), 1 - NARROWEST)
    width = min(max(width, NARROWEST), 1 - x)
    return Markup('<rect x="{}" width="{}" y="{}" height="{}" class="{}"><title>{}</title></rect>').format(
        _percent(x), _percent(width), (LANE_PX - height) // 2, height, name, escape(title)
    )


def _percent(share: float) -> str:
    return f"{min(max(share, 0.0), 1.0) * 100:.2f}".rstrip("0").rstrip(".") + "%"
