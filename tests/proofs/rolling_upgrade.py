"""`./run soak rolling_upgrade`: an earlier version and this one on one database, as in a rolling deploy.

The schema migrates first, as the pre-deploy command does. Then the earlier orchestrator leads with its own agents on
the pods; this version joins and takes over when the earlier one is stopped; the earlier one joins again, and takes over
when this version is stopped. Agents use one address for all orchestrators, as behind a platform's load balancer.
"""

import asyncio
import subprocess
import time
from pathlib import Path
from typing import Any

from psycopg import AsyncConnection

from demo.scenario import submit
from testbed.audit import count, faults
from testbed.services.free_port import free_port
from testbed.services.processes import Child, ChildFailed
from testbed.stack import ROOT, Stack
from tests.proofs.fault_matrix.load_balancer import LoadBalancer

EARLIER = "0c2b2ea343dd26603a845f731f21825811d36f5b"  # before clusters; nothing is released yet
BUSY_S = 10.0  # from the tasks' submission to the hand-over: in the middle of them
REST_S = 18.0  # from there until the idle ones have gone, so that the next ones are this leader's
TASKS = 12  # in each half
TASK_S = 4.0
QUIET_S = 90.0
LEADS = "select 1 from fleet_lease where expires_at > now() and holder like %s"
REST = "select 1 from tasks where status in ('Queued', 'In Progress') limit 1"
LIVE = "select 1 from workers where status <> 'terminated' limit 1"
CODES = "select count(distinct code_sha) as n from workers where code_sha is not null"
REFUSED = ('"SchemaMismatch', "Traceback (most recent call last)", '"action_crashed"')  # in an orchestrator's log
Sql = AsyncConnection[dict[str, Any]]


class NoHistory(Exception):
    """The earlier commit is not in this clone."""


def checkout(directory: Path, commit: str = EARLIER) -> Path:
    """The files of an earlier commit. Raises NoHistory."""
    directory.mkdir(parents=True)
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", commit, "orchestrator", "worker", "migrations"],
        capture_output=True,
        check=False,
    )
    if packed.returncode != 0:
        raise NoHistory(f"{commit[:12]} cannot be read here; fix: git fetch --unshallow")
    subprocess.run(["tar", "-x", "-C", str(directory)], input=packed.stdout, check=True)
    return directory


async def run(directory: Path, seed: int, *, commit: str = EARLIER) -> dict[str, Any]:
    """Upgrade and roll back. Return the summary, with `ok` and what was `wrong`."""
    earlier, submitted = checkout(directory / "earlier", commit), 0
    async with Stack(directory, seed=seed, boot_s=(1, 2)) as stack:
        ports = (free_port(), free_port())
        stack.environment |= {"WORKER_CODE_DIR": "", "WORKER_HANDLERS": f"work=cmd:sleep {TASK_S:g}"}
        stack.environment |= {"MAX_ACTIVE_GPUS": "3", "GPU_IDLE_TIMEOUT_SEC": "2"}
        await stack.migrate()
        port = int(stack.environment["PORT"])
        async with LoadBalancer(port, ports), await stack.connect() as sql:
            crew = _Crew(stack, sql, earlier, ports)
            old = await crew.join("earlier", 0)
            submitted += await _work(stack)
            new = await crew.join("this", 1)
            await crew.hand_over(old, new)
            await asyncio.sleep(REST_S)
            submitted += await _work(stack)
            old = await crew.join("earlier", 0)
            await crew.hand_over(new, old)
            await _rest(stack, sql)
            await old.stop()
            row = await (await sql.execute(CODES)).fetchone()
            summary = await count(sql, await stack.control("GET", "ledger"), stack.blobs(), submitted)
    wrong = faults(summary) + crew.wrong() + ([] if row and row["n"] > 1 else ["only one version's agents came up"])
    return summary | {"ok": not wrong, "wrong": wrong, "seed": seed, "earlier": commit[:12], "hand_over_s": crew.took_s}


class _Crew:
    """The orchestrators of both versions."""

    def __init__(self, stack: Stack, sql: Sql, earlier: Path, ports: tuple[int, int]) -> None:
        self._stack, self._sql, self._earlier, self._ports = stack, sql, earlier, ports
        self.took_s: list[float] = []

    async def join(self, version: str, place: int) -> Child:
        """Start one more process, and wait until it is ready."""
        root = self._earlier if version == "earlier" else ROOT
        port = self._ports[place]
        child = await self._stack.begin_orchestrator({"PORT": str(port)}, root=root)
        await self._stack.until_ready(child, f"http://127.0.0.1:{port}")
        return child

    async def hand_over(self, leaves: Child, stays: Child) -> None:
        """Stop one process as a deploy does, and wait until the other one leads."""
        began_s = time.monotonic()
        if await leaves.stop() != 0:
            raise ChildFailed(f"it ended with {leaves.process.returncode}{leaves.output_tail()}")
        while not await (await self._sql.execute(LEADS, (f"%:{stays.pid}:%",))).fetchone():
            if time.monotonic() - began_s > QUIET_S or not stays.alive:
                raise ChildFailed(f"nobody took the lead{stays.output_tail()}")
            await asyncio.sleep(0.05)
        self.took_s.append(round(time.monotonic() - began_s, 2))

    def wrong(self) -> list[str]:
        """Return the lines of the logs that must not be there."""
        said = (self._stack.directory / "orchestrator.log").read_text(encoding="utf-8", errors="replace")
        return [line for line in said.splitlines() if any(word in line for word in REFUSED)][:5]


async def _work(stack: Stack) -> int:
    """Submit more tasks than the fleet can run at once, and wait until many of them run."""
    made = await submit(stack, [{"task_type": "work", "params": {}} for _ in range(TASKS)])
    await asyncio.sleep(BUSY_S)
    return len(made)


async def _rest(stack: Stack, sql: Sql) -> None:
    deadline = time.monotonic() + QUIET_S
    while time.monotonic() < deadline:
        busy = [await (await sql.execute(query)).fetchone() for query in (REST, LIVE)]
        if not any(busy) and not (await stack.control("GET", "ledger"))["alive"]:
            return
        await asyncio.sleep(0.25)
