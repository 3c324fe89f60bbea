"""A user's tables are adopted: interrupted anywhere, with open transactions, and with rows in which much is missing."""

import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator import migrate as migrations
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.migrate import migrate, planned, removed, run
from orchestrator.migrate.steps import ADOPT, ADOPTION, Statement
from orchestrator.ports import Unavailable
from tests.db.conformance.builders import Fleet
from tests.db.conformance.schema_dump import dump
from tests.db.conformance.test_schema_legacy import ROWS, TASKS, TEXT, WORKERS, project, rows

__all__ = ["project"]

FILL = """
insert into tasks (task_type, status, attempts, created_at, updated_at, dependant_on)
select 'old', (array['Queued', 'In Progress', 'Complete'])[1 + i % 3], nullif(i % 2, 1),
       case when i % 5 = 0 then null else now() end, null,
       case when i % 7 = 0 then '00000000-0000-0000-0000-000000000001'::uuid end
  from generate_series(1, 3000) i;
insert into workers (id, instance_type, status, metadata, created_at) values
    ('old-1', 'gpu', 'active', null, null), ('old-2', 'gpu', 'error', '{}', now());
create table audit (what text);
create function noted() returns trigger language plpgsql as
$$ begin insert into audit values (tg_table_name || tg_op); return coalesce(new, old); end $$;
create trigger a_row before insert or update or delete on tasks for each row execute function noted();
create trigger a_statement after insert or update or delete on tasks for each statement execute function noted();
create trigger a_row before insert or update or delete on workers for each row execute function noted();
create trigger a_statement after insert or update or delete on workers for each statement execute function noted();
"""
STATE = """
select (select array_agg((t.id, t.ctid, t.xmin)::text order by t.id) from tasks t)::text as tasks,
       (select array_agg((w.id, w.ctid, w.xmin)::text order by w.id) from workers w)::text as workers,
       (select count(*) from audit) as fired"""
MISSING = """
select count(*) filter (where q.task_id is null) as missing,
       count(*) filter (where t.status = 'In Progress' and q.lease_expires_at is null) as unleased,
       count(*) filter (where t.status = 'Queued'
                          and (q.state = 'waits_for_tasks') <> (t.dependant_on is not null)) as lost,
       (select count(*) from orchestrator.differences) as different
  from tasks t left join orchestrator.live q on q.task_id = t.id where t.status <> 'Complete'"""
NOTHING = {"missing": 0, "unleased": 0, "lost": 0, "different": 0}


@pytest.fixture
async def filled(project: AsyncConnection[DictRow], monkeypatch: pytest.MonkeyPatch) -> AsyncConnection[DictRow]:
    """Such a project, whose tasks are adopted in a few batches."""
    monkeypatch.setattr(sys.modules["orchestrator.migrate.steps"], "ADOPT", ADOPT.replace("10000", "700"))
    await project.execute(TASKS.format(status=TEXT, extra="dependant_on uuid,").encode())
    await project.execute(WORKERS)
    await project.execute(FILL)
    return project


class Killer:
    """Counts the statements of a migration, and ends its connection before one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        self.at: int | None = None
        execute = run._execute

        async def killed(connection: AsyncConnection[Any], statement: Statement) -> Any:
            if len(self.paths) == self.at:
                await connection.execute("select pg_terminate_backend(pg_backend_pid())")
            self.paths.append(statement.path)
            return await execute(connection, statement)

        monkeypatch.setattr(run, "_execute", killed)

    def edges(self) -> list[int]:
        """The first and the last statement of each file, and of all functions."""
        groups = [re.sub("^functions/.*", "functions", path) for path in self.paths]
        starts = [n for n, group in enumerate(groups) if n == 0 or groups[n - 1] != group]
        return sorted({*starts, *(n - 1 for n in starts[1:]), *(n for n, g in enumerate(groups) if g == ADOPTION)})


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.full)])
async def test_it_can_be_killed_at_each_step_and_goes_on(
    filled: AsyncConnection[DictRow], empty_database: str, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Schema and queue are those of a run without an interruption; no row of the user's is updated."""
    killer = Killer(monkeypatch)
    before = await rows(filled, STATE)
    await migrate(empty_database)
    assert await rows(filled, STATE) == before
    whole, places = await dump(empty_database), killer.edges()[::every]
    assert len([path for path in killer.paths if path == ADOPTION]) > 2
    for place in places:
        await removed(empty_database)
        killer.paths, killer.at = [], place
        with pytest.raises(Unavailable):
            await migrate(empty_database)
        killer.at = None
        await migrate(empty_database)
        assert await rows(filled, MISSING) == [NOTHING], place
        assert await dump(empty_database) == whole, place
        assert (await migrate(empty_database)).applied == (), place
    assert [row for row in await rows(filled, "select * from audit") if "tasks" in row["what"]] == []


Then = Callable[[AsyncConnection[Any]], Awaitable[None]]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch, empty_database: str) -> Callable[..., None]:
    """Register a user's transaction: it makes its statements before the first batch, and is open until `then`."""

    def register(statements: Sequence[str], then: Then) -> None:
        adopt = run.adopt

        async def delayed(*args: Any) -> tuple[str, ...]:
            async with await psycopg.AsyncConnection.connect(empty_database) as other:
                for statement in statements:
                    await other.execute(statement.encode())
                notes: tuple[str, ...] = await adopt(*args)
                await then(other)
            return notes

        monkeypatch.setattr(migrations, "adopt", delayed)

    return register


