"""50 open pages of the dashboard, with 1,000 workers, 10 million ended and 1 million queued tasks.

All but the pods is real: Postgres, the gateway, `python -m orchestrator run`. The queued tasks are of a pool that the
settings do not have, so the fleet is at rest. The pages are the streams that browsers keep open, of ten addresses.
Windows with and without them take turns. A tick is as long as the orchestrator's own histogram says.
"""

import asyncio
import gzip
import os
import re
import secrets
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from bench.figures import cpu_s, quantile
from bench.idle import COMMITS, IDLE, OPERATOR, until
from bench.reads import PAST, recorded
from bench.thousand import QUIET, UNLIMITED, row
from testbed.services.processes import Child
from testbed.stack import Stack

TRIES = 1_000  # workers
TIMEOUT_S = 3_600.0  # most of it makes the rows
ENDED = int(os.environ.get("BENCH_READS_ENDED", "10000000"))
QUEUED = ENDED // 10
PAGES, PAIRS, WINDOW_S = 50, 5, 20.0
LOOKS = 10  # of each address
OLD_S = 6.0  # then an answer is shared no longer
QUIET_S = 30  # after the last worker came up
ELSEWHERE = """set session_replication_role = replica; update tasks set pool = 'archive' where status = 'Queued';
    update orchestrator.live set pool = 'archive'; reset session_replication_role"""
ADDRESSES = (
    "/", "/workers", "/tasks", "/tasks?status=Queued", "/decisions", "/decisions/blocked", "/cost", "/pools",
    "/limits", "/audit",
)  # fmt: skip
GOALS = {
    "core_share_of_50_pages": ("<=", 0.05),
    "tick_with_pages": ("<=", 1.05),
    "statements_of_50_pages_to_10": ("<=", 1.1),
    "first_byte_ms": ("<=", 150.0),
    "largest_page_kb": ("<=", 300.0),
    "first_page_compressed_kb": ("<=", 60.0),
}


@dataclass(frozen=True, slots=True)
class Look:
    """What the orchestrator and its database have done so far."""

    at_s: float
    cpu_s: float
    commits: int
    ticks: float
    ticks_s: float


class Visitors:
    """A signed-in browser with many open pages."""

    def __init__(self, url: str, token: str, client: httpx.AsyncClient) -> None:
        self._url, self._token, self._client = url, token, client
        self.events = 0

    async def sign_in(self) -> None:
        """Get a session."""
        answer = await self._client.post(f"{self._url}/login", data={"token": self._token})
        assert answer.status_code == 303, answer.text  # noqa: S101

    async def get(self, address: str) -> tuple[float, bytes]:
        """The ms to the first byte of a page, and the page."""
        began_s = time.perf_counter()
        async with self._client.stream("GET", self._url + address) as answer:
            first_ms = (time.perf_counter() - began_s) * 1e3
            content = await answer.aread()
        answer.raise_for_status()
        return first_ms, content

    async def watch(self, address: str) -> None:
        """Keep a page open."""
        async with self._client.stream("GET", f"{self._url}/live{address.rstrip('/')}", timeout=None) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                self.events += line.startswith("event:")


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """What the pages cost."""
    tokens = {name: secrets.token_hex(32) for name in ("METRICS_TOKEN", "ADMIN_TOKEN")}
    fleet = {"MIN_ACTIVE_GPUS": str(tries), "MAX_ACTIVE_GPUS": str(tries), **tokens}
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(Stack(directory, boot_s=(2, 4), light=True))
        await there.migrate()
        sql = await stack.enter_async_context(await there.connect())
        await _fill(sql)
        await there.control("POST", "settings", UNLIMITED)
        daemon = await there.start_orchestrator({**OPERATOR, **fleet, "ORCHESTRATOR_POLL_SEC": "1"})
        await until(sql, IDLE, tries)
        await until(sql, QUIET.format(QUIET_S), 1)
        limits = httpx.Limits(max_connections=PAGES + 10)
        client = await stack.enter_async_context(httpx.AsyncClient(limits=limits, timeout=30, trust_env=False))
        visitors = Visitors(there.url, tokens["ADMIN_TOKEN"], client)
        await visitors.sign_in()
        bench = _Bench(sql, daemon, visitors, client, there.url, tokens["METRICS_TOKEN"])
        return {"workers": tries, "ended": ENDED, **await bench.looks(), **await bench.pairs()}


