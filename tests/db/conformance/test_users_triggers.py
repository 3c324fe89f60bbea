"""Triggers that would stop the queue are named before they do: by the plan of a migration, and by doctor."""

from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.migrate import migrate, planned
from testbed.services.postgres import EmbeddedPostgres
from tests.db.conformance.builders import FLEET
from tests.db.conformance.schema_dump import dump
from tests.db.conformance.test_schema_legacy import ENUM, MAKE_ENUM, TASKS, TEXT, WORKERS, rows

# Functions of the user's: one finds nothing that it names, one calls what is not there, one refuses, one fails at the
# end of the transaction, one needs a setting of the user's program, and two are right.
FUNCTIONS = """
create schema app;
create table app.audit (what text);
create function "Lost"() returns trigger language plpgsql as
$$ begin insert into audit values ('x'); return new; end $$;
create function app.gone() returns trigger language plpgsql as
$$ begin perform nobody(new.status); return new; end $$;
create function refuses() returns trigger language plpgsql as
$$ begin if new.status::text = 'Complete' then raise 'not you'; end if; return new; end $$;
create function fine() returns trigger language plpgsql as
$$ begin insert into app.audit values (new.status); return null; end $$;
create function late() returns trigger language plpgsql as
$$ begin insert into app.audit (who) values ('x'); return null; end $$;
create function caller() returns trigger language plpgsql as
$$ begin insert into app.audit values (current_setting('app.caller')); return new; end $$;
create function frozen() returns trigger language plpgsql as
$$ begin if old.status::text in ('Complete', 'Failed') then raise 'it has ended'; end if; return new; end $$;
"""
TRIGGERS = """
create trigger a_lost after update on tasks for each row execute function "Lost"();
create trigger b_lost before insert on workers for each row execute function "Lost"();
create trigger gone before update on tasks for each row execute function app.gone();
create trigger refuses before update on tasks for each row execute function refuses();
create trigger fine after insert or update on tasks for each row execute function fine();
create trigger fine after insert or update on workers for each row execute function fine();
create constraint trigger late after update on tasks deferrable initially deferred for each row execute function late();
create trigger caller before update on tasks for each row execute function caller();
create trigger frozen before update on tasks for each row execute function frozen();
"""
NAMED = {
    "the trigger a_lost of tasks": "name the schema of what it uses, or: alter function ",
    "the trigger gone of tasks": "name the schema",
    "the trigger refuses of tasks": "so that it accepts the change",
    "the trigger b_lost of workers": "name the schema",
    "the trigger late of tasks": "so that it accepts the change",
    "the trigger caller of tasks": "call current_setting(…, true) in the function public.caller()",
}


@pytest.fixture(params=["empty", "rows"])
async def project(request: pytest.FixtureRequest, empty_database: str) -> AsyncIterator[AsyncConnection[DictRow]]:
    """The owner of a project with such triggers, with rows or without."""
    async with await psycopg.AsyncConnection.connect(
        empty_database, autocommit=True, row_factory=dict_row, prepare_threshold=None
    ) as connection:
        await connection.execute(MAKE_ENUM)
        await connection.execute(TASKS.format(status=ENUM, extra="owner_id int not null default 1,").encode())
        await connection.execute(WORKERS)
        await connection.execute(FUNCTIONS)
        if request.param == "rows":
            await connection.execute("alter table tasks alter owner_id drop default")
            await connection.execute("insert into tasks (task_type, status, owner_id) values ('t', 'Queued', 1)")
        await connection.execute(TRIGGERS)
        yield connection


