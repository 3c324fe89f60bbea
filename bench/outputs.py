"""10,000 small outputs of one task: seconds by the real agent and gateway, and for the same bytes without either.

The floor sends the same requests, a PUT and a HEAD for each file, from as many threads as the agent has connections.
Its URLs are signed before the clock starts; it has fewer files, and its time is scaled.
"""

import asyncio
import http.client
import json
import os
import secrets
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import psycopg

from bench.agent_start import run_agent
from bench.pickup import new_worker, serve
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.adapters.store import SqlStore
from orchestrator.migrate import migrate
from orchestrator.pods.bundle import Bundle, build_bundle
from orchestrator.web.wakeups import WakeupHub
from orchestrator.worker_tokens import mint
from testbed.services.postgres import EmbeddedPostgres
from testbed.services.s3 import REGION, EmbeddedS3
from worker.transfers import FILES_AT_ONCE

TRIES = 1
GOALS = {"seconds": ("<=", 30.0)}
TOLD = ("floor_s", "times_the_floor", "handler_cpu_s", "gateway_cpu_s")
FILES, FLOOR_FILES, FILE_BYTES = 10_000, 2_000, 4_096
BUCKET = "bench"
DEADLINE_S = 280.0
POLL_S = 0.1
HANDLER = """
import os, time

def many(params, task):
    for number in range(params["files"]):
        folder = task.dir / "out" / str(number % 100)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.bin").write_bytes(os.urandom(params["bytes"]))
    began, spent = time.monotonic(), time.process_time()
    stored = task.upload_folder(task.dir / "out")
    took_s, cpu_s = time.monotonic() - began, time.process_time() - spent
    return {"seconds": took_s, "cpu_s": cpu_s, "stored": len(stored)}
"""
SUBMIT = "insert into tasks (task_type, params) values ('many', %s)"
ENDED = "select status, result_data, error_message from tasks where status in ('Complete', 'Failed')"


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Seconds for all files, with and without the agent."""
    secret = secrets.token_hex(32)
    code = directory / "code"
    code.mkdir()
    (code / "outputs.py").write_text(HANDLER)
    bundle = build_bundle(code)
    took_s: list[tuple[float, float]] = []
    floor_s, gateway_s = [], []
    async with AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(EmbeddedPostgres(directory / "postgres", keep=False))
        await migrate(postgres.url)
        s3 = await stack.enter_async_context(EmbeddedS3(directory / "s3"))
        await s3.create_bucket(BUCKET)
        blobs = S3Blobs(s3.endpoint_url, s3.access_key, s3.secret_key, BUCKET, "", REGION)
        db = await PostgresDb.open(postgres.url, pool_size=4)
        stack.push_async_callback(db.close)
        url = await serve(stack, db, WakeupHub(), secret, blobs)
        for number in range(tries):
            floor_s.append(await asyncio.to_thread(_floor, blobs, number))
            worker = await new_worker(SqlStore(db, "default"))
            worker["token"] = mint(secret, worker["p_worker_id"], worker["p_nonce"], time.time(), 3_600)
            spent_s = time.process_time()
            took_s.append(await _once(directory, postgres.url, bundle, url, worker))
            gateway_s.append(time.process_time() - spent_s)
    seconds = median(took for took, _ in took_s)
    return {
        "files": FILES, "file_bytes": FILE_BYTES, "connections": FILES_AT_ONCE, "seconds": round(seconds, 1),
        "floor_s": round(median(floor_s), 1), "times_the_floor": round(seconds / median(floor_s), 2),
        "handler_cpu_s": round(median(cpu for _, cpu in took_s), 2), "gateway_cpu_s": round(median(gateway_s), 2),
    }  # fmt: skip


async def _once(
    directory: Path, database: str, bundle: Bundle, url: str, worker: dict[str, str]
) -> tuple[float, float]:
    """Seconds of the upload alone, and its processor time, as the handler measures them."""
    agent, run_dir = directory / f"agent-{bundle.agent_sha}.pyz", directory / worker["p_nonce"]
    agent.write_bytes(bundle.agent)
    (directory / f"user-{bundle.code_sha}.zip").write_bytes(bundle.code or b"")
    config = {
        "worker_id": worker["p_worker_id"], "nonce": worker["p_nonce"], "token": worker["token"], "api_url": url,
        "handlers": {"many": "outputs:many"}, "user_code": bundle.code_sha, "python": sys.executable,
    }  # fmt: skip
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as rows:
        await rows.execute(b"delete from tasks where status <> 'In Progress'")
        await rows.execute(SUBMIT, (json.dumps({"files": FILES, "bytes": FILE_BYTES}),))
        await run_agent(agent, run_dir, "start", json.dumps(config).encode())
        async with asyncio.timeout(DEADLINE_S):
            while (row := await (await rows.execute(ENDED)).fetchone()) is None:
                await asyncio.sleep(POLL_S)
    await run_agent(agent, run_dir, "stop", b"", "--grace-s", "1")
    if row[0] != "Complete" or row[1]["stored"] != FILES:
        raise RuntimeError(f"the task ended as {row[0]}: {row[1]} {row[2]}")
    return float(row[1]["seconds"]), float(row[1]["cpu_s"])


def _floor(blobs: S3Blobs, number: int) -> float:
    """Seconds for the same requests and no more, scaled to FILES."""
    content = os.urandom(FILE_BYTES)
    keys = [f"floor/{number}/{index}.bin" for index in range(FLOOR_FILES)]
    signed = [[blobs.sign(method, key, expires_s=3_600) for method in ("PUT", "HEAD")] for key in keys]
    began = time.monotonic()
    with ThreadPoolExecutor(FILES_AT_ONCE) as threads:
        each = -(-FLOOR_FILES // FILES_AT_ONCE)
        shares = [signed[first : first + each] for first in range(0, FLOOR_FILES, each)]
        list(threads.map(lambda share: _send(share, content), shares))
    return (time.monotonic() - began) * FILES / FLOOR_FILES


def _send(share: list[list[str]], content: bytes) -> None:
    connection = http.client.HTTPConnection(urlsplit(share[0][0]).netloc)
    for put, head in share:
        for method, url, body in (("PUT", put, content), ("HEAD", head, None)):
            parts = urlsplit(url)
            connection.request(method, f"{parts.path}?{parts.query}", body=body)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{method}: HTTP {answer.status}")
    connection.close()
