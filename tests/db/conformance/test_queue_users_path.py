"""What a user adds to `tasks` and `workers` finds its tables as in the user's own statements: no schema is needed."""

from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.migrate import migrate
from testbed.services.postgres import EmbeddedPostgres
from tests.db.conformance.builders import Agent, Fleet, result
from tests.db.conformance.consistency import broken
from tests.db.conformance.test_schema_legacy import TASKS, TEXT, WORKERS, rows

# A user's tables, functions and operators lie in `app`, which is on the search path of the database.
PROJECT = """
create table app.audit (at timestamptz default clock_timestamp(), what text, status text);
create function app.word(value text) returns text language sql immutable as $$ select upper(value) $$;
create function app.slug(value text) returns text language plpgsql immutable as $$ begin return word(value); end $$;
create function app.noted() returns trigger language plpgsql as $$
begin
    insert into audit (what, status) values (tg_argv[0], to_jsonb(new)->>'status');
    return new;
end $$;
"""
MOMENTS = {
    "before each row": "trigger mine before insert or update on {table} for each row",
    "after each row": "trigger mine after insert or update on {table} for each row",
    "last of all": "trigger zz after insert or update on {table} for each statement",
    "deferred": """constraint trigger mine after insert or update on {table}
                   deferrable initially deferred for each row""",
    "condition": """trigger mine after update on {table}
                    for each row when (old.status is distinct from new.status)""",
}
EXPRESSIONS = {
    "default": "alter table tasks add slug text default app.slug(clock_timestamp()::text)",
    "check": "alter table tasks add constraint mine check (app.slug(task_type) <> '') not valid",
    "generated": "alter table tasks add slug text generated always as (app.slug(task_type)) stored",
}


@pytest.fixture
async def project(server: EmbeddedPostgres, empty_database: str) -> AsyncIterator[AsyncConnection[DictRow]]:
    """The owner of such a database, before it is migrated."""
    name = empty_database.rpartition("/")[2]
    async with await psycopg.AsyncConnection.connect(
        empty_database, autocommit=True, row_factory=dict_row, prepare_threshold=None
    ) as connection:
        await connection.execute(f"alter database {name} set search_path = app, public".encode())
        await connection.execute("create schema app; set search_path = app, public")
        await connection.execute(PROJECT.encode())
        await connection.execute("set search_path = public, app")
        await connection.execute(TASKS.format(status=TEXT, extra="").encode())
        await connection.execute(WORKERS)
        yield connection


def made(moment: str, table: str) -> bytes:
    """The statement that makes the user's trigger."""
    return f"create {MOMENTS[moment].format(table=table)} execute function app.noted('m')".encode()


async def fleet_on(url: str) -> tuple[PostgresDb, Fleet]:
    """A fleet that we lead on the migrated database."""
    db = await PostgresDb.open(url)
    fleet = Fleet(db)
    fleet.term = (await fleet.lead())["term"]
    return db, fleet


async def lived(fleet: Fleet) -> Agent:
    """Everything that a task may meet: a second one each time, in one call and in calls of its own."""
    agent = await fleet.agent()
    first, second, _, unwanted = await fleet.submit({}, {"depends_on": ["#0"]}, {"max_attempts": 1}, {})
    await fleet.call("task_cancel", p_id=unwanted)
    one, two = await agent.claim(batch=2)
    assert await agent.complete(one) == "ok"
    assert await agent.fail(two) == "failed"
    (dependant,) = await agent.claim()
    assert dependant["id"] == second
    assert await agent.complete_many(result(dependant)) == ["ok"]
    await fleet.call("task_retry", p_id=two["id"])
    (again,) = await agent.claim()
    await agent.beat({"id": again["id"], "attempt": again["attempt"]})
    fleet.wait(100)
    (lost,) = (await fleet.fleet("rescue", p_worker_id=None))["tasks"]
    assert lost["outcome"] == "failed"
    await fleet.maintain()
    assert (await fleet.task(first))["status"] == "Complete"
    return agent


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_trigger_names_its_tables_without_a_schema(
    project: AsyncConnection[DictRow], empty_database: str, moment: str
) -> None:
    """Whenever it fires, on tasks and on workers, for one row and for many: it stops nothing, and it does its work."""
    for table in ("tasks", "workers"):
        await project.execute(made(moment, table))
    await migrate(empty_database)
    db, fleet = await fleet_on(empty_database)
    try:
        await lived(fleet)
    finally:
        await db.close()
    (found,) = await rows(project, "select count(*) as n, count(distinct status) as states from audit")
    assert found["n"] > 10
    assert found["states"] >= (0 if moment == "last of all" else 4)
    assert await rows(project, "select from orchestrator.publications") == []
    assert await broken(project) == {}


