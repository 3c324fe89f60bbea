"""Columns that users add to `tasks` and `workers` may have any name: no function mistakes one for a name of its own."""

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow, dict_row

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.core.states import State
from orchestrator.migrate import migrate, sql_files
from testbed.services.postgres import EmbeddedPostgres
from tests.db.conformance.builders import FLEET, START, Fleet, result
from tests.db.conformance.conftest import create_database, drop_database

COLUMNS = 1500  # added to one table, which has at most 1,600
DATABASES = ("named_plain", "named_first", "named_second")
SYSTEM = {"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"}
FORGET = "update schema_migrations set checksum = 'changed' where version !~ '^[0-9]+$'"
VARY = {"version", "database_id", "database", "digest"}  # they differ between two databases, or show a row's version
IDS = [f"00000000-0000-4000-8000-{n:012d}" for n in range(9)]


def names() -> list[str]:
    """Every word of the functions, views and triggers outside comments and strings."""
    text = " ".join(re.sub(r"--.*", "", file.sql) for file in sql_files().current)
    words = set(re.findall(r"\b[a-z_][a-z0-9_]*\b", re.sub(r"'[^']*'", "''", text)))
    return sorted(words - SYSTEM)


@pytest.fixture
async def extended(server: EmbeddedPostgres) -> AsyncIterator[list[str]]:
    """The URLs of three migrated databases; the tables of the last two have a column for each name of one half."""
    urls = []
    for name in DATABASES:
        urls.append(server.url_of(await create_database(server, name)))
        await migrate(urls[-1])
    for url, half in zip(urls[1:], (names()[::2], names()[1::2]), strict=True):
        async with await psycopg.AsyncConnection.connect(url, autocommit=True, row_factory=dict_row) as owner:
            for table in ("tasks", "workers"):
                await add_columns(owner, table, half)
            await owner.execute(FORGET)
        await migrate(url)  # the views and functions can also be made then
    yield urls
    for name in DATABASES:
        await drop_database(server, name)


async def add_columns(owner: AsyncConnection[DictRow], table: str, wanted: list[str]) -> None:
    """Add a column of each of these names that the table lacks."""
    found = await owner.execute(
        "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0", (f"public.{table}",)
    )
    known = {row["attname"] for row in await found.fetchall()}
    new = [name for name in wanted if name not in known]
    assert len(new) < COLUMNS
    columns = sql.SQL(", ").join(sql.SQL("add column {} int").format(sql.Identifier(name)) for name in new)
    await owner.execute(sql.SQL("alter table {} {}").format(sql.Identifier(table), columns))


async def lived(fleet: Fleet) -> list[Any]:
    """The answers of every kind of call of a queue, in one order."""
    said: list[Any] = [await fleet.lead()]

    async def ask(function: str, **args: Any) -> None:
        said.append((function, await fleet.call(function, **args)))

    async def lead(function: str, **args: Any) -> None:
        said.append((function, await fleet.fleet(function, **args)))

    agent, other = await fleet.agent(), await fleet.agent()
    await lead("declare_pools", p_pools=[{"task_type": "film", "pool": "default", "max_attempts": 7}])
    await ask("task_submit", p_tasks=[{"id": one, "task_type": "t"} for one in IDS[:6]])
    await ask("task_submit", p_tasks=[{"id": IDS[6], "task_type": "t", "depends_on": IDS[:1], "dedupe_key": "d"}])
    await ask("task_submit", p_tasks=[{"id": IDS[7], "task_type": "u", "depends_on": [IDS[1]], "priority": 4}])
    tasks = await agent.claim(batch=2)
    said += [tasks, await agent.beat({"id": tasks[0]["id"], "attempt": 1, "progress": {"x": 1}, "still_s": 1})]
    said += [await agent.complete(tasks[0], p_result_data={"y": 2}), await agent.fail(tasks[1], code="OOM")]
    (third,) = await agent.claim()
    said += [third, await agent.complete_and_claim(result(third)), await other.claim(batch=3)]
    said.append(await agent.release({"id": IDS[3], "attempt": 1}))
    await look(fleet, ask, agent.id)
    await lead("strike", p_key="machine:m", p_code="XID_79", p_evidence={}, p_avoid_s=60, p_after=1, p_memory_s=60)
    await lead("note_offer", p_key="offer", p_refused=True, p_code="NO_CAPACITY")
    fleet.wait(700)
    await lead("rescue", p_worker_id=other.id)
    await lead("rescue_overdue", p_over_s=0)
    await ask("task_cancel", p_id=IDS[2])
    await ask("task_cancel", p_id=IDS[4])
    await ask("task_retry", p_id=IDS[4])
    await fleet.end(other.id, State.ACTIVE)
    await fleet.move(other.id, State.TERMINATING, State.TERMINATED)
    await ask(
        "fleet_request_termination", p_fleet=FLEET, p_worker_id=agent.id, p_reason="a wish", p_now_not_drain=False
    )
    await lead("retain", p_every_s=1)
    await look(fleet, ask, other.id)
    return said


