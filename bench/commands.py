"""The processor time (user and system) of each reading command, with 50 workers and 100,000 tasks.

It is the time of the command's own process, which is what an operator's machine spends. A tenth of the tasks are still
queued; the others ended, one in twenty of them as Failed.
"""

import asyncio
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psycopg

from bench.figures import quantile
from bench.queues import database
from bench.tick import FLEET, add_worker
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.migrate import migrate
from testbed.services.postgres import EmbeddedPostgres
from testbed.stack import ROOT

TRIES = 5  # of each command
WORKERS, TASKS = 50, 100_000
GOALS = {"slowest_cpu_s": ("<=", 0.6)}
FILL = """
    insert into tasks (task_type, status, params, created_at, generation_processed_at, error_message, failure_code)
    select 'segment', case when n %% 10 = 0 then 'Queued' when n %% 20 = 1 then 'Failed' else 'Complete' end,
           '{"frames": 144}', now() - n * interval '1 second',
           case when n %% 10 > 0 then now() - n * interval '1 second' end,
           case when n %% 20 = 1 then 'ValueError: no segments' end, case when n %% 20 = 1 then 'HANDLER_ERROR' end
      from generate_series(1, %s) n
"""


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """The median seconds of each command, and the largest of them."""
    async with AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(EmbeddedPostgres(directory / "postgres", durable=False, keep=False))
        url = await database(postgres, "commands")
        await migrate(url)
        db = await PostgresDb.open(url)
        store = SqlStore(db, FLEET)
        term = (await store.lead("bench", 3_600)).term
        workers = [(await add_worker(db, store, term, number)).worker_id for number in range(WORKERS)]
        sql = await stack.enter_async_context(await psycopg.AsyncConnection.connect(url, autocommit=True))
        await sql.execute(FILL, (TASKS,))
        await sql.execute("vacuum analyze tasks, task_attempts, workers")
        row = await (await sql.execute("select id::text from tasks where status = 'Queued' limit 1")).fetchone()
        await db.close()
        assert row is not None  # noqa: S101  FILL has just made it
        commands = _commands(str(workers[0]), row[0])
        took = {name: [await asyncio.to_thread(_cpu_s, url, words) for _ in range(tries)] for name, words in commands}
    medians = {f"{name}_cpu_s": round(quantile(values, 0.5), 3) for name, values in took.items()}
    return medians | {"slowest_cpu_s": max(medians.values())}


def _commands(worker: str, task: str) -> list[tuple[str, list[str]]]:
    lines = (
        "list", "list --all", "list --json", f"status {worker}", f"explain {worker}", f"explain {task}",
        "explain scaling", f"timeline {worker}", f"verify {worker}", "tasks list", "tasks list --status Failed",
        f"tasks show {task}", "health", "alerts list", "cost", "cost --by tenant", "cost --by label:show", "efficiency",
        "schedules list", "limits list", "tenants list", "tokens list", "webhooks list", f"logs {worker}",
        "doctor settings database leader", "tasks list --pool default --type segment",
    )  # fmt: skip
    named = {worker: "worker", task: "task"}
    return [("_".join(named.get(word, word.strip("-")) for word in line.split()), line.split()) for line in lines]


def _cpu_s(url: str, words: list[str]) -> float:
    """Run a command and return the processor time of its process."""
    environment = {**os.environ, "DATABASE_URL": url, "FLEET_ID": FLEET, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *words], env=environment, cwd="/",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None  # noqa: S101  it is a pipe
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):  # 1: `health` of a fleet without a leader's tick
        raise RuntimeError(f"{words} exited with {process.returncode}: {said.decode(errors='replace')[-500:]}")
    return used.ru_utime + used.ru_stime
