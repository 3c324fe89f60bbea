"""50 pods become reachable at (almost) one moment: seconds until all are promoted; the issue's bar is 5 s."""

import asyncio
import time
from pathlib import Path
from typing import Any

from bench.figures import epoch, spread
from testbed.stack import Stack

TRIES = 50  # pods
GOALS = {"last_reachable_to_last_promoted_s": ("<=", 5.0)}
BOOT_S = 20.0  # long enough that every pod has been created before the first one answers
REACHABLE_AT, RUNNING_AT = 1.0, 0.8  # shares of the boot time, as the emulator has them
TIMEOUT_S = 300.0
PROMOTED = """
    select worker_id, extract(epoch from at)::float as at from worker_events
     where from_state = 'spawning' and to_state = 'active'
"""
STAGES = """
    select stage, percentile_cont(0.5) within group (order by extract(epoch from ended_at - started_at)) as p50,
           max(extract(epoch from ended_at - started_at)) as most, count(*) filter (where outcome <> 'ok') as failures
      from worker_attempts where ended_at is not null group by stage order by min(id)
"""


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Seconds from a pod's SSH server answering to its promotion, and for all of them together."""
    overrides = {
        "MIN_ACTIVE_GPUS": str(tries),
        "MAX_ACTIVE_GPUS": str(tries),
        "GPU_IDLE_TIMEOUT_SEC": "3600",
        "SPAWNING_GRACE_PERIOD_SEC": "3600",
    }
    async with Stack(directory, boot_s=(BOOT_S, BOOT_S)) as stack:
        await stack.migrate()
        await stack.control("POST", "settings", {"create_s": 0, "per_minute": 100_000, "per_hour": 1_000_000})
        await stack.start_orchestrator(overrides)
        async with await stack.connect() as sql:
            promoted = await _all_promoted(sql, tries)
            stages = await (await sql.execute(STAGES)).fetchall()
        ledger = await stack.control("GET", "ledger")
    reachable = {
        pod["name"]: epoch(pod["started_at"]) + BOOT_S * (REACHABLE_AT - RUNNING_AT)
        for pod in ledger["pods"]
        if pod["started_at"] and pod["name"] in promoted
    }
    each_s = [promoted[name] - at for name, at in reachable.items()]
    figures: dict[str, Any] = {
        "pods": len(ledger["pods"]),
        "reachable_within_s": round(max(reachable.values()) - min(reachable.values()), 2),
        "first_reachable_to_last_promoted_s": round(max(promoted.values()) - min(reachable.values()), 2),
        "last_reachable_to_last_promoted_s": round(max(promoted.values()) - max(reachable.values()), 2),
        **{f"each_{name}": value for name, value in spread(each_s).items()},
    }
    for row in stages:
        failures = f", {row['failures']} failed tries" if row["failures"] else ""
        figures[f"stage_{row['stage']}"] = f"p50 {row['p50']:.2f} s, max {row['most']:.2f} s{failures}"
    return figures


async def _all_promoted(sql: Any, wanted: int) -> dict[str, float]:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        rows = await (await sql.execute(PROMOTED)).fetchall()
        if len(rows) >= wanted:
            return {row["worker_id"]: row["at"] for row in rows}
        await asyncio.sleep(0.2)
    raise TimeoutError(f"{len(rows)} of {wanted} promoted after {TIMEOUT_S:.0f} s")
