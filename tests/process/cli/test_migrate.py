"""`migrate` at the command line: exit codes, the SQL for the administrator, failing triggers, and the way back."""

from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import AsyncConnection

from testbed.shared_services import Database
from tests.process.cli.builders import Cli

OLD = """
create table tasks (id uuid primary key default gen_random_uuid(), task_type text not null, params jsonb,
                    status text not null default 'Queued', note text);
create function noted() returns trigger language plpgsql as $$ begin insert into nowhere values (1); return new; end $$;
insert into tasks (task_type, note) values ('mine', 'a note');
create trigger noted before update on tasks for each row execute function noted();
"""


@pytest.fixture
async def project(postgres: Database) -> AsyncIterator[tuple[str, AsyncConnection[tuple[object, ...]]]]:
    """The URL of a project's database, and its owner."""
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as admin:
        await admin.execute("drop database if exists cli_migrate with (force)")
        await admin.execute("create database cli_migrate")
    url = postgres.server.url_of("cli_migrate")
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as owner:
        await owner.execute(OLD)
        yield url, owner


async def test_a_project_is_migrated_and_taken_back(
    cli: Cli, project: tuple[str, AsyncConnection[tuple[object, ...]]]
) -> None:
    """The plan names the trigger that would stop every task; --remove asks, and keeps the rows."""
    url, owner = project
    plan = await cli("migrate", "--plan", DATABASE_URL=url)
    assert plan.code == 2, plan.out + plan.err
    assert "the trigger noted of tasks makes writes of the orchestrator fail" in " ".join((plan.out + plan.err).split())
    made = await cli("migrate", DATABASE_URL=url)
    assert made.code == 0, made.out + made.err
    refused = await cli("migrate", "--remove", DATABASE_URL=url)
    assert (refused.code, "E050" in refused.err) == (2, True)
    removed = await cli("migrate", "--remove", "--yes", DATABASE_URL=url)
    assert removed.code == 0, removed.out + removed.err
    assert "keeps your rows" in removed.out
    found = await owner.execute("select count(*) from pg_class where relnamespace = 'public'::regnamespace")
    assert await found.fetchone() == (2,)
    assert await (await owner.execute("select task_type, note, status from tasks")).fetchall() == [
        ("mine", "a note", "Queued")
    ]
    again = await cli("migrate", "--remove", "--yes", DATABASE_URL=url)
    assert (again.code, "E011" in again.err) == (4, True)


async def test_a_right_that_lacks_is_shown_with_the_sql_for_it(
    cli: Cli, project: tuple[str, AsyncConnection[tuple[object, ...]]]
) -> None:
    """By an error of its own: to run migrate again would not help."""
    url, owner = project
    await owner.execute("drop role if exists cli_guest; create role cli_guest login")
    for arguments in (("migrate",), ("migrate", "--plan")):
        ran = await cli(*arguments, DATABASE_URL=url.replace("postgres@", "cli_guest@"))
        assert ran.code == 4, ran.out + ran.err
        assert "error[E014]: the database login lacks a right" in ran.err
        assert "grant create on schema public to cli_guest" in " ".join(ran.err.split())
    assert await (await owner.execute("select to_regclass('schema_migrations')")).fetchone() == (None,)
