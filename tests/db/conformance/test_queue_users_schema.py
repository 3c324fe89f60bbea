"""Users change the schema, the defaults and the sequences of their database: innocent tasks do not pay for that."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow, dict_row

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.migrate import migrate
from orchestrator.ports import SchemaMismatch
from testbed.services.postgres import EmbeddedPostgres
from testbed.shared_services import SharedServices
from tests.db.conformance.builders import FLEET, Fleet

CHARACTERS = "日本 é 😀"
BLOCKED = """select count(*) as n from pg_stat_activity
              where datname = current_database() and wait_event_type = 'Lock'"""
# A table of a project from before this system.
SHORT = """create table tasks (id uuid primary key default gen_random_uuid(), task_type varchar(50) not null,
    params jsonb, status varchar(20) not null default 'Queued', error_message varchar(100), worker_id varchar(80))"""
TABLE = """create table tasks (id uuid primary key default gen_random_uuid(), task_type text not null, params jsonb,
    status text not null default 'Queued'"""
# Columns of a project that are too narrow for what the queue publishes.
NARROW = ("output_location varchar(20)", "failure_code varchar(5)", "worker_id varchar(3)", "worker_id short")
# What a user does to the table -> how it is undone. Each keeps rows from showing a claim.
CHANGES = {
    "a column is gone": ("alter table tasks rename progress to done", "alter table tasks rename done to progress"),
    "a constraint": (
        "alter table tasks add constraint own check (status <> 'In Progress' or progress is not null) not valid",
        "alter table tasks drop constraint own",
    ),
    "a unique index": (
        "create unique index own on tasks ((status)) where status = 'In Progress' and task_type = 't'",
        "drop index own",
    ),
    "a rule": (
        "create rule own as on update to tasks do also notify somebody",
        "drop rule own on tasks",
    ),
    "a broken trigger": (
        """create function own() returns trigger language plpgsql as $$ begin
               if new.status = 'In Progress' then insert into nowhere values (1); end if; return new; end $$;
           create trigger own before update on tasks for each row execute function own()""",
        "drop function own cascade",
    ),
}


@dataclass
class Project:
    """A database whose owner does what they like."""

    url: str
    fleet: Fleet
    owner: AsyncConnection[DictRow]


@pytest.fixture
async def project(shared: SharedServices) -> AsyncIterator[Project]:
    """A migrated database of our own, and the fleet that leads in it."""
    database = await shared.database()
    async with await psycopg.AsyncConnection.connect(database.url, autocommit=True, row_factory=dict_row) as owner:
        yield Project(database.url, await leading(database.url), owner)


async def leading(url: str) -> Fleet:
    """Open a fleet that leads."""
    fleet = Fleet(await PostgresDb.open(url, call_timeout_s=30))
    fleet.term = (await fleet.lead())["term"]
    return fleet


@pytest.mark.parametrize("change", CHANGES)
async def test_tasks_run_although_the_schema_refuses_to_show_it(project: Project, change: str) -> None:
    """Their rows show what became of them once the schema is right again."""
    breaks, repairs = CHANGES[change]
    fleet = project.fleet
    agent = await fleet.agent()
    await fleet.submit()
    (held,) = await agent.claim()
    await fleet.submit(count=4)
    await project.owner.execute(breaks.encode())
    tasks = await agent.claim(batch=3)
    assert len(tasks) == 3
    assert [await agent.complete(task) for task in (held, *tasks[:2])] == ["ok"] * 3
    await project.owner.execute(repairs.encode())
    await fleet.settle()
    assert (await fleet.call("task_list", p_status=None, p_task_type="t", p_limit=9))["counts"] == {
        "Complete": 3, "In Progress": 1, "Queued": 1,
    }  # fmt: skip


async def test_sequences_that_are_behind_their_rows_are_raised_by_the_next_leader(project: Project) -> None:
    """Logical replication and dumps of data leave them behind; each insert would fail as a duplicate."""
    fleet = project.fleet
    agent = await fleet.agent()
    await fleet.submit(count=3)
    await agent.claim()
    await project.owner.execute("""do $$ declare s regclass; begin
        for s in select name from internal_sequences() loop execute format('alter sequence %s restart', s); end loop;
        end $$""")
    fleet.wait(7200)
    fleet.term = (await fleet.lead("another"))["term"]
    await fleet.submit(count=3)
    assert await fleet.spawn()
    assert len(await agent.claim(batch=9)) == 5


async def test_sequences_that_fall_behind_under_a_leader_are_raised_within_an_hour(project: Project) -> None:
    """By its retention, before that inserts anything."""
    fleet = project.fleet
    await fleet.spawn()
    await project.owner.execute("alter table worker_events alter column id restart")
    await fleet.fleet("retain", p_every_s=3600)
    assert await fleet.spawn()


async def test_a_failure_is_stored_in_a_column_that_is_too_short_for_its_message(empty_database: str) -> None:
    """A task whose failure cannot be stored would run again and again."""
    async with await psycopg.AsyncConnection.connect(empty_database, autocommit=True) as owner:
        await owner.execute(SHORT)
    await migrate(empty_database)
    fleet = await leading(empty_database)
    agent = await fleet.agent()
    first, second = await fleet.submit({"max_attempts": 1}, {"depends_on": ["#0"]})
    (task,) = await agent.claim()
    assert await agent.fail(task, code="HANDLER_ERROR", message="x" * 500) == "failed"
    assert (await fleet.task(first))["error_message"] == "x" * 100
    assert (await fleet.task(second))["failure_code"] == "DEPENDENCY_FAILED"
    await fleet.db.close()


@pytest.mark.parametrize("column", NARROW)
async def test_a_column_that_is_too_narrow_refuses_no_end_of_a_task(empty_database: str, column: str) -> None:
    """Its row is shown late. The task ends, its webhook is sent, dependent tasks go on, and the lists have it."""
    async with await psycopg.AsyncConnection.connect(empty_database, autocommit=True, row_factory=dict_row) as owner:
        await owner.execute("create domain short as text check (length(value) < 4)")
        await owner.execute(f"{TABLE}, {column})".encode())
        await migrate(empty_database)
        fleet = await leading(empty_database)
        agent = await fleet.agent()
        ids = await fleet.submit(
            {"webhook_url": "https://example.com/a", "priority": 2},
            {"webhook_url": "https://example.com/b", "priority": 1, "max_attempts": 1},
            {"depends_on": ["#0"]},
            {"depends_on": ["#1"]},
        )
        first, second = await agent.claim(batch=2)
        assert await agent.complete(first, p_output_location="gs://bucket/a-long-path") == "ok"
        assert await agent.fail(second, code="HANDLER_ERROR", message="no") == "failed"
        (third,) = await agent.claim(batch=9)
        assert third["dependencies"][0]["output_location"] == "gs://bucket/a-long-path"
        counts = (await fleet.call("task_list", p_status=None, p_task_type=None, p_limit=9))["counts"]
        assert (counts["Complete"], counts["Failed"]) == (1, 2)
        assert [(await fleet.task(task))["status"] for task in ids] == ["Complete", "Failed", "In Progress", "Failed"]
        events = await (await owner.execute("select event from webhook_messages order by event")).fetchall()
        assert [row["event"] for row in events] == ["task.completed", "task.failed"]
        await fleet.db.close()


async def test_numbers_of_a_project_may_be_of_another_kind(empty_database: str) -> None:
    """A priority beyond an integer counts as the highest or the lowest."""
    async with await psycopg.AsyncConnection.connect(empty_database, autocommit=True, row_factory=dict_row) as owner:
        await owner.execute(
            f"{TABLE}, priority numeric, attempts bigint, max_attempts numeric, timeout_s float8)".encode()
        )
        await migrate(empty_database)
        fleet = await leading(empty_database)
        agent = await fleet.agent()
        await owner.execute("insert into tasks (task_type, priority) values ('b', 2), ('a', 3e9), ('c', '-inf')")
        await fleet.submit({"task_type": "d", "priority": 1, "timeout_s": 0.1, "tenant": "x"})
        assert [task["task_type"] for task in await agent.claim(batch=9)] == ["a", "b", "d", "c"]
        await fleet.db.close()


async def test_a_pool_in_an_enum_is_refused_before_anything_is_changed(empty_database: str) -> None:
    """`task_submit` could not insert it."""
    async with await psycopg.AsyncConnection.connect(empty_database, autocommit=True, row_factory=dict_row) as owner:
        await owner.execute(f"create type kinds as enum ('a'); {TABLE}, pool kinds)".encode())
        with pytest.raises(SchemaMismatch, match=r"the column tasks\.pool has the type"):
            await migrate(empty_database)
        assert await (await owner.execute("select from pg_namespace where nspname = 'orchestrator'")).fetchall() == []


@pytest.mark.parametrize(("style", "zone"), [("SQL, DMY", "Asia/Shanghai"), ("German", "Asia/Kolkata")])
async def test_times_do_not_depend_on_the_date_style_of_the_database(
    server: EmbeddedPostgres, project: Project, style: str, zone: str
) -> None:
    """The abbreviations CST and IST also name other time zones."""
    name = project.owner.info.dbname
    for setting, value in (("datestyle", style), ("timezone", zone)):
        statement = sql.SQL("alter database {} set {} = {}")
        await project.owner.execute(statement.format(sql.Identifier(name), sql.Identifier(setting), value))
    fleet = await leading(project.url)
    worker_id = await fleet.spawn()
    row = (await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=worker_id))["worker"]
    assert datetime.fromisoformat(row["state_since"]) == fleet.now
    await fleet.db.close()


async def test_calls_do_not_take_the_client_encoding_of_the_database(project: Project) -> None:
    """One task with a character that the encoding lacks would stop every claim."""
    statement = sql.SQL("alter database {} set client_encoding = 'LATIN1'")
    await project.owner.execute(statement.format(sql.Identifier(project.owner.info.dbname)))
    fleet = await leading(project.url)
    agent = await fleet.agent()
    await fleet.submit({"params": {"text": CHARACTERS}}, {})
    tasks = await agent.claim(batch=2)
    assert {task["params"].get("text") for task in tasks} == {CHARACTERS, None}
    assert await agent.complete(tasks[0], p_result_data={"text": CHARACTERS}) == "ok"
    await fleet.db.close()


async def test_a_table_that_inherits_from_tasks_keeps_its_ended_tasks(project: Project) -> None:
    """An archive in the old style: its rows may have the same places (ctid) as rows of `tasks`."""
    fleet, owner = project.fleet, project.owner
    done = await fleet.submit(count=3, tenant="a")
    agent = await fleet.agent()
    for task in await agent.claim(batch=3):
        assert await agent.complete(task) == "ok"
    await owner.execute(
        """create table archive () inherits (tasks);
           with moved as (delete from only tasks returning *) insert into archive select * from moved"""
    )
    await owner.execute("vacuum full tasks")  # the next rows get the first places again
    new = await fleet.submit(count=3, tenant="a")
    tasks = await agent.claim(batch=3)
    assert sorted(task["id"] for task in tasks) == sorted(new)
    assert [await agent.complete(task) for task in tasks] == ["ok"] * 3
    rows = await (await owner.execute("select id::text, status from archive")).fetchall()
    assert sorted((row["id"], row["status"]) for row in rows) == sorted((task_id, "Complete") for task_id in done)


async def test_calls_do_not_take_the_isolation_level_of_the_database(project: Project) -> None:
    """At a higher level, a call that waited for a lock would fail."""
    statement = sql.SQL("alter database {} set default_transaction_isolation = 'serializable'")
    await project.owner.execute(statement.format(sql.Identifier(project.owner.info.dbname)))
    fleet = await leading(project.url)
    async with project.owner.transaction():
        await project.owner.execute("set transaction isolation level read committed")
        await project.owner.execute("update fleet_lease set unled_from = now()")
        async with asyncio.TaskGroup() as group:
            leads = group.create_task(fleet.lead())
            async with await psycopg.AsyncConnection.connect(
                project.url, autocommit=True, row_factory=dict_row
            ) as other:
                while (await (await other.execute(BLOCKED)).fetchone()) == {"n": 0} and not leads.done():
                    await asyncio.sleep(0.01)
            await project.owner.execute("commit; begin")
    assert leads.result()["leader"] is True
    await fleet.db.close()


@pytest.mark.parametrize("value", ["[]", '"no"', "{}", '{"since": 5, "failures": [], "types": 1, "codes": 2}'])
async def test_a_worker_that_was_held_back_by_hand_stops_no_tick(project: Project, value: str) -> None:
    """It counts as held back: it claims nothing."""
    agent = await project.fleet.agent()
    await project.owner.execute("update workers set held_back = %s::jsonb", (value,))
    (worker,) = (await SqlStore(project.fleet.db, FLEET).snapshot()).workers
    assert (worker.id, worker.held_back is not None) == (agent.id, True)
