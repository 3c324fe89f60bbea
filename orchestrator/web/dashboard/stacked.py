"""Charts that lay kinds on each other over time, and points over two amounts. As series.py, without a style."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

from markupsafe import Markup

from orchestrator.web.dashboard.series import (
    ACROSS,
    FOOT_PX,
    HEIGHT_PX,
    ChartSpan,
    grid,
    height_of,
    scale,
    times,
    whole,
)

TALL_PX = 190  # of the chart of points, below which its axis is
DOT_PX, ROOM = 4, 0.06  # the radius of a point; the share of the width beside the points


@dataclass(frozen=True, slots=True)
class Layer:
    """One kind: an amount for each step."""

    name: str  # as the key says it
    kind: str  # a class of the style sheet: busy, over, idle, drain
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Dot:
    """A point: what it costs, and how long its tasks wait."""

    x: float
    y: float
    title: str
    label: str = ""  # beside it
    kind: str = "dot"  # a class of the style sheet: dot, dot-now, dot-set


def stacked(label: str, span: ChartSpan, at: Sequence[datetime], layers: Sequence[Layer], top: float) -> Markup:
    """The layers, the first one at the bottom, each step as wide as it lasts; `top` is the end of the scale."""
    below = [0.0] * len(at)
    drawn: list[str] = []
    for one in layers:
        above = [low + value for low, value in zip(below, one.values, strict=True)]
        drawn.insert(0, _steps(span, at, above, one.kind, top))  # what is lower is drawn over it
        below = above
    grids = "".join(grid(value, top, whole) for value in (top / 2, top))
    most = max(below, default=0.0)
    key = "".join(f'<span class="k-{one.kind}">{escape(one.name)}</span>' for one in layers)
    return Markup(  # noqa: S704 - made of numbers and escaped names
        f'<svg class="chart" width="100%" height="{HEIGHT_PX + FOOT_PX}" role="img" '
        f'aria-label="{escape(label)}: at most {whole(round(most, 1))}">{grids}'
        f'<svg width="100%" height="{HEIGHT_PX}" viewBox="0 0 {ACROSS} {HEIGHT_PX}" preserveAspectRatio="none">'
        f'{"".join(drawn)}</svg><line x1="0" x2="100%" y1="{HEIGHT_PX}" y2="{HEIGHT_PX}" class="axis"/>{times(span)}'
        f'</svg><p class="key">{key}</p>'
    )


def _steps(span: ChartSpan, at: Sequence[datetime], values: Sequence[float], kind: str, top: float) -> str:
    ends = [*(span.across(one) for one in at[1:]), float(ACROSS)]
    points = [
        f"{x:g},{height_of(value, top):.1f}"
        for begin, end, value in zip((span.across(one) for one in at), ends, values, strict=True)
        for x in (begin, end)
    ]
    return f'<polygon class="bar-{kind}" points="0,{HEIGHT_PX} {" ".join(points)} {ACROSS},{HEIGHT_PX}"/>'


def dots(
    label: str,
    curve: Sequence[Dot],
    others: Sequence[Dot],
    shown: tuple[Callable[[float], str], Callable[[float], str]],
    key: Mapping[str, str],
) -> Markup:
    """A curve through points, with points beside it. `shown` formats amounts across and up."""
    points = [*curve, *others]
    least, most = min(one.x for one in points), max(one.x for one in points)
    room = (most - least) * ROOM or max(most, 1.0) * ROOM
    least, most = max(0.0, least - room), most + room
    top = scale(max((one.y for one in points), default=0.0))

    def place(one: Dot) -> tuple[str, str]:
        return f"{100 * (one.x - least) / (most - least):.2f}%", f"{_tall(one.y, top):.1f}"

    lines = "".join(_line(place(one), place(other)) for one, other in itertools.pairwise(curve))
    marks = "".join(_dot(one, *place(one), is_right=one.x > (least + most) / 2) for one in points)
    grids = "".join(_grid(value, top, shown[1]) for value in (top / 2, top))
    foot = "".join(
        f'<text x="{x}" y="{TALL_PX + FOOT_PX - 4}" text-anchor="{anchor}">{escape(shown[0](value))}</text>'
        for x, anchor, value in (("0%", "start", least), ("50%", "middle", (least + most) / 2), ("100%", "end", most))
    )
    keys = "".join(f'<span class="k-{kind}">{escape(name)}</span>' for kind, name in key.items())
    return Markup(  # noqa: S704 - made of numbers and escaped texts
        f'<svg class="chart" width="100%" height="{TALL_PX + FOOT_PX}" role="img" aria-label="{escape(label)}">{grids}'
        f'<line x1="0" x2="100%" y1="{TALL_PX}" y2="{TALL_PX}" class="axis"/>{lines}{marks}{foot}</svg>'
        f'<p class="key">{keys}</p>'
    )


def _tall(value: float, top: float) -> float:
    """Where a value lies, in pixels from above."""
    return height_of(value, top) * TALL_PX / HEIGHT_PX


def _grid(value: float, top: float, shown: Callable[[float], str]) -> str:
    y = f"{_tall(value, top):.1f}"
    text = f'<text x="0" y="{_tall(value, top) - 2:.1f}">{escape(shown(value))}</text>'
    return f'<line x1="0" x2="100%" y1="{y}" y2="{y}" class="grid"/>{text}'


def _line(begin: tuple[str, str], end: tuple[str, str]) -> str:
    return f'<line x1="{begin[0]}" y1="{begin[1]}" x2="{end[0]}" y2="{end[1]}" class="line"/>'


def _dot(one: Dot, x: str, y: str, *, is_right: bool) -> str:
    """A point with its label on the side that has more room."""
    circle = f'<circle cx="{x}" cy="{y}" r="{DOT_PX}" class="{one.kind}"><title>{escape(one.title)}</title></circle>'
    if not one.label:
        return circle
    side = f'dx="{-2 * DOT_PX}" text-anchor="end"' if is_right else f'dx="{2 * DOT_PX}"'
    return f'{circle}<text x="{x}" y="{y}" dy="{4 * DOT_PX}" {side}>{escape(one.label)}</text>'