async def test_an_open_transaction_of_a_users_holds_no_task_up(
    project: AsyncConnection[DictRow], empty_database: str, meanwhile: Callable[..., None]
) -> None:
    """What it has changed or locked comes into the queue when it has ended, as it is then."""
    await project.execute(TASKS.format(status=TEXT, extra="").encode())
    await project.execute("insert into tasks (task_type) select 't' from generate_series(1, 4)")
    ended, locked, deleted, free = [str(row["id"]) for row in await rows(project, "select id from tasks order by id")]
    query = "select task_id::text as id, state::text from orchestrator.live order by 1"

    async def then(other: AsyncConnection[Any]) -> None:
        for is_open in (True, False):
            if not is_open:
                await other.commit()
            await project.execute("select orchestrator.maintain_at(now())")
            left = [free] if is_open else [locked, free]
            assert await rows(project, query) == [{"id": one, "state": "ready"} for one in left]

    changes = (
        f"update tasks set status = 'Complete' where id = '{ended}'",  # noqa: S608
        f"select from tasks where id = '{locked}' for update",
        f"delete from tasks where id = '{deleted}'",  # noqa: S608
    )
    meanwhile(changes, then)
    report = await migrate(empty_database)
    assert any("3 tasks are locked by open transactions of yours" in note for note in report.notes)


async def test_a_result_that_a_task_needs_is_kept_before_the_task_is_in_the_queue(
    project: AsyncConnection[DictRow], empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user deletes a Complete task between the triggers and the first batch."""
    await project.execute(TASKS.format(status=TEXT, extra="dependant_on uuid,").encode())
    (first,) = await rows(project, "insert into tasks (task_type, status) values ('t', 'Complete') returning id")
    await project.execute("insert into tasks (task_type, dependant_on) values ('u', %s)", (first["id"],))
    adopt = run.adopt

    async def delayed(*args: Any) -> tuple[str, ...]:
        await project.execute("delete from tasks where id = %s", (first["id"],))
        notes: tuple[str, ...] = await adopt(*args)
        return notes

    monkeypatch.setattr(migrations, "adopt", delayed)
    await migrate(empty_database)
    await project.execute("select orchestrator.maintain_at(now())")
    assert await rows(project, "select state::text from orchestrator.live") == [{"state": "ready"}]


async def test_rows_in_which_much_is_missing_are_read(filled: AsyncConnection[DictRow], empty_database: str) -> None:
    """Without numbers and times: they are claimed, completed, listed, counted and explained."""
    await migrate(empty_database)
    db = await PostgresDb.open(empty_database)
    fleet = Fleet(db)
    fleet.now = (await rows(filled, "select now() as at"))[0]["at"]
    fleet.term = (await fleet.lead())["term"]
    (one,) = await rows(
        filled,
        """select id::text from tasks where attempts is null and created_at is null
                                      and status = 'Queued' and dependant_on is null limit 1""",
    )
    await filled.execute("update tasks set priority = 9 where id = %s", (one["id"],))
    assert await rows(filled, "select from orchestrator.differences") == []
    shown = await fleet.task(one["id"])
    assert (shown["attempts"], shown["depends_on"], shown["status"]) == (0, [], "Queued")
    await fleet.call("fleet_task_explain", p_fleet="default", p_task_id=one["id"])
    await fleet.call("task_list", p_status=None, p_task_type=None, p_limit=100)
    await fleet.snapshot()
    await fleet.maintain()
    agent = await fleet.agent()
    (task,) = await agent.claim()
    assert (task["id"], task["attempt"], await agent.complete(task)) == (one["id"], 1, "ok")
    assert await rows(filled, "select from orchestrator.differences") == []
    await db.close()


async def test_the_plan_names_steps_locks_rows_and_what_changes_for_others(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """And changes nothing."""
    await project.execute(TASKS.format(status=TEXT, extra="").encode())
    await project.execute(WORKERS)
    await project.execute(ROWS)
    await project.execute("""create view busy as select id from workers where status = 'active';
        create function noted() returns trigger language plpgsql as $$ begin return new; end $$;
        create trigger mine before update on tasks for each row execute function noted();
        grant select on tasks to public; analyze""")
    before = await dump(empty_database)
    plan = "\n".join((await planned(empty_database)).plan)
    assert await dump(empty_database) == before
    for said in (
        "step 1: tables/0001_baseline.sql in one transaction; existing tables: an exclusive lock for milliseconds",
        "tasks is read once (about 4 rows, 0 MB)",
        "indexes are built and dropped while others write",
        "PUBLIC loses its rights on tasks: select",
        "each statement that writes tasks also runs orchestrator.tasks_inserted",
        "the orchestrator's changes of tasks run your triggers: mine",
        "these views go on with legacy_status, which has no value for new workers: busy",
    ):
        assert said in plan
    await migrate(empty_database)
    assert (await planned(empty_database)).plan == ()
