"""The cost of each of the last 30 days (UTC), by what the workers did, from the roll-ups."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from markupsafe import Markup

from orchestrator.core import moments
from orchestrator.diagnostics.amounts import usd
from orchestrator.diagnostics.cost import KINDS
from orchestrator.web.dashboard.series import ACROSS, FOOT_PX, HEIGHT_PX, grid, height_of, scale
from orchestrator.web.dashboard.views import Reads

Row = Mapping[str, Any]
DAY = timedelta(days=1)
DAYS = 30
BETWEEN = 5.0  # units between two bars
ORDER = ("busy", *(kind for kind in KINDS if kind != "busy"))  # from the bottom of a bar
SHAPES = {"busy": "busy", "booting": "over", "idle": "idle", "draining": "drain"}  # classes of the style sheet


@dataclass(frozen=True, slots=True)
class DayCost:
    """One day."""

    day: date
    kinds: Mapping[str, tuple[float, float]]  # kind -> dollars, seconds
    is_open: bool = False  # it is not over, or not rolled up yet

    @property
    def usd(self) -> float:
        """The whole day."""
        return sum(spent for spent, _ in self.kinds.values())


async def month(reads: Reads, now: datetime) -> Row:
    """The days with their chart. A day that is not stored yet is the sum of its hours."""
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first, hours_since = midnight - (DAYS - 1) * DAY, midnight - DAY
    stored, hours = await asyncio.gather(
        reads.get("usage", "kind", "day", first.isoformat(), None),
        reads.get("usage", "kind", "hour", hours_since.isoformat(), None),
    )
    days = [*_days(stored["points"]).values()]
    closed = {one.day for one in days}
    days += [one for day, one in _days(hours["points"], is_open=True).items() if day not in closed]
    return {
        "days": sorted(days, key=lambda one: one.day, reverse=True),
        "chart": bars(days, midnight.date()),
        "usd": sum(one.usd for one in days),
        "until": hours["until"],
    }


def _days(points: Sequence[Row], *, is_open: bool = False) -> Mapping[date, DayCost]:
    """The points of kinds as days."""
    found: defaultdict[date, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    for one in points:
        spent = found[moments.moment(one["at"]).astimezone(UTC).date()][one["name"]]
        spent[0] += float(one["usd"])
        spent[1] += float(one["seconds"])
    return {
        day: DayCost(day, {kind: (kinds[kind][0], kinds[kind][1]) for kind in ORDER if kind in kinds}, is_open)
        for day, kinds in found.items()
    }


def bars(days: Sequence[DayCost], today: date) -> Markup:
    """A bar for each day up to today, divided by kind; in words, the most expensive day and today."""
    most = max((one.usd for one in days), default=0.0)
    top, wide = scale(most), ACROSS / DAYS
    drawn = "".join(_bar(one, wide * (DAYS - 1 - (today - one.day).days), wide - BETWEEN, top) for one in days)
    marks = "".join(_mark(today - n * DAY, n) for n in (DAYS - 1, DAYS // 2, 0))
    so_far = sum(one.usd for one in days if one.day == today)
    return Markup(  # noqa: S704 - made of numbers
        f'<svg class="chart" width="100%" height="{HEIGHT_PX + FOOT_PX}" role="img" aria-label="Dollars a day in '
        f'{DAYS} days: at most {usd(most)}; {usd(so_far)} today so far">'
        f"{grid(top / 2, top, usd)}{grid(top, top, usd)}"
        f'<svg width="100%" height="{HEIGHT_PX}" viewBox="0 0 {ACROSS} {HEIGHT_PX}" preserveAspectRatio="none">'
        f'{drawn}</svg><line x1="0" x2="100%" y1="{HEIGHT_PX}" y2="{HEIGHT_PX}" class="axis"/>{marks}</svg>'
    )


def _bar(one: DayCost, x: float, wide: float, top: float) -> str:
    told = ", ".join(f"{kind} {usd(spent)}" for kind, (spent, _) in one.kinds.items())
    parts, below = [f"<title>{one.day:%d %b} {usd(one.usd)}: {told}</title>"], 0.0
    for kind, (spent, _) in one.kinds.items():
        y, foot = height_of(below + spent, top), height_of(below, top)
        size = f'x="{x:.1f}" width="{wide:.1f}" y="{y:.1f}" height="{foot - y:.1f}"'
        parts.append(f'<rect {size} class="bar-{SHAPES[kind]}"/>')
        below += spent
    return f"<g>{''.join(parts)}</g>"


def _mark(day: date, ago: int) -> str:
    """A day below the axis."""
    x, anchor = {DAYS - 1: ("0%", "start"), 0: ("100%", "end")}.get(ago, ("50%", "middle"))
    text = f"{day:%d %b}" if ago else "today"
    return f'<text x="{x}" y="{HEIGHT_PX + FOOT_PX - 4}" text-anchor="{anchor}">{text}</text>'