async def look(fleet: Fleet, ask: Any, worker_id: str) -> None:
    """Everything that reads tasks and workers."""
    since, until = START - timedelta(hours=1), fleet.now
    await ask("fleet_snapshot", p_fleet=FLEET)
    await ask("fleet_report", p_fleet=FLEET)
    await ask("fleet_metrics", p_fleet=FLEET, p_since=since)
    await ask("fleet_task_troubles", p_fleet=FLEET, p_handled=["t"])
    await ask("fleet_scaling_explain", p_fleet=FLEET)
    await ask("fleet_workers", p_fleet=FLEET, p_all=True, p_limit=9)
    await ask("fleet_find_workers", p_fleet=FLEET, p_filter={"pool": "default"}, p_limit=9)
    await ask("fleet_match_workers", p_fleet=FLEET, p_text="gpu", p_limit=9)
    await ask("fleet_worker", p_fleet=FLEET, p_worker_id=worker_id)
    await ask("fleet_explain", p_fleet=FLEET, p_worker_id=worker_id)
    await ask("fleet_explain_workers", p_fleet=FLEET)
    await ask("fleet_usual", p_fleet=FLEET, p_gpu_type="GPU")
    await ask("fleet_cost", p_fleet=FLEET, p_since=since, p_until=until)
    for by in ("tenant", "label:x"):
        await ask("fleet_cost_by", p_fleet=FLEET, p_since=since, p_until=until, p_by=by, p_limit=9)
    await ask("fleet_efficiency", p_fleet=FLEET, p_since=since, p_until=until)
    for status, task_type, limit in ((None, None, 9), ("Queued", "t", 2), (None, "u", 9), ("Complete", None, 1)):
        await ask("task_list", p_status=status, p_task_type=task_type, p_limit=limit)
    for wanted in ({}, {"status": ["Queued"]}, {"type": "u"}):
        await ask("task_find", p_filter=wanted, p_limit=3, p_full=True)
        await ask("task_page", p_scope={}, p_filter=wanted, p_cursor=None, p_limit=3)
    for action in ("cancel", "retry"):
        await ask("task_changes_preview", p_fleet=FLEET, p_scope={}, p_action=action, p_filter={"task_type": "t"})
    await ask("task_match", p_prefix="0000", p_limit=3)
    await ask("task_states", p_ids=IDS[:5])
    for one in IDS[:8]:
        await ask("task_get", p_id=one)
        await ask("task_get_for", p_scope={}, p_id=one)
        await ask("fleet_task_explain", p_fleet=FLEET, p_task_id=one)


def plain(value: Any) -> Any:
    """An answer without what is null, which the new columns are, without rows' versions and without events' numbers.

    `migrate` tries what it makes, and rolled back rows leave gaps in these numbers.
    """
    if isinstance(value, dict):
        numbered = {"id"} if isinstance(value.get("id"), int) else set()
        return {key: plain(one) for key, one in value.items() if one is not None and key not in VARY | numbered}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


async def test_a_column_named_like_any_word_of_the_functions_changes_no_answer(extended: list[str]) -> None:
    """The same calls have the same answers as in the database without such columns."""
    answers = []
    for url in extended:
        db = await PostgresDb.open(url, call_timeout_s=60)
        try:
            answers.append(plain(await lived(Fleet(db))))
        finally:
            await db.close()
    for without, *with_columns in zip(*answers, strict=True):
        assert with_columns == [without, without]
