"""What a user's change of the schema breaks is named with its fix: in doctor, in health, and by migrate."""

from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow, dict_row

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.migrate import migrate
from orchestrator.ports import DatabaseAuth, SchemaMismatch
from testbed.services.postgres import EmbeddedPostgres
from testbed.shared_services import SharedServices
from tests.db.conformance.builders import FLEET, Agent, Fleet

LISTS = """
select array(select c.rel || '.' || a.attname || ' ' || a.atttypid::regtype from internal_columns() c
               join pg_attribute a on a.attrelid = c.rel::regclass where a.attnum > 0 and not a.attisdropped order by 1)
       = array(select c.rel || '.' || split_part(l, ' ', 1) || ' ' || to_regtype(substr(l, strpos(l, ' ') + 1))
                 from internal_columns() c cross join unnest(c.columns) l order by 1) as columns,
       array(select g.tgrelid::regclass || ' ' || g.tgname from pg_trigger g join pg_class c on c.oid = g.tgrelid
              where not g.tgisinternal and c.relnamespace = 'public'::regnamespace order by 1)
       = array(select t from unnest(internal_triggers()) t order by 1) as triggers,
       array(select c.oid from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' order by 1)
       = array(select t from unnest(internal_tables()) t order by 1) as tables,
       (select count(*) from pg_attribute a join pg_class c on c.oid = a.attrelid
         where a.attidentity <> '' and c.relkind = 'r'
           and c.relnamespace in ('public'::regnamespace, 'orchestrator'::regnamespace))
       = (select count(*) from internal_sequences()) as sequences"""
# A change -> words of the problem. Its fix repairs it, except where a user must choose.
CHANGES = {
    "alter table tasks rename progress to done": "the column tasks.progress is missing",
    "alter table tasks drop output_object": "the column tasks.output_object is missing",
    "alter table tasks alter output_object type json": "the column tasks.output_object has the type json",
    "alter table workers alter claim_no type text": "the column workers.claim_no has the type text",
    "alter table tasks disable trigger tasks_updated": "triggers of tasks are disabled: tasks_updated",
    "create function internal_now(x int default 0) returns timestamptz language sql as 'select now()'": (
        "there is a second function public.internal_now(integer)"
    ),
    "create function task_cancel(p_id text, p_now text default null) returns text language sql as 'select p_id'": (
        "there is a second function public.task_cancel(text,text)"
    ),
    "create rule own as on update to tasks do also notify somebody": "the table public.tasks has the rule own",
}
CHOICES = {
    "drop trigger workers_changed on workers": "triggers of workers are missing: workers_changed",
    "alter table tasks add user_id uuid not null": "the column tasks.user_id is required and has no default",
}
JSON_PARAMS = """create table tasks (id uuid primary key default gen_random_uuid(), task_type text not null,
    params json not null default '{}', status text not null default 'Queued')"""


@pytest.fixture
async def owner(shared: SharedServices) -> AsyncIterator[AsyncConnection[DictRow]]:
    """The owner of a migrated database of our own."""
    url = (await shared.database()).url
    async with await psycopg.AsyncConnection.connect(url, autocommit=True, row_factory=dict_row) as connection:
        yield connection


async def problems(owner: AsyncConnection[DictRow]) -> list[dict[str, str]]:
    """What health is told."""
    report = "select fleet_report('default')->'schema_problems' as found"
    row = await (await owner.execute(report)).fetchone()
    assert row is not None
    return list(row["found"])


async def test_a_new_database_has_no_problem_and_the_lists_are_complete(owner: AsyncConnection[DictRow]) -> None:
    """Who adds a column, trigger, table or identity column adds it to functions/integrity.sql."""
    assert await problems(owner) == []
    row = await (await owner.execute(LISTS)).fetchone()
    assert row == {"columns": True, "triggers": True, "tables": True, "sequences": True}


