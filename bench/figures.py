"""What benchmarks say of a list of seconds, and of processes."""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import psutil

SERVERS = "select pid from pg_stat_activity where pid <> pg_backend_pid()"


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(values: Sequence[float], unit: str = "s") -> dict[str, float]:
    """Median, p99 and the worst."""
    return {
        f"p50_{unit}": round(quantile(values, 0.5), 4),
        f"p99_{unit}": round(quantile(values, 0.99), 4),
        f"max_{unit}": round(max(values), 4),
    }


def epoch(moment: float | str) -> float:
    """Seconds since 1970 of the emulator's times."""
    return moment if isinstance(moment, (int, float)) else datetime.fromisoformat(moment).timestamp()


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def servers_cpu_s(sql: Any) -> float:
    """… of all processes of the Postgres at the other end, but the one that is asked."""
    rows = await (await sql.execute(SERVERS)).fetchall()
    return sum(cpu_s(row["pid"] if isinstance(row, dict) else row[0]) for row in rows)
