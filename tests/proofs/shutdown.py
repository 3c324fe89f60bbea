"""`./run soak shutdown`: end the orchestrator under load, often, by SIGTERM and SIGKILL, and count the effects.

Pods are light, so that the load fits on the machine; everything else is real. Workers start and end all the time,
because the idle timeout is one second. Each round starts the process again, and ends it at a random moment, also during
its start.
"""

import asyncio
import random
import signal
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psycopg import AsyncConnection

from demo.scenario import submit
from testbed.audit import count, faults
from testbed.services.processes import Child
from testbed.stack import Servers, Stack

EXIT_LIMIT_S = 3.0  # from SIGTERM to the end, in any state
UNREADY = 6  # one in so many is ended before it is ready
LONGEST_S = 1.0  # from ready to the signal
TASKS = 3  # a round
QUIET_S = 90.0  # for the last orchestrator to finish everything
REST = "select count(*) as n from tasks where status in ('Queued', 'In Progress')"
LIVE = "select count(*) as n from workers where status <> 'terminated'"
HELD = "select count(*) as n from fleet_lease where expires_at > now() and holder like %s"
OVER = "update fleet_lease set expires_at = now()"
OPERATOR = {
    "MAX_ACTIVE_GPUS": "6",
    "TASKS_PER_GPU_THRESHOLD": "1",
    "GPU_IDLE_TIMEOUT_SEC": "1",
    "GPU_OVERCAPACITY_IDLE_TIMEOUT_SEC": "1",
    "SPAWNING_GRACE_PERIOD_SEC": "5",
    "SCALE_DOWN_GRACE_PERIOD_SEC": "1",
    "ORCHESTRATOR_POLL_SEC": "1",
}
Sql = AsyncConnection[dict[str, Any]]


@dataclass(slots=True)
class Ends:
    """The ends of all rounds."""

    limit_s: float  # from SIGTERM to the end of the process, at most
    term_s: list[float] = field(default_factory=list)  # from SIGTERM to the end of the process
    kills: int = 0
    wrong: list[str] = field(default_factory=list)


async def run(
    directory: Path,
    terms: int,
    kills: int,
    seed: int,
    servers: Servers | None = None,
    limit_s: float = EXIT_LIMIT_S,
) -> dict[str, Any]:
    """Run so many rounds of each kind, mixed. Return the summary, with `ok` and what was `wrong`."""
    dice, ends, submitted = random.Random(seed), Ends(limit_s), 0
    kinds = [signal.SIGTERM] * terms + [signal.SIGKILL] * kills
    dice.shuffle(kinds)
    async with Stack(directory, seed=seed, boot_s=(0.5, 1.5), servers=servers, light=True) as stack:
        stack.environment |= OPERATOR
        if servers is None:
            await stack.migrate()
        await stack.control("POST", "settings", {"per_minute": 1_000_000, "per_hour": 10_000_000, "create_s": 0.2})
        async with await stack.connect() as sql:
            for number, kind in enumerate(kinds):
                seconds = [round(dice.uniform(0.1, 2), 2) for _ in range(TASKS)]
                tasks = [{"task_type": "travel_segment", "params": {"seconds": s}} for s in seconds]
                submitted += len(await submit(stack, tasks))
                await _round(stack, sql, kind, dice, ends, early=number % UNREADY == UNREADY - 1)
            last = await stack.start_orchestrator()
            await _rest(stack, sql)
            await last.stop()
            summary = await count(sql, await stack.control("GET", "ledger"), stack.blobs(), submitted)
    summary |= _figures(ends)
    summary["wrong"] = faults(summary) + ends.wrong
    return summary | {"ok": not summary["wrong"], "seed": seed, "terms": terms, "kills": kills}


async def _round(stack: Stack, sql: Sql, kind: signal.Signals, dice: random.Random, ends: Ends, *, early: bool) -> None:
    """One process, from its start to its end."""
    if early:
        child = await stack.begin_orchestrator()
    else:
        child = await stack.start_orchestrator()
    await asyncio.sleep(dice.uniform(0.0, LONGEST_S))
    if kind is signal.SIGKILL:
        await child.kill()
        await sql.execute(
            OVER
        )  # the lease has expired, as after a slow restart by the platform: the next process leads at once
        ends.kills += 1
        return
    took_s, status = await _stop(child)
    ends.term_s.append(took_s)
    if took_s > ends.limit_s:
        ends.wrong.append(f"SIGTERM took {took_s:.1f} s")
    if status not in ({0, 128 + signal.SIGTERM, -signal.SIGTERM} if early else {0}):
        ends.wrong.append(f"SIGTERM ended with {status}{child.output_tail()}")
    if not early and await _number(sql, HELD, f"%:{child.pid}:%"):
        ends.wrong.append("the lease was kept")


async def _stop(child: Child) -> tuple[float, int]:
    began_s = time.monotonic()
    status = await child.stop()
    return time.monotonic() - began_s, status


async def _rest(stack: Stack, sql: Sql) -> None:
    """Wait until every task has ended and every pod is gone, or the time is over. What is left is counted then."""
    deadline = time.monotonic() + QUIET_S
    while time.monotonic() < deadline:
        alive = (await stack.control("GET", "ledger"))["alive"]
        if not alive and not await _number(sql, REST) and not await _number(sql, LIVE):
            return
        await asyncio.sleep(0.25)


async def _number(sql: Sql, query: str, *values: str) -> int:
    row = await (await sql.execute(query, values)).fetchone()
    assert row is not None
    return int(row["n"])


def _figures(ends: Ends) -> dict[str, Any]:
    took = sorted(ends.term_s) or [0.0]
    return {
        "exit_p50_s": round(statistics.median(took), 3),
        "exit_p99_s": round(took[min(len(took) - 1, int(len(took) * 0.99))], 3),
        "exit_max_s": round(took[-1], 3),
    }
