"""`migrate --remove`: the user's tables are as they were before the first migration, with every row of the user's."""

from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.core.states import State
from orchestrator.migrate import migrate, missing_sql, removed
from orchestrator.ports import SchemaMismatch
from tests.db.conformance.builders import Fleet
from tests.db.conformance.schema_dump import dump
from tests.db.conformance.test_schema import NOW
from tests.db.conformance.test_schema_legacy import COMPARED, ENUM, MAKE_ENUM, ROWS, TASKS, TEXT, WORKERS, project, rows

__all__ = ["project"]

# Columns of the user's with names of ours, and what else a user has on the table.
EXTRA = "priority int not null default 7, labels jsonb, progress jsonb default '{}', dependant_on uuid,"
OWN = """
create table audit (what text);
create function noted() returns trigger language plpgsql as $$ begin insert into audit values ('x'); return new; end $$;
create trigger mine after update on tasks for each row execute function noted();
create index mine on tasks (task_type);
create view open_tasks as select id, priority, labels from tasks where status = 'Queued';
"""
THEIRS = "select id, instance_type, status, created_at from workers where id ~ '^old' order by id"
# What the user's tables are, but for rights; a check that was dropped is not validated again.
SHAPE = """
select c.relname as rel, 'column ' || a.attname as name,
       concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid),
                 col_description(c.oid, a.attnum)) as it
  from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
 where c.relnamespace = 'public'::regnamespace and c.relkind = 'r'
union all select conrelid::regclass::text, conname, replace(pg_get_constraintdef(oid), ' NOT VALID', '')
  from pg_constraint where connamespace = 'public'::regnamespace and contype <> 'n'
union all select tablename, indexname, indexdef from pg_indexes where schemaname = 'public'
union all select tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) from pg_trigger where not tgisinternal
union all select relname, 'options', concat_ws(' ', relrowsecurity, reloptions) from pg_class
           where relnamespace = 'public'::regnamespace and relkind in ('r', 'v')
union all select proname, '', prosrc from pg_proc where pronamespace = 'public'::regnamespace
 order by 1, 2, 3
"""
OF_OURS = """
select count(*) as n from (
    select proname from pg_proc
     where pronamespace = 'public'::regnamespace and proname ~ '^(internal|task|worker|fleet)_'
    union all select relname from pg_class where relnamespace = 'public'::regnamespace
       and relname not in ('tasks', 'tasks_pkey', 'workers', 'workers_pkey', 'audit', 'mine', 'open_tasks')) o
"""


async def lived(url: str) -> None:
    """A fleet works on the user's tasks, and ends."""
    db = await PostgresDb.open(url)
    try:
        fleet = Fleet(db, now=datetime.now(UTC))
        fleet.term = (await fleet.lead())["term"]
        agent = await fleet.agent()
        (task,) = await agent.claim()
        await agent.complete(task, p_result_data={"done": True})
        await fleet.submit({"labels": {"a": "b"}, "tenant": "t"})
        with pytest.raises(SchemaMismatch, match=r"in use: 1 workers.*fix: python -m orchestrator shutdown"):
            await removed(url)
        await fleet.move(agent.id, State.ACTIVE, State.TERMINATING, exit_cause="manual")
        await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
        await db.call("fleet_lead", p_fleet="other", p_holder="somebody", p_ttl_s=60)
        with pytest.raises(SchemaMismatch, match=r"in use: an orchestrator leads \(us, somebody\)"):
            await removed(url)
    finally:
        await db.close()


@pytest.mark.parametrize("way", ["migrate", pytest.param("printed", marks=pytest.mark.full)])
@pytest.mark.parametrize("status", [TEXT, ENUM], ids=["text", "enum"])
async def test_a_project_is_as_it_was(
    project: AsyncConnection[DictRow], empty_database: str, status: str, way: str
) -> None:
    """Tables, columns, defaults, checks, indexes, views and triggers; and rows, but for what the fleet did to them."""
    if status == ENUM:
        await project.execute(MAKE_ENUM)
        await project.execute("alter type task_status add value 'Cancelled'")
    await project.execute(TASKS.format(status=status, extra=EXTRA).encode())
    await project.execute(WORKERS)
    await project.execute(ROWS)
    await project.execute(OWN)
    before, was = await rows(project, SHAPE), await rows(project, COMPARED)
    workers = await rows(project, THEIRS)
    if way == "migrate":
        await migrate(empty_database)
    else:
        await project.execute((await missing_sql(empty_database, NOW)).encode())
    assert await removed_when_ended(project, empty_database)
    assert await rows(project, SHAPE) == before
    assert await rows(project, OF_OURS) == [{"n": 0}]
    now = {row["id"]: row for row in await rows(project, COMPARED)}
    assert {row["id"] for row in was} < set(now)
    assert [now[row["id"]]["params"] for row in was] == [row["params"] for row in was]
    assert {row["priority"] for row in await rows(project, "select priority from tasks")} == {0, 7}
    assert await rows(project, "select labels from tasks where labels is not null") == [{"labels": {"a": "b"}}]
    assert await rows(project, THEIRS) == workers
    await migrate(empty_database)  # and again


async def removed_when_ended(project: AsyncConnection[Any], url: str) -> tuple[str, ...]:
    """Remove it after a fleet has lived and ended there."""
    await lived(url)
    await project.execute("update fleet_lease set expires_at = now()")
    return await removed(url)


async def test_a_database_that_migrate_filled_keeps_its_tasks(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """With the columns of the guide; nothing else of ours is left."""
    await migrate(empty_database)
    await project.execute("insert into tasks (task_type) values ('mine')")
    assert await removed_when_ended(project, empty_database)
    assert len(await rows(project, "select id, task_type, params, status, result_data from tasks")) == 2
    assert await rows(project, OF_OURS) == [{"n": 0}]
    assert await rows(project, "select to_regclass('workers') as it") == [{"it": None}]
    await migrate(empty_database)


async def test_what_depends_on_the_schema_is_named_and_nothing_is_dropped(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """A view of the user's on a table of ours."""
    await migrate(empty_database)
    await project.execute("create view mine as select * from alerts")
    before = await dump(empty_database)
    with pytest.raises(SchemaMismatch, match=r"stays as it was: .*view public.mine.*fix: drop what depends"):
        await removed(empty_database)
    assert await dump(empty_database) == before


async def test_a_timeout_of_the_login_does_not_end_it(project: AsyncConnection[DictRow], empty_database: str) -> None:
    """It drops hundreds of things in one statement."""
    await migrate(empty_database)
    await project.execute(
        """create table limits_seen (s text);
        create function see_limit() returns event_trigger language plpgsql as
        $$ begin insert into public.limits_seen values (current_setting('statement_timeout')); end $$;
        create event trigger seeing on ddl_command_start execute function see_limit()"""
    )
    await project.execute(f"alter database {project.info.dbname} set statement_timeout = '5min'".encode())
    await removed(empty_database)
    assert await rows(project, "select distinct s from limits_seen") == [{"s": "0"}]
    with pytest.raises(SchemaMismatch, match="has added nothing to this database; fix: compare DATABASE_URL"):
        await removed(empty_database)