async def _fill(sql: Any) -> None:
    for setting, value in (("ended", ENDED), ("queued", QUEUED), ("until", datetime.now(UTC))):
        await sql.execute("select set_config('past.' || %s, %s, false)", (setting, str(value)))
    await sql.execute(PAST.encode())
    await sql.execute(ELSEWHERE)
    term = (await (await sql.execute("select fleet_lead('default', 'bench', 1)->'term' as term")).fetchone())["term"]
    await recorded(sql, term, datetime.now(UTC))
    await sql.execute("vacuum analyze")


@dataclass(frozen=True, slots=True)
class _Bench:
    sql: Any
    daemon: Child
    visitors: Visitors
    client: httpx.AsyncClient
    url: str
    metrics_token: str

    async def looks(self) -> dict[str, float]:
        """Of one visitor: first bytes and sizes."""
        found: dict[str, list[tuple[float, bytes]]] = {one: [] for one in ADDRESSES}
        for _ in range(LOOKS):
            for one in ADDRESSES:
                found[one].append(await self.visitors.get(one))
            await asyncio.sleep(OLD_S)
        medians = {one: quantile([ms for ms, _ in looks], 0.5) for one, looks in found.items()}
        first = found["/"][0][1]
        static = [(await self.visitors.get(name.decode()))[1] for name in set(re.findall(rb'"(/static/[^"]+)"', first))]
        return {
            "first_byte_ms": round(max(medians.values()), 1),
            **{f"first_byte_ms_{one}": round(ms, 1) for one, ms in medians.items()},
            "largest_page_kb": round(max(len(page) for looks in found.values() for _, page in looks) / 1e3, 1),
            "first_page_compressed_kb": round(sum(len(gzip.compress(one)) for one in (first, *static)) / 1e3, 1),
        }

    async def pairs(self) -> dict[str, float]:
        """Windows with pages, each beside one without."""
        shares, ticks, commits, few = [], [], [], []
        for _ in range(PAIRS):
            alone = await self._window(0)
            opened = await self._window(PAGES)
            shares.append(opened[0] - alone[0])
            ticks.append(opened[2] / alone[2])
            commits.append(opened[1] - alone[1])
            few.append((await self._window(len(ADDRESSES)))[1] - alone[1])
        return {
            "core_share_of_50_pages": round(quantile(shares, 0.5), 3),
            "tick_with_pages": round(quantile(ticks, 0.5), 3),
            "statements_a_second_of_50_pages": round(quantile(commits, 0.5), 1),
            "statements_of_50_pages_to_10": round(quantile(commits, 0.5) / quantile(few, 0.5), 2),
            "events": self.visitors.events,
        }

    async def _window(self, pages: int) -> tuple[float, float, float]:
        """The share of a core, statements a second, and seconds of a tick, while so many pages are open."""
        open_ = [asyncio.create_task(self.visitors.watch(ADDRESSES[n % len(ADDRESSES)])) for n in range(pages)]
        try:
            await asyncio.sleep(3)  # the first paint of each is a look of its own
            before = await self._look()
            await asyncio.sleep(WINDOW_S)
            after = await self._look()
            for one in open_:
                assert not one.done(), one  # noqa: S101  a stream that has ended costs nothing
        finally:
            for one in open_:
                one.cancel()
            await asyncio.gather(*open_, return_exceptions=True)
        seconds = after.at_s - before.at_s
        a_tick = (after.ticks_s - before.ticks_s) / (after.ticks - before.ticks)
        return (after.cpu_s - before.cpu_s) / seconds, (after.commits - before.commits) / seconds, a_tick

    async def _look(self) -> Look:
        bearer = {"Authorization": f"Bearer {self.metrics_token}"}
        text = (await self.client.get(f"{self.url}/metrics", headers=bearer)).raise_for_status().text
        found = {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in ("orchestrator_tick_seconds_sum", "orchestrator_tick_seconds_count")
        }
        return Look(
            time.monotonic(), cpu_s(self.daemon.pid), (await row(self.sql, COMMITS))["n"],
            found["orchestrator_tick_seconds_count"], found["orchestrator_tick_seconds_sum"],
        )  # fmt: skip
