"""A database that cannot take the schema is refused before the first change, by `migrate` and by its plan."""

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.migrate import migrate, planned
from orchestrator.ports import SchemaMismatch
from testbed.services.postgres import EmbeddedPostgres
from tests.db.conformance.test_schema_legacy import TASKS, TEXT, project, rows

__all__ = ["project"]

TABLE = TASKS.format(status=TEXT, extra="")
PARTITIONED = """
create table tasks (id uuid, task_type text, params jsonb, status text, at date, primary key (id, at))
 partition by range (at)"""
VIEW = "create table work (id uuid, task_type text, params jsonb, status text); create view tasks as select * from work"
CHILD = f"{TABLE}; create table tasks_of_2025 () inherits (tasks)"
# The owner of the table is no superuser: only then do its own policies bind it.
FORCED = f"""{TABLE}; create role forced login; alter table tasks owner to forced;
    grant create on schema public to forced;
    alter table tasks enable row level security, force row level security"""
BIGINT = "create table tasks (id bigint primary key, task_type text, params jsonb, status text)"

UNFIT = {
    "a view": (VIEW, "tasks is a view, not a table"),
    "a partitioned table": (PARTITIONED, "tasks is a partitioned table, not a table"),
    "a table with children": (CHILD, "other tables inherit from tasks"),
    "ids that are numbers": (BIGINT, "tasks.id is bigint, not uuid"),
    "a second table": ("create table workers (id uuid primary key, status text)", "workers.id is uuid, not text"),
    "labels that are an array": (f"{TABLE}; alter table tasks add labels text[]", "tasks.labels has the type text[]"),
    "a pool that is a number": (f"{TABLE}; alter table tasks add pool int", "tasks.pool has the type integer: "),
    "parameters as json": (
        f"{TABLE}; alter table tasks alter params drop default, alter params type json",
        "tasks.params has the type json",
    ),
    "a column of ours that is generated": (
        f"{TABLE}; alter table tasks add tenant text generated always as (task_type) stored",
        "tasks.tenant is generated: the functions write it",
    ),
    "a rule": (f"{TABLE}; create rule quiet as on update to tasks do instead nothing", "tasks has the rule quiet"),
    "no schema": ("drop schema public", "there is no schema public"),
}


async def refusal(url: str) -> str:
    """What both say."""
    with pytest.raises(SchemaMismatch) as plan:
        await planned(url)
    with pytest.raises(SchemaMismatch) as real:
        await migrate(url)
    assert str(plan.value) == str(real.value)
    return str(real.value)


@pytest.mark.parametrize("kind", UNFIT)
async def test_tables_that_do_not_fit(project: AsyncConnection[DictRow], empty_database: str, kind: str) -> None:
    """The sentence names the table and a fix, and nothing is made."""
    setup, what = UNFIT[kind]
    await project.execute(setup.encode())
    said = await refusal(empty_database)
    assert what in said
    assert "; fix: " in said
    assert await rows(project, "select to_regclass('public.schema_migrations') as made") == [{"made": None}]


async def test_row_security_that_binds_the_owner(project: AsyncConnection[DictRow], empty_database: str) -> None:
    """Rows that a policy hides from us would be lost work."""
    await project.execute(FORCED.encode())
    try:
        said = await refusal(empty_database.replace("postgres@", "forced@"))
    finally:
        await project.execute("drop owned by forced; drop role forced")
    assert "row level security of tasks binds its owner" in said
    assert "alter table public.tasks no force row level security" in said


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_an_encoding_without_all_characters(server: EmbeddedPostgres, encoding: str) -> None:
    """A stock server without a locale makes SQL_ASCII databases."""
    name = f"encoded_{encoding.lower()}"
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as admin:
        await admin.execute(f"create database {name} encoding '{encoding}' locale 'C' template template0".encode())
        try:
            said = await refusal(server.url_of(name))
        finally:
            await admin.execute(f"drop database {name} with (force)".encode())
    assert f"its encoding is {encoding}, not UTF8" in said
    assert "encoding 'UTF8'" in said


async def test_an_event_trigger_that_fails_is_named_with_a_fix(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """It fires for each statement of the migration, which has an empty search path."""
    await project.execute(
        """create table ddl_log (tag text);
        create function note_ddl() returns event_trigger language plpgsql as
        $$ begin insert into ddl_log values (tg_tag); end $$;
        create event trigger noting on ddl_command_end execute function note_ddl()"""
    )
    said = await refusal(empty_database)
    assert "ddl_log" in said
    assert said.endswith("alter function public.note_ddl() set search_path = public")
    await project.execute("alter function note_ddl() set search_path = public")
    assert (await planned(empty_database)).notes == ()
    await migrate(empty_database)
    await project.execute("drop event trigger noting")


async def test_an_event_trigger_that_refuses_changes_is_named(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """Before the first change; the fix is not to run the same command again."""
    await project.execute(
        """create function only_reviewed() returns event_trigger language plpgsql as
        $$ begin raise 'use the migrations tool'; end $$;
        create event trigger reviewed on ddl_command_start when tag in ('CREATE TABLE')
        execute function only_reviewed()"""
    )
    said = await refusal(empty_database)
    await project.execute("drop event trigger reviewed")
    assert "use the migrations tool, in the function public.only_reviewed(); fix: let it accept this" in said


async def test_what_will_not_work_as_it_is_is_named_by_the_plan_and_by_the_migration(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """A required column that only the user's program fills, and a view with a name of ours."""
    await project.execute(f"{TABLE}; alter table tasks add author uuid not null".encode())
    await project.execute("create view recent_errors as select 1 as x")
    notes = (await planned(empty_database)).notes
    assert any(note.startswith("the column tasks.author is required and has no default: ") for note in notes)
    assert any(note.startswith("the view recent_errors of yours is dropped, or renamed") for note in notes)
    assert set(notes) <= set((await migrate(empty_database)).notes)