@pytest.mark.parametrize(("change", "what"), [*CHANGES.items(), *CHOICES.items()])
async def test_a_change_of_the_schema_is_named_with_its_fix(
    owner: AsyncConnection[DictRow], change: str, what: str
) -> None:
    """The leader hears of it too."""
    await owner.execute(change.encode())
    (found,) = await problems(owner)
    assert found["what"] == what
    assert found["why"]
    troubles = await (await owner.execute("select fleet_task_troubles('default', '[]') as told")).fetchone()
    assert troubles is not None
    assert troubles["told"]["schema_problems"] == [found]
    if change in CHANGES:
        await owner.execute(found["fix"].split("or: ")[-1].split("; a trigger")[0].encode())
        assert await problems(owner) == []


@pytest.mark.parametrize("table", ["tasks", "workers"])
async def test_rows_that_policies_hide_are_an_error_and_not_an_empty_queue(
    server: EmbeddedPostgres, shared: SharedServices, table: str
) -> None:
    """An orchestrator that sees no workers would rent new ones, and delete the pods of those that exist."""
    owner, agent, db = await owned(server, f"hidden_{table}")
    try:
        await agent.fleet.submit()
        await owner.execute(sql.SQL("alter table {} force row level security").format(sql.Identifier(table)))
        with pytest.raises(DatabaseAuth, match=f'row-level security policy for table "{table}"'):
            await (agent.claim() if table == "tasks" else agent.fleet.snapshot())
        (found,) = await SqlStore(db, FLEET).schema_problems()
        assert found["what"] == f"policies hide rows of the table {table} from the functions"
        await owner.execute(found["fix"].split("; or")[0].encode())
        assert len(await agent.claim()) == 1
    finally:
        await db.close()
        await owner.close()


async def test_a_right_that_the_functions_have_lost_is_named(server: EmbeddedPostgres, shared: SharedServices) -> None:
    """For example, because another role owns the table now."""
    owner, _, db = await owned(server, "rights_lost")
    try:
        await owner.execute("revoke update on tasks from app")
        (found,) = await SqlStore(db, FLEET).schema_problems()
        assert found["what"] == "the functions may not update the table tasks"
        await owner.execute(found["fix"].encode())
        assert await SqlStore(db, FLEET).schema_problems() == []
    finally:
        await db.close()
        await owner.close()


async def test_migrate_refuses_a_table_whose_inserts_it_would_break(empty_database: str) -> None:
    """The user's programs go on inserting, and the fix helps."""
    insert = "insert into tasks (task_type) values ('t')"
    async with await psycopg.AsyncConnection.connect(empty_database, autocommit=True) as owner:
        await owner.execute(JSON_PARAMS)
        with pytest.raises(SchemaMismatch, match=r"tasks\.params has the type json.*fix: alter table") as refused:
            await migrate(empty_database)
        await owner.execute(insert)
        await owner.execute(str(refused.value).rsplit("fix: ", 1)[1].encode())
        await migrate(empty_database)
        await owner.execute(insert)


async def owned(server: EmbeddedPostgres, name: str) -> tuple[AsyncConnection[DictRow], Agent, PostgresDb]:
    """A migrated database whose owner `app` is no superuser; its owner's connection, a worker, and the transport."""
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as superuser:
        if not await (await superuser.execute("select 1 from pg_roles where rolname = 'app'")).fetchone():
            await superuser.execute("create role app login createrole")
        await superuser.execute("grant gpu_worker to app with admin option")
        statement = sql.SQL("create database {} owner app template template0 strategy file_copy")
        await superuser.execute(statement.format(sql.Identifier(name)))
    url = server.url_of(name).replace("postgres@", "app@")
    await migrate(url)
    db = await PostgresDb.open(url, call_timeout_s=30)
    fleet = Fleet(db)
    fleet.term = (await fleet.lead())["term"]
    owner = await psycopg.AsyncConnection.connect(url, autocommit=True, row_factory=dict_row)
    return owner, await fleet.agent(), db
