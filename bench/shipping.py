"""From a byte written on a live pod to the byte in S3 (the bar is 10 s), and how many MB/s of a burst get through."""

import asyncio
import gzip
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from bench.figures import spread
from orchestrator.demo.stack import Stack
from orchestrator.demo.tally import compare_logs

TRIES = 30  # seconds of watching
GOALS = {"delay_p99_s": ("<=", 10.0)}
BULK_BYTES = 64 * 1024 * 1024
TIMEOUT_S = 180.0
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


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Delay of each line, and the rate of a burst."""
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
        await stack.start_orchestrator(overrides)
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
            began_s = time.monotonic()
            await _until(sql, before + BULK_BYTES)
            took_s = time.monotonic() - began_s
            ledger = await stack.control("GET", "ledger")
            logs = await compare_logs(sql, [Path(pod["home"]) for pod in ledger["pods"]], blobs)
    return {
        "lines": len(delays_s),
        **{f"delay_{name}": value for name, value in spread(delays_s).items()},
        "burst_bytes": BULK_BYTES,
        "burst_mb_per_s": round(BULK_BYTES / 1e6 / took_s, 1),
        "compared": json.dumps({"produced": logs.produced, "shipped": logs.shipped}),
    }


async def _until(sql: Any, wanted_bytes: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        rows = await (await sql.execute(SHIPPED)).fetchall()
        if rows and rows[-1]["last_byte"] >= wanted_bytes:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"{wanted_bytes} bytes are not in S3 after {TIMEOUT_S:.0f} s")
