"""1,000 light pods and a burst of 10,000 tasks: how long a tick takes, and how many calls to RunPod; then down to none.

Everything but the pods is real: Postgres, S3, SSH, the gateway, `python -m orchestrator run`. The emulator's limit on
calls is lifted, since creates and deletes are what they are; the rest is counted here.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg.types.json import Jsonb

from bench.figures import quantile
from testbed.services.processes import Child
from testbed.stack import Stack

TRIES = 1_000  # pods
GOALS = {
    "longest_tick_s": ("<=", 1),
    "list_and_get_calls_in_the_busiest_minute": ("<=", 60),
    "workers_failed": ("<=", 0),
    "pods_leaked": ("<=", 0),
}
TASKS_PER_POD = 10
TASK_S = 5.0
PHASE_TIMEOUT_S = 900.0
LOOK_S = 1.0
QUIET_S = 30  # no worker starts or ends
LEDGER_EVERY_S = 4.0  # a thousand rows
MINUTE_S = 60.0
SUBMIT_BATCH = 500
UNLIMITED = {"create_s": 0, "per_minute": 1_000_000, "per_hour": 10_000_000, "balance_usd": 1_000_000}
CHANGING = ("POST /v2/pods", "DELETE /v2/pods/{id}")
READY = "select count(*) as n from workers where status in ('active', 'idle')"
ENDED = "select count(*) as n from tasks where status = 'Complete'"
LIVE = "select count(*) as n from workers where status <> 'terminated'"
QUIET = "select count(*) as n from (select max(at) as at from worker_events) e where now() > at + interval '{} s'"
OVER = "select count(*) as n, count(*) filter (where failure_code is not null) as failed from workers"


@dataclass
class Phase:
    """What one part of the run cost."""

    name: str
    seconds: float
    ticks: list[dict[str, Any]]  # the cycle summaries
    calls: int  # without creates and deletes
    cpu_s: float
    rss_mb: float
    others: dict[str, float] = field(default_factory=dict)

    def figures(self) -> dict[str, Any]:
        took = [tick["tick_s"] for tick in self.ticks] or [0.0]
        spread = f"p50 {quantile(took, 0.5):.2f} s, p99 {quantile(took, 0.99):.2f} s, max {max(took):.2f} s"
        slowest = max(self.ticks, key=lambda tick: tick["tick_s"], default={"planned": {}, "observe_s": 0.0})
        others = {f"{self.name}_{key}": round(value, 2) for key, value in self.others.items()}
        return {
            f"{self.name}_s": round(self.seconds, 1),
            f"{self.name}_ticks": f"{len(self.ticks)}: {spread}",
            f"{self.name}_slowest_tick": f"{slowest['observe_s']:.2f} s to observe, planned {slowest['planned']}",
            f"{self.name}_list_and_get_calls": self.calls,
            f"{self.name}_daemon_cpu": f"{self.cpu_s / self.seconds:.0%} of a core, {self.rss_mb:.0f} MB",
            **others,
        }


class Run:
    """The stack, its daemon, and a stopwatch over both."""

    def __init__(self, stack: Stack, sql: Any, daemon: Child) -> None:
        self.stack, self.sql, self.daemon = stack, sql, daemon
        self.phases: list[Phase] = []
        self.asked: list[tuple[float, int]] = []  # when, and how many list and get calls there had been

    def busiest_minute(self) -> int:
        """The most list and get calls in any 60 s, or a few more: those between two looks count as one."""
        most_s = MINUTE_S + 2 * LEDGER_EVERY_S
        pairs = ((a, b) for i, a in enumerate(self.asked) for b in self.asked[i:] if b[0] - a[0] <= most_s)
        return max(later - earlier for (_, earlier), (_, later) in pairs)

    async def phase(self, name: str, statement: str, wanted: int, *, exactly: bool = False) -> Phase:
        """Wait until the count is reached, and keep what it took."""
        began_s, cpu_s = time.monotonic(), self._cpu_s()
        log_at, calls = self.stack.directory.joinpath("orchestrator.log").stat().st_size, await self._calls()
        while True:
            count = (await row(self.sql, statement))["n"]
            if count == wanted or (count > wanted and not exactly):
                break
            if time.monotonic() - began_s > PHASE_TIMEOUT_S:
                raise TimeoutError(f"{name}: {count} of {wanted} after {PHASE_TIMEOUT_S:.0f} s")
            if not self.asked or time.monotonic() - self.asked[-1][0] >= LEDGER_EVERY_S:
                await self._calls()
            await asyncio.sleep(LOOK_S)
        process = psutil.Process(self.daemon.pid)
        self.phases.append(
            Phase(
                name,
                time.monotonic() - began_s,
                self._ticks(log_at),
                await self._calls() - calls,
                self._cpu_s() - cpu_s,
                process.memory_info().rss / 1e6,
            )
        )
        return self.phases[-1]

    def _cpu_s(self) -> float:
        times = psutil.Process(self.daemon.pid).cpu_times()
        return float(times.user + times.system)

    async def _calls(self) -> int:
        made = (await self.stack.control("GET", "ledger"))["calls"]
        asked: int = sum(number for call, number in made.items() if call not in CHANGING)
        self.asked.append((time.monotonic(), asked))
        return asked

    def _ticks(self, since: int) -> list[dict[str, Any]]:
        with self.stack.directory.joinpath("orchestrator.log").open("rb") as file:
            file.seek(since)
            return [json.loads(line) for line in file if b'"cycle_ended"' in line]


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Up to `tries` workers, ten tasks for each, and down again."""
    tasks = tries * TASKS_PER_POD
    operator = {
        "MIN_ACTIVE_GPUS": str(tries),
        "MAX_ACTIVE_GPUS": str(tries),
        "GPU_IDLE_TIMEOUT_SEC": "5",
        "ORCHESTRATOR_POLL_SEC": "30",
        "HEARTBEAT_TIMEOUT_SEC": "60",
        "LOG_LEVEL": "DEBUG",  # quiet ticks too
    }
    async with Stack(directory, boot_s=(2, 4), light=True) as stack:
        await stack.migrate()
        await stack.control("POST", "settings", UNLIMITED)
        sql = await stack.connect()
        async with sql:
            run = Run(stack, sql, await stack.start_orchestrator(operator))
            up = await run.phase("up", READY, tries)
            created = [pod["created_at"] for pod in (await stack.control("GET", "ledger"))["pods"]]
            up.others["pods_created"] = len(created)
            await run.phase("quiet", QUIET.format(QUIET_S), 1)
            await _submit(sql, tasks)
            burst = await run.phase("burst", ENDED, tasks)
            burst.others["tasks_a_second"] = tasks / burst.seconds
            await run.daemon.stop()
            down = {**operator, "MIN_ACTIVE_GPUS": "0"}
            run.daemon = await stack.start_orchestrator(down)
            await run.phase("down", LIVE, 0, exactly=True)
            over = await row(sql, OVER)
            ledger = await stack.control("GET", "ledger")
    figures: dict[str, Any] = {"pods": tries, "tasks": tasks}
    for phase in run.phases:
        figures |= phase.figures()
    return {
        **figures,
        "longest_tick_s": max(tick["tick_s"] for phase in run.phases for tick in phase.ticks),
        "list_and_get_calls_in_the_busiest_minute": run.busiest_minute(),
        "workers_ever": over["n"],
        "workers_failed": over["failed"],
        "pods_leaked": ledger["alive"],
        "calls": json.dumps(ledger["calls"]),
    }


async def row(sql: psycopg.AsyncConnection[dict[str, Any]], statement: str) -> dict[str, Any]:
    """The one row of a count."""
    found = await (await sql.execute(statement)).fetchone()
    assert found is not None  # noqa: S101  a count always has one
    return found


async def _submit(sql: Any, count: int) -> None:
    batch = [{"task_type": "travel_segment", "params": {"seconds": TASK_S}} for _ in range(SUBMIT_BATCH)]
    for first in range(0, count, SUBMIT_BATCH):
        await sql.execute("select task_submit(%s)", (Jsonb(batch[: count - first]),))
