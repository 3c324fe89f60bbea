"""An orchestrator that starts again with hundreds of pods: how long it takes to match every one. It deletes none."""

import asyncio
import json
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from testbed.stack import Stack
from tests.proofs.fault_matrix.environment import Environment, NotWithin

RECONCILED_S = 5.0  # the limit
UP_S = 240.0  # for all workers to be promoted
BACK_S = 60.0  # including the lease of a killed leader
WATCHED_S = 10.0  # afterwards, in which no pod may be created or deleted
POLL_S = 0.1
DOWN_S = 90.0
READY = "select 1 where (select count(*) from workers where status in ('active', 'idle')) = %s"
GONE = "select 1 where not exists (select 1 from workers where status <> 'terminated')"
UNLIMITED = {"create_s": 0, "per_minute": 1_000_000, "per_hour": 10_000_000, "balance_usd": 1_000_000}


async def measure(directory: Path, pods: int, seed: int) -> dict[str, Any]:
    """Bring light pods up, end the orchestrator with SIGTERM and then with SIGKILL, and start it again each time."""
    operator = {"MIN_ACTIVE_GPUS": str(pods), "MAX_ACTIVE_GPUS": str(pods), "LOG_LEVEL": "DEBUG"}  # quiet ticks too
    wrong: list[str] = []
    async with Stack(directory, seed=seed, light=True) as stack:
        await stack.migrate()
        await stack.control("POST", "settings", UNLIMITED)
        env = Environment(stack, "$^")
        child = await stack.start_orchestrator(operator)
        await env.until(READY, pods, timeout_s=UP_S)
        before = await _alive(stack)
        await child.stop()
        child, graceful_s = await _back(stack, operator, pods, from_lease=False)
        await child.kill()
        child, killed_s = await _back(stack, operator, pods, from_lease=True)
        await asyncio.sleep(WATCHED_S)
        if await _alive(stack) != before:
            wrong.append(f"{len(before ^ await _alive(stack))} pod(s) came or went")
        await child.stop()
        child = await stack.start_orchestrator(operator | {"MIN_ACTIVE_GPUS": "0"})
        await env.until(GONE, timeout_s=DOWN_S)
        leaked = (await stack.control("GET", "ledger"))["alive"]
        await env.close()
    for how, took_s in (("SIGTERM", graceful_s), ("SIGKILL", killed_s)):
        if took_s > RECONCILED_S:
            wrong.append(f"reconciled {took_s:.1f} s after {how}")
    if leaked:
        wrong.append(f"{leaked} pod(s) leaked")
    figures = {"restart_s": round(graceful_s, 2), "from_lease_s": round(killed_s, 2), "pods": len(before)}
    return {"ok": not wrong, "wrong": wrong, **figures}


async def _back(stack: Stack, operator: Mapping[str, str], pods: int, *, from_lease: bool) -> tuple[Any, float]:
    """Start a process. Return it, and the seconds from its start, or its lease, to its first complete snapshot.

    A killed leader keeps its lease, so the next one gets it late.
    """
    log, began = stack.directory / "orchestrator.log", time.time()
    read_from = log.stat().st_size
    child = await stack.begin_orchestrator(operator)
    deadline = time.monotonic() + BACK_S
    while time.monotonic() < deadline:
        said = [json.loads(line) for line in log.read_bytes()[read_from:].splitlines() if line.endswith(b"}")]
        since = began
        for line in said:
            at = datetime.fromisoformat(line["timestamp"]).timestamp()
            if line["event"] == "lease_taken" and from_lease:
                since = at
            if line["event"] == "cycle_ended" and line["pods"] == line["status"]["total_workers"] == pods:
                return child, at - since
        await asyncio.sleep(POLL_S)
    raise NotWithin(f"not reconciled within {BACK_S:.0f} s{child.output_tail()}")


async def _alive(stack: Stack) -> set[str]:
    return {pod["id"] for pod in (await stack.control("GET", "ledger"))["pods"] if pod["ended_at"] is None}
