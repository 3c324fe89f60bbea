"""From a byte written on a live pod to the byte in S3 (the bar is 10 s), a burst, and what a fleet of 100 costs.

The delay and the burst are one real pod's. The fleet's pods are light and busy: this process writes their lines,
and what the daemon spends is told over WATCH_S without lines and over WATCH_S with them.
"""

import asyncio
import contextlib
import gzip
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from psycopg.types.json import Jsonb

from bench.figures import cpu_s, servers_cpu_s, spread
from bench.thousand import LOOK_S, QUIET, UNLIMITED, row
from testbed.audit import compare_logs
from testbed.services.processes import Child
from testbed.stack import Stack

TRIES = 30  # seconds of watching
GOALS = {"delay_p99_s": ("<=", 10.0), "fleet_delay_p99_s": ("<=", 10.0)}
TOLD = (
    "burst_mb_per_s_of_a_core",
    "fleet_orchestrator_of_a_core",
    "fleet_postgres_of_a_core",
    "fleet_orchestrator_of_a_core_without_lines",
)
BULK_BYTES = 64 * 1024 * 1024
TIMEOUT_S = 180.0
FLEET = 100  # workers …
LINE_EVERY_S = 0.1  # … each of which writes one this often
LINE = " " + 80 * "x"  # after the time
TASK_S = 150.0  # they are at it all the time
WATCH_S = 20.0
QUIET_S = 10  # after the last of them began
# The pod's program: a line with the time ten times a second; then, when the file `bulk` appears, many bytes at once.
PROGRAM = """
import os, random, sys, time
noise = random.Random(1).randbytes(1 << 19).hex()  # half as compressible as text
while not os.path.exists({flag!r}):
    print(time.time(), flush=True)
    time.sleep(0.1)
written = 0
while written < {bulk}:
    written += os.write(1, noise.encode())
while True:
    time.sleep(1)
"""
SHIPPED = """
    select key, first_byte, last_byte, extract(epoch from shipped_at)::float as at from log_objects
     where stream = 'handler' and shipped_at is not null order by first_byte
"""
ARRIVED = """
    select coalesce(sum(last_byte - first_byte), 0) as n from log_objects
     where stream = 'handler' and shipped_at is not null
"""
BUSY = "select count(*) as n from tasks where status = 'In Progress'"


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Delay of each line, the rate of a burst, and what lines cost of a core."""
    return {**await _one_pod(directory / "one", tries), **await _fleet(directory / "fleet")}


async def _one_pod(directory: Path, tries: int) -> dict[str, Any]:
    directory.mkdir()
    flag = directory / "bulk"
    program = PROGRAM.format(flag=str(flag), bulk=BULK_BYTES)
    overrides = {
        "MIN_ACTIVE_GPUS": "1",
        "MAX_ACTIVE_GPUS": "1",
        "GPU_IDLE_TIMEOUT_SEC": "3600",
        "WORKER_HANDLERS": "",
        "WORKER_START_COMMAND": shlex.join([sys.executable, "-c", program]),
    }
    async with Stack(directory / "stack", boot_s=(1, 1)) as stack:
        await stack.migrate()
        daemon = await stack.start_orchestrator(overrides)
        async with await stack.connect() as sql:
            await _until(sql, 1)
            await asyncio.sleep(tries)
            pieces = await (await sql.execute(SHIPPED)).fetchall()
            blobs = stack.blobs()
            delays_s: list[float] = []
            for piece in pieces:
                lines = gzip.decompress(await blobs.get(piece["key"])).split(b"\n")[1:-1]  # the whole ones
                delays_s += [piece["at"] - float(line) for line in lines if line]
            before = pieces[-1]["last_byte"]
            flag.touch()
            began_s, spent_s = time.monotonic(), cpu_s(daemon.pid)
            await _until(sql, before + BULK_BYTES)
            took_s, spent_s = time.monotonic() - began_s, cpu_s(daemon.pid) - spent_s
            ledger = await stack.control("GET", "ledger")
            logs = await compare_logs(sql, [Path(pod["home"]) for pod in ledger["pods"]], blobs)
    return {
        "lines": len(delays_s),
        **{f"delay_{name}": value for name, value in spread(delays_s).items()},
        "burst_bytes": BULK_BYTES,
        "burst_mb_per_s": round(BULK_BYTES / 1e6 / took_s, 1),
        "burst_mb_per_s_of_a_core": round(BULK_BYTES / 1e6 / spent_s, 1),
        "compared": json.dumps({"produced": logs.produced, "shipped": logs.shipped}),
    }


async def _fleet(directory: Path) -> dict[str, Any]:
    size = {"MIN_ACTIVE_GPUS": str(FLEET), "MAX_ACTIVE_GPUS": str(FLEET), "GPU_IDLE_TIMEOUT_SEC": "3600"}
    async with Stack(directory, boot_s=(1, 2), light=True) as stack:
        await stack.migrate()
        await stack.control("POST", "settings", UNLIMITED)
        daemon = await stack.start_orchestrator(size)
        async with await stack.connect() as sql, asyncio.timeout(TIMEOUT_S):
            tasks = [{"task_type": "x", "params": {"seconds": TASK_S}}] * FLEET
            await sql.execute("select task_submit(%s)", (Jsonb(tasks),))
            while (await row(sql, BUSY))["n"] < FLEET or not (await row(sql, QUIET.format(QUIET_S)))["n"]:
                await asyncio.sleep(LOOK_S)
            homes = [Path(pod["home"]) for pod in (await stack.control("GET", "ledger"))["pods"]]
            files = [file for home in homes for file in home.glob(".orchestrator/run/*/logs/handler.log")]
            silent = await _spent(sql, daemon)
            writing = asyncio.create_task(asyncio.to_thread(_write, files))
            loud = await _spent(sql, daemon)
            await writing
            while (await row(sql, ARRIVED))["n"] < sum(file.stat().st_size for file in files):
                await asyncio.sleep(0.1)
            pieces = await (await sql.execute(SHIPPED)).fetchall()
            blobs = stack.blobs()
            delays_s = [
                piece["at"] - float(line.split(b" ", 1)[0])
                for piece in pieces
                for line in gzip.decompress(await blobs.get(piece["key"])).splitlines()
            ]
    return {
        "fleet_workers": len(files),
        "fleet_lines": len(delays_s),
        **{f"fleet_{name}_of_a_core": round(share, 3) for name, share in loud.items()},
        **{f"fleet_{name}_of_a_core_without_lines": round(share, 3) for name, share in silent.items()},
        **{f"fleet_delay_{name}": value for name, value in spread(delays_s).items()},
    }


async def _spent(sql: Any, daemon: Child) -> dict[str, float]:
    """Shares of a core, over WATCH_S."""
    looks = []
    for pause_s in (WATCH_S, 0):
        looks.append((time.monotonic(), cpu_s(daemon.pid), await servers_cpu_s(sql)))
        await asyncio.sleep(pause_s)
    seconds, *spent_s = (after - before for before, after in zip(*looks, strict=True))
    return {name: s / seconds for name, s in zip(("orchestrator", "postgres"), spent_s, strict=True)}


def _write(files: list[Path]) -> None:
    """A line to each, LINE_EVERY_S apart, for WATCH_S."""
    due_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(file.open("a", buffering=1)) for file in files]
        for _ in range(int(WATCH_S / LINE_EVERY_S)):
            for log in logs:
                log.write(f"{time.time()}{LINE}\n")
            due_s += LINE_EVERY_S
            time.sleep(max(0.0, due_s - time.monotonic()))


async def _until(sql: Any, wanted_bytes: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        rows = await (await sql.execute(SHIPPED)).fetchall()
        if rows and rows[-1]["last_byte"] >= wanted_bytes:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"{wanted_bytes} bytes are not in S3 after {TIMEOUT_S:.0f} s")
