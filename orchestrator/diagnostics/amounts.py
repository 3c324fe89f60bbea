"""Amounts and times as people read them, the same on the command line and on the pages."""

import re
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from orchestrator.core import moments
from orchestrator.core.plurals import dollars

MOMENT = re.compile(r"\b\d{4}-\d\d-\d\d(?:T[\d:.]+Z|[T ][\d:.]+[+-]\d\d:\d\d)")  # the format in rows and evidence
FINE = 4  # digits of small amounts of money


def span(seconds: float | None) -> str:
    """`6m02s`, `2h05m`, `3d04h`; a dash for unknown."""
    if seconds is None or not isfinite(seconds):
        return "–"
    whole = max(0, int(seconds))
    days, hours, minutes, rest = whole // 86_400, whole // 3_600 % 24, whole // 60 % 60, whole % 60
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def usd(amount: float | None, digits: int = 2) -> str:
    """`$0.44`; a dash for unknown, and `$0.0004` or `<$0.0001`, never `$0.00`, for an amount above zero."""
    if amount is None:
        return "–"
    return rounded(amount, digits) or rounded(amount, FINE) or f"<${10**-FINE:.{FINE}f}"


def rounded(amount: float, digits: int) -> str | None:
    """`$0.44`, `-$0.03`; None for an amount above zero that would be shown as zero."""
    text = dollars(amount, digits)
    return text if not amount > 0 or text.strip("$0.") else None


def octets(count: int) -> str:
    """`512 B`, `12.3 KiB`."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":  # noqa: PLR2004
            break
        size /= 1024
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def gpu_name(gpu_type: str | None, count: int | None = 1) -> str:
    """`RTX 4090`, `2 x A100 80GB PCIe`."""
    if not gpu_type:
        return "–"
    short = gpu_type.removeprefix("NVIDIA ").removeprefix("GeForce ")
    return f"{count} x {short}" if count and count > 1 else short


def moment(value: Any) -> datetime | None:
    """Parse a timestamp from the database."""
    if value is None or isinstance(value, datetime):
        return value
    return moments.moment(value)


def ago(value: Any, now: datetime) -> float | None:
    """Return the seconds since a timestamp."""
    then = moment(value)
    return None if then is None else (now - then).total_seconds()


def relative(value: Any, now: datetime) -> str:
    """`6m02s ago`, `in 33s`; a dash for unknown."""
    seconds = ago(value, now)
    if seconds is None:
        return "–"
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def aged(text: str, now: datetime) -> str:
    """Replace the timestamps in a text with ages."""
    return MOMENT.sub(lambda found: relative(found[0], now), text)


def clock(value: Any) -> str:
    """`2026-11-20 22:31:04Z`."""
    then = moment(value)
    return "–" if then is None else then.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
