"""1,000 idle workers for a minute: their share of a core and their statements a second; the bars are 10 % and 100.

The processes are those of `thousand`: only the pods are emulated. Each agent waits in a long poll and sends heartbeats
as on a real pod. The gateway server, which gets the agents' calls, has its own thread, so its share can be separated
from the loop's: what remains is ticks, the provider's lists and a look for new log bytes at each pod now and then.
"""

import asyncio
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from bench.figures import cpu_s, servers_cpu_s
from bench.thousand import LOOK_S, PHASE_TIMEOUT_S, QUIET, UNLIMITED, row
from testbed.services.processes import Child
from testbed.stack import Stack

TRIES = 1_000  # workers
GOALS = {"statements_a_second": ("<=", 100.0), "orchestrator_of_a_core": ("<=", 0.1)}
WATCH_S = 60.0
QUIET_S = 30  # after the last of them came up: the first lines of its logs have arrived
IDLE = "select count(*) as n from workers where status = 'idle'"
COMMITS = "select xact_commit + xact_rollback as n from pg_stat_database where datname = current_database()"
CALLS = "orchestrator_database_call_seconds_count"
OPERATOR = {"GPU_IDLE_TIMEOUT_SEC": "3600", "ORCHESTRATOR_POLL_SEC": "30", "HEARTBEAT_TIMEOUT_SEC": "60"}


@dataclass
class Look:
    """The processor time and the calls so far."""

    at_s: float
    commits: int
    cpu_s: dict[str, float]
    calls: Counter[str]  # of SQL functions


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Shares of a core and calls a second, over WATCH_S."""
    token = secrets.token_hex(16)
    fleet = {"MIN_ACTIVE_GPUS": str(tries), "MAX_ACTIVE_GPUS": str(tries), "METRICS_TOKEN": token}
    async with Stack(directory, boot_s=(2, 4), light=True) as stack:
        await stack.migrate()
        await stack.control("POST", "settings", UNLIMITED)
        daemon = await stack.start_orchestrator({**OPERATOR, **fleet})
        client = httpx.AsyncClient(base_url=stack.url, headers={"Authorization": f"Bearer {token}"}, trust_env=False)
        async with await stack.connect() as sql, client:
            await until(sql, IDLE, tries)
            await until(sql, QUIET.format(QUIET_S), 1)
            before = await _look(sql, client, daemon)
            await asyncio.sleep(WATCH_S)
            after = await _look(sql, client, daemon)
            idle = (await row(sql, IDLE))["n"]
    seconds = after.at_s - before.at_s
    shares = {name: (after.cpu_s[name] - before.cpu_s[name]) / seconds for name in after.cpu_s}
    calls = (after.calls - before.calls).most_common()
    return {
        "idle_workers": idle,
        "statements_a_second": round((after.commits - before.commits) / seconds, 1),
        **{f"{name}_of_a_core": round(share, 3) for name, share in shares.items()},
        **{f"{function}_a_second": round(number / seconds, 1) for function, number in calls if number >= seconds},
    }


async def until(sql: Any, statement: str, wanted: int) -> None:
    async with asyncio.timeout(PHASE_TIMEOUT_S):
        while (await row(sql, statement))["n"] != wanted:
            await asyncio.sleep(LOOK_S)


async def _look(sql: Any, client: httpx.AsyncClient, daemon: Child) -> Look:
    calls = Counter[str]()
    for family in text_string_to_metric_families((await client.get("/metrics")).raise_for_status().text):
        for sample in family.samples:
            if sample.name == CALLS:
                calls[sample.labels["function"]] = int(sample.value)
    threads = {one.id: one.user_time + one.system_time for one in psutil.Process(daemon.pid).threads()}
    shares = {
        "orchestrator": cpu_s(daemon.pid),
        "its_loop": threads.pop(daemon.pid),
        "http_server": max(threads.values()),  # the other threads wait for S3 and RunPod
        "postgres": await servers_cpu_s(sql),
    }
    return Look(time.monotonic(), (await row(sql, COMMITS))["n"], shares, calls)
