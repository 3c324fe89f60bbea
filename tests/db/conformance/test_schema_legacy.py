"""An existing project's database: migrating adds to its tables and keeps every row."""

import re
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.migrate import MigrationReport, migrate
from orchestrator.ports import SchemaMismatch
from tests.db.conformance.builders import Fleet

# The guide's columns, as projects made them: by a text with a check that knows no Cancelled, or by an enum.
TASKS = """
create table tasks (
    id uuid primary key default gen_random_uuid(), task_type text not null, params jsonb not null default '{{}}',
    status {status}, worker_id text, attempts int default 0, {extra} output_location text, error_message text,
    created_at timestamptz default now(), updated_at timestamptz default now(),
    generation_started_at timestamptz, generation_processed_at timestamptz, result_data jsonb
)"""
TEXT = "text not null default 'Queued' check (status in ('Queued', 'In Progress', 'Complete', 'Failed'))"
ENUM = "task_status not null default 'Queued'"
MAKE_ENUM = "create type task_status as enum ('Queued', 'In Progress', 'Complete', 'Failed')"
WORKERS = """
create table workers (
    id text primary key, instance_type text not null,
    status text not null check (status in ('spawning', 'active', 'terminating', 'terminated', 'error')),
    last_heartbeat timestamptz default now(), metadata jsonb default '{}', created_at timestamptz default now()
)"""
ROWS = """
insert into workers (id, instance_type, status, metadata) values
    ('old-1', 'RTX 4090', 'active', '{"pod": "p1"}'), ('old-2', 'RTX 4090', 'error', null),
    ('old-3', 'RTX 4090', 'terminated', '{}');
insert into tasks (task_type, status, worker_id, attempts) values
    ('travel_segment', 'Queued', null, 0), ('travel_segment', 'In Progress', 'old-1', 1),
    ('travel_segment', 'Complete', 'old-1', 1), ('travel_stitch', 'Failed', 'old-2', null);
"""
COMPARED = """
select id, task_type, params, status::text, worker_id, output_location, created_at, error_message, result_data
  from tasks order by id
"""


@pytest.fixture
async def project(empty_database: str) -> AsyncIterator[AsyncConnection[DictRow]]:
    """Its owner."""
    async with await psycopg.AsyncConnection.connect(
        empty_database, autocommit=True, row_factory=dict_row, prepare_threshold=None
    ) as connection:
        yield connection


@pytest.fixture
async def fleet(empty_database: str) -> AsyncIterator[Fleet]:
    """A fleet on that database, once it is migrated."""
    db = await PostgresDb.open(empty_database)
    yield Fleet(db)
    await db.close()


async def rows(project: AsyncConnection[DictRow], query: str) -> list[dict[str, Any]]:
    """What a query finds."""
    return list(await (await project.execute(query.encode())).fetchall())


async def make(project: AsyncConnection[DictRow], status: str, extra: str = "") -> None:
    """Such a project's tables."""
    if status == ENUM:
        await project.execute(MAKE_ENUM)
    await project.execute(TASKS.format(status=status, extra=extra).encode())
    await project.execute(WORKERS)


async def migrated(project: AsyncConnection[DictRow], url: str) -> MigrationReport:
    """Migrate, and see that nothing went."""
    compared = [COMPARED, "select id, instance_type, created_at from workers order by id"]
    before = [await rows(project, query) for query in compared]
    report = await migrate(url)
    assert [await rows(project, query) for query in compared] == before
    return report


@pytest.mark.parametrize("status", [TEXT, ENUM], ids=["text", "enum"])
async def test_every_row_stays_and_old_workers_are_set_aside(
    project: AsyncConnection[DictRow], empty_database: str, status: str
) -> None:
    """What counted as alive is history now, with what it was; the report says so."""
    await make(project, status)
    await project.execute(ROWS)
    report = await migrated(project, empty_database)
    found = await rows(project, "select id, status, exit_cause, legacy_status, metadata from workers order by id")
    assert [tuple(row.values()) for row in found] == [
        ("old-1", "terminated", "superseded", "active", {"pod": "p1"}),
        ("old-2", "terminated", "superseded", "error", None),
        ("old-3", "terminated", "superseded", "terminated", {}),
    ]
    notes = "\n".join(report.notes)
    assert "workers from before count as terminated" in notes
    assert "1 tasks In Progress got a lease of one hour" in notes
    assert ("stays the enum task_status" in notes) == (status == ENUM)
    assert (await migrate(empty_database)).applied == ()


