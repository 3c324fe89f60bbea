"""10,000 small outputs of one task: seconds by the real agent and gateway, and for the same bytes without either.

The floor sends the same requests, a PUT with condition and checksum and a HEAD for each file, from as many threads as
the agent has connections. Its URLs are signed before the clock starts. It has fewer files, and its time is scaled. One
half of it runs before the agent and one after it, because the load of the machine changes.
"""

import asyncio
import hashlib
import http.client
import json
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
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
from orchestrator.outputs import grant_all
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
            before_s = await _floor(blobs, f"{number}-before")
            worker = await new_worker(SqlStore(db, "default"))
            worker["token"] = mint(secret, worker["p_worker_id"], worker["p_nonce"], time.time(), 3_600)
            spent_s = time.process_time()
            took_s.append(await _once(directory, postgres.url, bundle, url, worker))
            gateway_s.append(time.process_time() - spent_s)
            floor_s.append((before_s + await _floor(blobs, f"{number}-after")) * FILES / FLOOR_FILES)
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


async def _floor(blobs: S3Blobs, name: str) -> float:
    """Seconds for the same requests and no more, for half of FLOOR_FILES."""
    content = os.urandom(FILE_BYTES)
    terms = {"once": True, "bytes": FILE_BYTES, "sha256": hashlib.sha256(content).hexdigest(), "verify": True}
    keys = [f"outputs/floor/{name}/{index}.bin" for index in range(FLOOR_FILES // 2)]
    signed = await grant_all(blobs, [("PUT", key, terms) for key in keys])
    shares = [signed[first::FILES_AT_ONCE] for first in range(FILES_AT_ONCE)]

    def send_all() -> float:
        began = time.monotonic()
        with ThreadPoolExecutor(FILES_AT_ONCE) as threads:
            list(threads.map(lambda share: _send(share, content), shares))
        return time.monotonic() - began

    return await asyncio.to_thread(send_all)


def _send(share: Sequence[Mapping[str, Any]], content: bytes) -> None:
    connection = http.client.HTTPConnection(urlsplit(share[0]["url"]).netloc)
    for item in share:
        for method, one, body in (("PUT", item, content), ("HEAD", item["check"], None)):
            parts = urlsplit(one["url"])
            connection.request(method, f"{parts.path}?{parts.query}", body=body, headers=one["headers"])
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{method}: HTTP {answer.status}")
    connection.close()
