"""PostgreSQL's JIT costs seconds where our reads take milliseconds: no command that reads makes the server compile.

Only a build with LLVM can show it, as Debian's has: `./run test --postgres 15`.
"""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.core.states import State
from testbed.shared_services import Database
from tests.process.cli.builders import ROOT, Cli, Fleet

# Everything is worth compiling, and each statement, nested ones too, is logged with what was compiled for it.
SETTINGS = {
    "jit": "on",
    "jit_above_cost": "1",  # a bare call of a function costs 0.26
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_nested_statements": "on",
}
COMMANDS = ("health", "list", "cost", "efficiency", "explain scaling", "tasks list")


@pytest.fixture
async def compiling(postgres: Database, fleet: Fleet) -> AsyncIterator[Path]:
    """The log of a server that compiles each statement of a new session that does not forbid it."""
    connection = await psycopg.AsyncConnection.connect(postgres.url, autocommit=True)
    async with connection:
        for name, value in SETTINGS.items():
            await connection.execute(f"alter database {postgres.name} set {name} = '{value}'".encode())
        yield postgres.server.log_file
        await connection.execute(f"alter database {postgres.name} reset all".encode())


def compiled(log: Path, since: int) -> list[str]:
    """The statements that were compiled since the log had this size."""
    with log.open("rb") as file:
        file.seek(since)
        text = file.read().decode(errors="replace")
    entries = text.split(" LOG:  ")
    return [entry[:600] for entry in entries if "\n\tJIT:" in entry]


async def looked(url: str, fleet_id: str, worker_id: str) -> None:
    """What the loop, `/metrics` and the pages read, in new sessions."""
    db = await PostgresDb.open(url)
    store, since = SqlStore(db, fleet_id), datetime.now(UTC) - timedelta(days=1)
    await store.snapshot()
    await store.metrics(since)
    await store.workers(all=True)
    await store.worker(worker_id)
    await store.decisions()
    await store.explain(worker_id)
    await store.explain_scaling()
    await store.cost(since)
    await store.report()
    await store.efficiency(since)
    await db.close()


async def test_no_command_that_reads_makes_the_server_compile(
    compiling: Path, postgres: Database, fleet: Fleet, fleet_id: str, cli: Cli
) -> None:
    """A plain statement of a session like theirs is compiled, where the server can: the log would show it."""
    worker_id = await fleet.worker(upto=State.ACTIVE)
    began = compiling.stat().st_size
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as connection:
        await connection.execute("select count(*) from tasks")
        row = await (await connection.execute("select pg_jit_available()")).fetchone()
    assert row is not None
    assert bool(compiled(compiling, began)) == row[0]
    began = compiling.stat().st_size
    for command in COMMANDS:
        ran = await cli(*command.split())
        assert "Traceback" not in ran.err, command
    await looked(postgres.url, fleet_id, worker_id)
    assert compiling.stat().st_size > began
    assert compiled(compiling, began) == []


def test_no_code_of_ours_reads_a_view() -> None:
    """A view cannot carry a setting, as functions do; they are for people's own dashboards."""
    views = re.findall(r"^create view public\.(\w+)", (ROOT / "migrations/views.sql").read_text(), re.MULTILINE)
    assert views
    reading = re.compile(rf"\b(from|join)\s+(public\.)?({'|'.join(views)})\b", re.IGNORECASE)
    files = [file for part in ("orchestrator", "scripts", "worker") for file in (ROOT / part).rglob("*.py")]
    assert [str(file) for file in files if reading.search(file.read_text())] == []
    functions = [file for file in (ROOT / "migrations/functions").rglob("*.sql") if reading.search(file.read_text())]
    assert functions == []
