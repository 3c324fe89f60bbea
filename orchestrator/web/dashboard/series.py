"""Charts over time, as SVG: percentages across and pixels down, so that no text is stretched and no style is needed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape

from markupsafe import Markup

from orchestrator.core import moments

HEIGHT_PX, FOOT_PX, HEAD_PX = 96, 18, 12
ACROSS = 1_000  # units of the drawing from left to right
STEPS = (1, 2, 5)  # of a scale, times a power of ten
DOT = 2.0  # units across
GAP = 2.5  # steps without a record, after which a line is interrupted


@dataclass(frozen=True, slots=True)
class Series:
    """One series: a value for each moment."""

    name: str  # as the key says it
    kind: str  # a class of the style sheet: line, line-2 or area
    values: Sequence[tuple[datetime, float]]


@dataclass(frozen=True, slots=True)
class ChartSpan:
    """The time that a chart shows."""

    since: datetime
    now: datetime  # or the end of what is shown
    step_s: float
    is_over: bool = False  # it ended then

    def across(self, at: datetime) -> float:
        """Where a moment lies, of ACROSS."""
        return round(ACROSS * (at - self.since) / (self.now - self.since), 1)


def chart(
    label: str,
    span: ChartSpan,
    lines: Sequence[Series],
    shown: Callable[[float], str],
    top: float | None = None,
) -> Markup:
    """The chart, with its key and, for those who do not see it, its range in words. `shown` formats a value.

    `top` is the end of the scale; None: a round number above all values.
    """
    most = max((value for line in lines for _, value in line.values), default=0.0)
    top = top or scale(most)
    drawn = "".join(_drawn(line, span, top) for line in lines)
    grids = "".join(grid(value, top, shown) for value in (top / 2, top))
    last = {line.name: line.values[-1][1] for line in lines if line.values}
    words = (
        "; ".join(f"{name} {shown(value)} {'at the end' if span.is_over else 'now'}" for name, value in last.items())
        or "no record of this time"
    )
    key = "".join(f'<span class="k-{line.kind}">{escape(line.name)}</span>' for line in lines)
    height = HEIGHT_PX + FOOT_PX
    return Markup(  # noqa: S704 - made of numbers and escaped names
        f'<svg class="chart" width="100%" height="{height}" role="img" '
        f'aria-label="{escape(label)}: at most {escape(shown(most))}; {escape(words)}">{grids}'
        f'<svg width="100%" height="{HEIGHT_PX}" viewBox="0 0 {ACROSS} {HEIGHT_PX}" preserveAspectRatio="none">'
        f'{drawn}</svg><line x1="0" x2="100%" y1="{HEIGHT_PX}" y2="{HEIGHT_PX}" class="axis"/>{times(span)}</svg>'
        f'<p class="key">{key}</p>'
    )


def whole(value: float) -> str:
    """A number of things on a scale: `1,000`, `0.5`."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def scale(most: float) -> float:
    """The smallest round number that is not less: 1, 2 or 5 times a power of ten."""
    if most <= 0:
        return 1.0
    power = 1.0
    while power > most:
        power /= 10
    while power * 10 <= most:
        power *= 10
    return next((step * power for step in STEPS if step * power >= most), 10 * power)


def summed(points: Sequence[Sequence[Mapping[str, object]]], name: str) -> list[tuple[datetime, float]]:
    """The sum of a figure over several pools, by moment."""
    total: dict[datetime, float] = {}
    for one in points:
        for point in one:
            at, value = moments.moment(str(point["at"])), point[name]
            total[at] = total.get(at, 0.0) + (float(value) if isinstance(value, int | float) else 0.0)
    return sorted(total.items())


def _drawn(line: Series, span: ChartSpan, top: float) -> str:
    """The line, in as many pieces as there are gaps in the record."""
    return "".join(_piece(piece, line.kind) for piece in _pieces(line, span, top))


def _pieces(line: Series, span: ChartSpan, top: float) -> list[list[tuple[float, float]]]:
    pieces: list[list[tuple[float, float]]] = []
    before: datetime | None = None
    for at, value in line.values:
        if before is None or (at - before).total_seconds() > GAP * span.step_s:
            pieces.append([])
        pieces[-1].append((span.across(at), round(height_of(value, top), 1)))
        before = at
    return pieces


def _piece(points: Sequence[tuple[float, float]], kind: str) -> str:
    if len(points) == 1:  # between two gaps: a stroke that can be seen
        ((x, y),) = points
        points = ((x, y), (x + DOT, y))
    written = " ".join(f"{x:g},{y:g}" for x, y in points)
    if kind == "area":
        first, last = points[0][0], points[-1][0]
        return f'<polygon class="area" points="{first:g},{HEIGHT_PX} {written} {last:g},{HEIGHT_PX}"/>'
    return f'<polyline class="{kind}" points="{written}"/>'


def height_of(value: float, top: float) -> float:
    """Where a value lies, in pixels from above."""
    return HEIGHT_PX - (HEIGHT_PX - HEAD_PX) * min(max(value, 0.0), top) / top


def grid(value: float, top: float, shown: Callable[[float], str]) -> str:
    """A line across at a value, and the value."""
    y = round(height_of(value, top), 1)
    line = f'<line x1="0" x2="100%" y1="{y:g}" y2="{y:g}" class="grid"/>'
    return f'{line}<text x="0" y="{y - 2:g}">{escape(shown(value))}</text>'


def times(span: ChartSpan) -> str:
    """Moments below the axis: the begin, the middle and now."""
    form = "%H:%M" if span.now - span.since < timedelta(days=2) else "%d %b"
    y = HEIGHT_PX + FOOT_PX - 4
    middle = span.since + (span.now - span.since) / 2
    end = _utc(span.now, form) if span.is_over else "now"
    marks = (("0%", "start", _utc(span.since, form)), ("50%", "middle", _utc(middle, form)), ("100%", "end", end))
    return "".join(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, anchor, text in marks)


def _utc(at: datetime, form: str) -> str:
    return at.astimezone(UTC).strftime(form) + " UTC"