async def test_the_plan_names_each_trigger_that_would_fail_and_changes_nothing(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """With the error, the function and the fix; a trigger that works is not named."""
    before = await dump(empty_database)
    notes = [note for note in (await planned(empty_database)).notes if "is required" not in note]
    for what, fix in NAMED.items():
        (note,) = [note for note in notes if note.startswith(what)]
        assert fix in note.partition("; fix: ")[2]
    assert len(notes) == len(NAMED)
    assert any('relation "audit" does not exist (42P01) in the function public."Lost"()' in note for note in notes)
    assert await dump(empty_database) == before
    assert await rows(project, "select from app.audit") == []


async def test_doctor_names_them_until_they_are_corrected(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """The trial leaves no row, no event and no count."""
    report = await migrate(empty_database)
    assert {what for what in NAMED for note in report.notes if note.startswith(what)} == set(NAMED)
    counted = "select (select count(*) from tasks) as tasks, (select count(*) from workers) as workers, "
    counted += "(select count(*) from worker_events) as events, (select count(*) from orchestrator.live) as queued"
    before = await rows(project, counted)
    db = await PostgresDb.open(empty_database)
    try:
        store = SqlStore(db, FLEET)
        found = await store.trigger_problems()
        assert {what for what in NAMED for one in found if one["what"].startswith(what)} == set(NAMED)
        assert len(found) == len(NAMED)
        assert await rows(project, counted) == before
        await project.execute("""alter function "Lost"() set search_path = app, public""")
        await project.execute("drop function app.gone() cascade; drop function late() cascade")
        await project.execute("drop function caller() cascade")
        (left,) = await store.trigger_problems()
        assert left["what"].startswith("the trigger refuses of tasks")
        await project.execute("drop function refuses() cascade")
        assert await store.trigger_problems() == []
        assert await rows(project, counted) == before
    finally:
        await db.close()


async def test_an_expression_that_would_fail_is_named(empty_database: str) -> None:
    """PostgreSQL resolves a generated column before any trigger fires. Tasks are written with the path of the users."""
    async with await psycopg.AsyncConnection.connect(empty_database, autocommit=True) as owner:
        await owner.execute(TASKS.format(status=TEXT, extra="").encode())
        await owner.execute(WORKERS)
        await owner.execute("create function word(v text) returns text language sql immutable as 'select upper(v)'")
        await owner.execute("create function slug(v text) returns text language sql immutable as 'select word(v)'")
        await owner.execute("alter table tasks add slug text generated always as (slug(status::text)) stored")
        await owner.execute("alter table workers add slug text generated always as (slug(instance_type)) stored")
        assert (await planned(empty_database)).notes == ()  # under the path of the login it works
        (note,) = [one for one in (await migrate(empty_database)).notes if "writes of the orchestrator" in one]
        assert note.startswith("writes of the orchestrator to workers fail: function word(text) does not exist")
        assert "name the schemas in the functions" in note
        await owner.execute("create or replace function slug(v text) returns text language sql immutable as $$"
                            "select public.word(v) $$")  # fmt: skip
    db = await PostgresDb.open(empty_database)
    try:
        assert await SqlStore(db, FLEET).trigger_problems() == []
    finally:
        await db.close()


async def test_a_trigger_that_discards_or_delays_every_write_is_named(empty_database: str) -> None:
    """Neither raises an error that names it."""
    async with await psycopg.AsyncConnection.connect(empty_database, autocommit=True) as owner:
        await owner.execute(TASKS.format(status=TEXT, extra="").encode())
        await owner.execute("""create function guard() returns trigger language plpgsql as $$ begin return null; end $$;
            create trigger guard before update on tasks for each row execute function guard()""")
        (note,) = (await planned(empty_database)).notes
        assert note.startswith("the trigger guard discards writes of the orchestrator to tasks")
        assert note in (await migrate(empty_database)).notes
        await owner.execute("""create or replace function guard() returns trigger language plpgsql as
            $$ begin perform pg_sleep(30); return new; end $$; set statement_timeout = '300ms'""")
        row = await (await owner.execute("select fleet_try_triggers()->'problems'")).fetchone()
        assert row is not None
        (problem,) = row[0]
        assert problem["what"] == "the trigger guard of tasks makes writes of the orchestrator fail"
        assert problem["fix"] == "let the function public.guard() do less: each change of a task waits for it"


async def test_a_right_that_a_trigger_lacks_is_named(server: EmbeddedPostgres, empty_database: str) -> None:
    """The functions run as their owner, who may not write the table of another."""
    name = empty_database.rpartition("/")[2]
    async with await psycopg.AsyncConnection.connect(
        empty_database, autocommit=True, row_factory=dict_row, prepare_threshold=None
    ) as admin:
        await admin.execute(f"create role owner_{name} login createrole".encode())
        await admin.execute(f"grant gpu_worker to owner_{name} with admin option".encode())
        await admin.execute(f"alter database {name} owner to owner_{name}; create table secrets (what text)".encode())
        await admin.execute(f"set role owner_{name}".encode())
        await admin.execute(TASKS.format(status=TEXT, extra="").encode())
        await admin.execute("""create function noted() returns trigger language plpgsql as
            $$ begin insert into secrets values ('x'); return new; end $$;
            create trigger noted before update on tasks for each row execute function noted()""")
        (note,) = (await planned(empty_database.replace("postgres@", f"owner_{name}@"))).notes
        assert note.startswith("the trigger noted of tasks")
        assert "permission denied for table secrets (42501) in the function public.noted()" in note
        assert f"runs as owner_{name} with" in note
        await admin.execute(f"reset role; drop owned by owner_{name} cascade".encode())
        await admin.execute(f"alter database {name} owner to postgres; drop role owner_{name}".encode())
