"""One agent and tasks that do nothing, through the gateway: tasks a second, by how many a claim takes.

The agent is the real one, with a Python handler in its child process; the server runs in this process, the database
in another one. A task's time goes from its claim to its completion, as the database has them.
"""

import asyncio
import json
import secrets
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from bench.agent_start import run_agent
from bench.pickup import new_worker, serve
from bench.queues import Connection
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.migrate import migrate
from orchestrator.pods.bundle import Bundle, build_bundle
from orchestrator.web.wakeups import WakeupHub
from orchestrator.worker_tokens import mint
from testbed.services.postgres import EmbeddedPostgres

TRIES = 3
COUNTS = {1: 500, 10: 2_000, 100: 5_000}  # tasks of one measurement, by how many a claim takes
DEADLINE_S = 120.0
POLL_S = 0.05
HANDLER = "def nothing(params, task):\n    return None\n"
SUBMIT = "insert into tasks (task_type) select 'x' from generate_series(1, %s)"
ENDED = """
    select count(*), extract(epoch from max(ended_at) - min(started_at))::float8 from task_attempts
     where worker_id = %s and outcome = 'complete'
"""


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Tasks a second, and how much quicker many at a time are."""
    secret = secrets.token_hex(32)
    code = directory / "code"
    code.mkdir()
    (code / "quick.py").write_text(HANDLER)
    bundle = build_bundle(code)
    async with AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(EmbeddedPostgres(directory / "postgres", keep=False))
        await migrate(postgres.url)
        db = await PostgresDb.open(postgres.url, pool_size=4)
        stack.push_async_callback(db.close)
        rows = await stack.enter_async_context(
            await psycopg.AsyncConnection.connect(postgres.url, autocommit=True, prepare_threshold=None)
        )
        url = await serve(stack, db, WakeupHub(), secret)
        rates: dict[int, list[float]] = {batch: [] for batch in COUNTS}
        for _ in range(tries):
            for batch, count in COUNTS.items():
                worker = await new_worker(SqlStore(db, "default"))
                worker["token"] = mint(secret, worker["p_worker_id"], worker["p_nonce"], time.time())
                await rows.execute(SUBMIT, (count,))
                rates[batch].append(count / await _once(directory, rows, bundle, url, worker, batch, count))
    single = median(rates[1])
    return {
        f"{batch}_a_claim": f"{median(all_):,.0f}/s, {median(all_) / single:.1f} x" for batch, all_ in rates.items()
    }


async def _once(
    directory: Path, rows: Connection, bundle: Bundle, url: str, worker: dict[str, str], batch: int, count: int
) -> float:
    """Seconds for so many tasks by a new agent."""
    agent, run_dir = directory / f"agent-{bundle.agent_sha}.pyz", directory / worker["p_nonce"]
    agent.write_bytes(bundle.agent)
    (directory / f"user-{bundle.code_sha}.zip").write_bytes(bundle.code or b"")
    config = {
        "worker_id": worker["p_worker_id"], "nonce": worker["p_nonce"], "token": worker["token"], "api_url": url,
        "handlers": {"x": "quick:nothing"}, "user_code": bundle.code_sha, "python": sys.executable, "batch": batch,
    }  # fmt: skip
    await run_agent(agent, run_dir, "start", json.dumps(config).encode())
    async with asyncio.timeout(DEADLINE_S):
        ended, took_s = 0, 0.0
        while ended < count:
            await asyncio.sleep(POLL_S)
            ended, took_s = await (await rows.execute(ENDED, (worker["p_worker_id"],))).fetchone() or (0, 0.0)
    await run_agent(agent, run_dir, "stop", b"", "--grace-s", "1")
    return took_s