@pytest.mark.parametrize("expression", EXPRESSIONS)
async def test_an_expression_names_its_functions_without_a_schema(
    project: AsyncConnection[DictRow], empty_database: str, expression: str
) -> None:
    """Defaults, checks and generated columns call functions that call others."""
    await project.execute(EXPRESSIONS[expression].encode())
    await migrate(empty_database)
    db, fleet = await fleet_on(empty_database)
    try:
        await lived(fleet)
    finally:
        await db.close()
    assert await rows(project, "select from orchestrator.publications") == []


async def test_only_what_is_the_users_runs_under_the_users_path(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """A function of ours that a write fires, and what follows the write, find nobody's table or operator."""
    await project.execute(made("after each row", "tasks"))
    await migrate(empty_database)
    await project.execute("create table app.paths (path text)")
    await project.execute(
        """create function app.path_noted() returns trigger language plpgsql as $$
           begin insert into app.paths values (current_setting('search_path')); return null; end $$;
           create trigger mine after insert or update on orchestrator.live
               for each row execute function app.path_noted();
           create trigger mine after insert on orchestrator.attempts for each row execute function app.path_noted()"""
    )
    db, fleet = await fleet_on(empty_database)
    try:
        await lived(fleet)
    finally:
        await db.close()
    found = {row["path"] for row in await rows(project, "select distinct path from paths")}
    assert found
    assert found == {"pg_catalog, pg_temp"}


async def test_the_path_is_the_owners_and_no_callers(project: AsyncConnection[DictRow], empty_database: str) -> None:
    """A caller with tables under the same names, temporary ones too, gets nothing done with the owner's rights."""
    await project.execute(made("after each row", "tasks"))
    await migrate(empty_database)
    role = f"caller_{empty_database.rpartition('/')[2]}"
    await project.execute(f"create role {role} login; grant all on function task_submit to {role}".encode())
    try:
        async with await psycopg.AsyncConnection.connect(
            empty_database, user=role, autocommit=True, options="-c search_path=pg_temp,public"
        ) as caller:
            await caller.execute("create temporary table audit (what text, status text)")
            await caller.execute("""select task_submit('[{"task_type": "t"}]')""")
            assert await (await caller.execute("select 1 from pg_temp.audit")).fetchall() == []
        assert len(await rows(project, "select from app.audit where status = 'Queued'")) == 1
    finally:
        await project.execute(f"drop owned by {role}; drop role {role}".encode())


async def test_a_path_that_changes_is_followed_by_the_next_migrate(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """Also if it applies no file."""
    await project.execute(made("after each row", "tasks"))
    await migrate(empty_database)
    name = empty_database.rpartition("/")[2]
    await project.execute("alter schema app rename to moved")
    await project.execute(f"alter database {name} set search_path = moved, public".encode())
    assert (await migrate(empty_database)).applied == ()
    db, fleet = await fleet_on(empty_database)
    try:
        await lived(fleet)
    finally:
        await db.close()
    assert len(await rows(project, "select from moved.audit where status = 'Complete'")) == 2