async def test_tables_with_the_least_columns_get_all_others(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """What makes them ours is an id, a type, params and a status; nothing needs to be NOT NULL."""
    await project.execute("create table tasks (id uuid primary key, task_type text, params jsonb, status text)")
    await project.execute("create table workers (id text primary key, status text)")
    await project.execute("insert into tasks values (gen_random_uuid(), 't', '{}', 'In Progress')")
    await project.execute("insert into workers values ('old', null)")
    await migrate(empty_database)
    (task,) = await rows(
        project, "select attempts_shown, max_attempts, pool, lease_expires_at > now() as leased from orchestrator.live"
    )
    assert task == {"attempts_shown": 0, "max_attempts": 3, "pool": "default", "leased": True}
    assert await rows(project, "select status, exit_cause from workers") == [
        {"status": "terminated", "exit_cause": "superseded"}
    ]


async def test_a_column_that_would_reserve_workers_is_refused(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """A worker whose `cluster` names none of ours would claim nothing; the owner renames the column."""
    await project.execute("create table workers (id text primary key, status text, cluster text)")
    with pytest.raises(SchemaMismatch, match=r"existing column workers[.]cluster is not of this system"):
        await migrate(empty_database)
    await project.execute("alter table workers rename column cluster to region")
    await migrate(empty_database)
    assert (await migrate(empty_database)).applied == ()


@pytest.mark.parametrize("status", [TEXT, ENUM], ids=["text", "enum"])
async def test_the_queue_works_on_such_tables(
    project: AsyncConnection[DictRow], empty_database: str, fleet: Fleet, status: str
) -> None:
    """Tasks are submitted, claimed, completed, failed, cancelled and retried, next to its own rows."""
    await make(project, status)
    await project.execute(ROWS)
    await migrated(project, empty_database)
    fleet.now = (await rows(project, "select now() as at"))[0]["at"]
    fleet.term = (await fleet.lead())["term"]
    mine, waits, unwanted = await fleet.submit({"max_attempts": 1}, {"depends_on": ["#0"]}, {})
    assert (await fleet.call("task_cancel", p_id=unwanted))["outcome"] == "cancelled"
    agent = await fleet.agent()
    (theirs,) = await agent.claim()
    assert theirs["task_type"] == "travel_segment"
    assert await agent.complete(theirs) == "ok"
    (task,) = await agent.claim()
    assert await agent.fail(task) == "failed"
    assert (await fleet.task(waits))["failure_code"] == "DEPENDENCY_FAILED"
    assert (await fleet.call("task_retry", p_id=mine))["outcome"] == "requeued"
    (demand,) = (await fleet.snapshot())["demand"]
    assert (demand["claimable"], demand["running"], demand["blocked"]["dependencies"]) == (1, 0, 1)
    counts = (await fleet.call("task_list", p_status=None, p_task_type=None, p_limit=1))["counts"]
    assert counts == {"Queued": 2, "In Progress": 1, "Complete": 2, "Failed": 1, "Cancelled": 1}
    fleet.wait(3601)
    (rescued,) = (await fleet.fleet("rescue", p_worker_id=None))["tasks"]
    assert (rescued["worker_id"], rescued["outcome"]) == ("old-1", "requeued")


@pytest.mark.parametrize(
    ("column", "insert"),
    [
        ("uuid", "insert into tasks (task_type, dependant_on) values ('u', %s) returning id"),
        ("uuid[]", "insert into tasks (task_type, dependant_on) values ('u', array[%s]::uuid[]) returning id"),
    ],
)
async def test_a_projects_own_column_for_dependencies_still_works(
    project: AsyncConnection[DictRow], empty_database: str, fleet: Fleet, column: str, insert: str
) -> None:
    """Rows from before, rows from after, and a row that is pointed elsewhere."""
    await make(project, TEXT, f"dependant_on {column},")
    (first,) = await rows(project, "insert into tasks (task_type) values ('t') returning id")
    (old,) = await (await project.execute(insert.encode(), (first["id"],))).fetchall()
    await migrated(project, empty_database)
    (new,) = await (await project.execute(insert.encode(), (first["id"],))).fetchall()
    query = """select t.id, orchestrator.needs(t.*) as depends_on, q.state::text
                 from tasks t join orchestrator.live q on q.task_id = t.id
                where t.task_type = 'u' order by t.created_at"""
    assert await rows(project, query) == [
        {"id": row["id"], "depends_on": [first["id"]], "state": "waits_for_tasks"} for row in (old, new)
    ]
    for one in (new, old):
        await project.execute("update tasks set priority = 1 where id = %s", (one["id"],))
        assert [row["state"] for row in await rows(project, query) if row["id"] == one["id"]] == ["waits_for_tasks"]
        await project.execute("update tasks set dependant_on = null where id = %s", (one["id"],))
        assert [row for row in await rows(project, query) if row["id"] == one["id"]] == [
            {"id": one["id"], "depends_on": [], "state": "ready"}
        ]
    fleet.term = (await fleet.lead())["term"]
    await project.execute("update tasks set status = 'Complete' where id = %s", (first["id"],))
    (task,) = await (await project.execute(insert.encode(), (first["id"],))).fetchall()
    agent = await fleet.agent()
    claimed = {one["id"]: [need["id"] for need in one["dependencies"]] for one in await agent.claim(batch=9)}
    assert claimed == {str(old["id"]): [], str(new["id"]): [], str(task["id"]): [str(first["id"])]}


async def test_a_status_of_its_own_is_kept_and_reported(project: AsyncConnection[DictRow], empty_database: str) -> None:
    """Never claimed, never lost."""
    await make(project, "text not null default 'Queued'")
    await project.execute("insert into tasks (task_type, status) values ('t', 'On Hold')")
    report = await migrated(project, empty_database)
    assert any("1 tasks keep a status" in note for note in report.notes)
    with pytest.raises(psycopg.Error, match="status is not valid"):
        await project.execute("insert into tasks (task_type, status) values ('t', 'On Hold')")


async def test_ids_that_are_no_uuids_are_refused_before_anything_happens(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """It says what to do."""
    await project.execute("create table tasks (id text primary key, task_type text, status text, params jsonb)")
    with pytest.raises(SchemaMismatch, match=r"tasks\.id is text, not uuid; fix: convert the column first"):
        await migrate(empty_database)
    assert await rows(project, "select to_regclass('public.workers') as it") == [{"it": None}]


@pytest.mark.parametrize(("column", "expected"), [("tenant uuid", "text"), ("labels text[]", "jsonb")])
async def test_a_column_with_the_name_of_ours_and_another_type_is_refused(
    project: AsyncConnection[DictRow], empty_database: str, column: str, expected: str
) -> None:
    """A value of ours would not fit into it; the message names the column, its type and ours."""
    await project.execute(f"{TASKS.format(status=TEXT, extra=column + ',')}".encode())
    kind = re.escape(column.partition(" ")[2])
    with pytest.raises(
        SchemaMismatch, match=f"has the type {kind}: .* with the type {expected}; fix: .*rename your column"
    ):
        await migrate(empty_database)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("tasks (id uuid primary key, title text, status text)", "tasks has no params, task_type"),
        ("workers (id text primary key, name text)", "workers has no status"),
        ("offers (id bigint primary key, price numeric)", "offers is there already"),
        ("releases (id bigint primary key, notes text)", "releases is there already"),
    ],
)
async def test_another_programs_tables_are_left_alone(
    project: AsyncConnection[DictRow], empty_database: str, table: str, why: str
) -> None:
    """Refused before the first migration: a table that was made ours by half would be nobody's."""
    await project.execute(f"create table {table}".encode())
    with pytest.raises(SchemaMismatch, match=f"{why}.*fix: rename"):
        await migrate(empty_database)
    query = "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'"
    assert await rows(project, query) == [{"relname": table.partition(" ")[0]}]


async def test_a_default_of_now_for_heartbeats_is_removed(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """A worker that never spoke must not look alive."""
    await make(project, TEXT)
    await migrated(project, empty_database)
    query = """select column_default as it from information_schema.columns
                where table_name = 'workers' and column_name = 'last_heartbeat'"""
    assert await rows(project, query) == [{"it": None}]


async def test_tasks_without_a_holder_are_listed_and_queued_again_on_request(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """Those of an older schema and those without a lease; a claimed task stays with its worker."""
    await make(project, TEXT)
    await project.execute(ROWS)
    (old,) = await rows(project, "select id::text from tasks where status = 'In Progress'")
    report = await migrated(project, empty_database)
    (note,) = [note for note in report.notes if "no worker holds" in note]
    assert note.startswith(
        f"1 tasks are In Progress and no worker holds them: {old['id']} (travel_segment, pool default)"
    )
    assert "--requeue-held" in note
    assert (await rows(project, "select count(*) as n from tasks where status = 'Queued'")) == [{"n": 1}]

    db = await PostgresDb.open(empty_database)
    fleet = Fleet(db)
    fleet.now = (await rows(project, "select now() as at"))[0]["at"]
    fleet.term = (await fleet.lead())["term"]
    (claimed,) = await (await fleet.agent()).claim()
    await db.close()
    report = await migrate(empty_database, requeue_held=True)
    assert [note for note in report.notes if "queued again" in note] == [
        f"1 tasks that no worker held are queued again: {old['id']} (travel_segment, pool default)"
    ]
    running = await rows(project, "select id::text, status from tasks where status in ('In Progress', 'Queued')")
    assert {row["id"]: row["status"] for row in running} == {claimed["id"]: "In Progress", old["id"]: "Queued"}
    assert (await migrate(empty_database)).notes == ()
