"""A user's tables are adopted: interrupted anywhere, with open transactions, and with rows in which much is missing."""

import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator import migrate as migrations
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.config.settings import Settings
from orchestrator.diagnostics.doctor.database import database
from orchestrator.diagnostics.doctor.findings import Section
from orchestrator.migrate import migrate, planned, removed, run
from orchestrator.migrate.steps import ADOPT, ADOPTION, ENTER, Statement
from orchestrator.ports import Unavailable
from tests.db.conformance.builders import Agent, Fleet
from tests.db.conformance.schema_dump import dump
from tests.db.conformance.test_migrate_rights import doctor
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
PARTS = 5


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


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, PARTS))])
async def test_it_can_be_killed_at_each_step_and_goes_on(
    filled: AsyncConnection[DictRow], empty_database: str, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """Schema and queue are those of a run without an interruption; no row of the user's is updated.

    In parts, each with tables of its own: a table can have had 1,600 columns.
    """
    killer = Killer(monkeypatch)
    before = await rows(filled, STATE)
    await migrate(empty_database)
    assert await rows(filled, STATE) == before
    whole, places = await dump(empty_database), killer.edges()[part::PARTS]
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


async def working(url: str) -> tuple[PostgresDb, Fleet, Agent]:
    """A fleet that leads in the database, with an agent, at the present time."""
    db = await PostgresDb.open(url, call_timeout_s=30)
    fleet = Fleet(db, now=datetime.now(UTC))
    fleet.term = (await fleet.lead())["term"]
    return db, fleet, await fleet.agent()


DAMAGES = (
    "delete from orchestrator.live",
    "truncate orchestrator.live, orchestrator.edges",
    "drop table orchestrator.live cascade",
    "drop table orchestrator.edges, orchestrator.launches, orchestrator.audits cascade",
    "drop type orchestrator.task_state cascade",
    "drop function orchestrator.tasks_updated() cascade",
    "drop function orchestrator.reconcile(uuid[]); drop view orchestrator.differences",
    "drop schema orchestrator cascade",
)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_queue_that_its_owner_has_damaged_is_made_again(
    project: AsyncConnection[DictRow], empty_database: str, damage: str
) -> None:
    """Numbers go on, what agents hold they complete once, and what needs another task waits for it."""
    await migrate(empty_database)
    whole = await dump(empty_database)
    db, fleet, agent = await working(empty_database)
    try:
        back, held, taken = await fleet.submit({}, {}, {})
        tasks = {task["id"]: task for task in await agent.claim(batch=3)}
        await agent.release(tasks[back])
        other = await fleet.agent()
        needed, waits = await fleet.submit({}, {"depends_on": ["#0"]})
        await fleet.maintain()
        numbers = {task_id: (await fleet.task(task_id))["attempts"] for task_id in (back, held, taken)}
        await project.execute(damage.encode())
        (what,) = await doctor(empty_database)
        if damage.startswith("drop"):
            assert what == "its queue was dropped in part"
            assert (await planned(empty_database)).applied
        else:
            assert what == "open tasks are missing in the queue"
        report = await migrate(empty_database)
        assert bool(report.applied) == damage.startswith("drop"), report
        assert await dump(empty_database) == whole
        assert (await planned(empty_database)).applied == ()
        assert await doctor(empty_database) == {}
        assert await rows(project, "select from orchestrator.differences") == []
        # A user takes one of the held tasks back.
        await project.execute("update tasks set status = 'Queued', worker_id = null where id = %s", (taken,))
        states = {row["id"]: row["state"] for row in await rows(
            project, "select task_id::text as id, state::text from orchestrator.live")}  # fmt: skip
        assert states == {back: "ready", held: "running", taken: "ready", needed: "ready", waits: "waits_for_tasks"}
        assert await agent.complete(tasks[taken]) == "fenced"
        assert (await agent.beat(tasks[held]))["cancel"] == []
        assert await agent.complete(tasks[held]) == "ok"
        assert await agent.complete(tasks[held]) == "already"
        again = {task["id"]: task for task in await other.claim(batch=9)}
        assert sorted(again) == sorted([back, taken, needed])
        assert all(task["attempt"] > numbers.get(task_id, 0) for task_id, task in again.items())
        assert [await other.complete(task) for task in again.values()] == ["ok"] * 3
        await fleet.maintain()
        (last,) = await agent.claim()
        assert (last["id"], await agent.complete(last)) == (waits, "ok")
        assert (await migrate(empty_database)).notes == ()
        assert await rows(project, "select from orchestrator.differences") == []
    finally:
        await db.close()


async def test_an_attempt_whose_agent_is_gone_is_rescued_after_the_rebuild(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """Its launch does not name it, so its lease ends; a task of a program of the user's waits as ever."""
    await migrate(empty_database)
    db, fleet, agent = await working(empty_database)
    try:
        (task_id,) = await fleet.submit()
        (task,) = await agent.claim()
        await project.execute("delete from orchestrator.live")
        await migrate(empty_database)
        assert (await fleet.fleet("rescue_overdue", p_over_s=0))["tasks"] == []
        fleet.wait(600)
        (rescued,) = (await fleet.fleet("rescue_overdue", p_over_s=0))["tasks"]
        assert rescued["id"] == task_id
        assert await agent.complete(task) == "fenced"
        (again,) = await (await fleet.agent()).claim()
        assert (again["id"], again["attempt"]) == (task_id, 2)
    finally:
        await db.close()


async def missing(url: str) -> str:
    """What `doctor database` says of tasks that are missing in the queue."""
    section = Section("database")
    await database(Settings.model_validate({"database_url": url}), section)
    (why,) = [one.why for one in section.findings if one.what == "open tasks are missing in the queue"]
    return why


async def test_rows_that_were_written_with_triggers_off_come_into_the_queue(
    project: AsyncConnection[DictRow], empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them in batches; one that the queue cannot hold, or that is locked, delays no other."""
    monkeypatch.setattr(run, "ENTER", ENTER.replace("10000", "100"))
    await migrate(empty_database)
    await project.execute("insert into tasks (task_type, status) select 'd', 'Complete' from generate_series(1, 500)")
    await project.execute("insert into tasks (task_type) values ('there')")
    await project.execute("""set session_replication_role = replica;
        insert into tasks (task_type, dedupe_key)
        select 't', nullif(i % 300, 7)::text || 'x' from generate_series(1, 302) i;
        insert into tasks (task_type, dedupe_key) values ('locked', null), ('twice', '9x');
        insert into tasks (task_type, status, worker_id) values ('theirs', 'In Progress', 'somebody');
        set session_replication_role = origin""")
    async with await psycopg.AsyncConnection.connect(empty_database) as other:
        await other.execute("select from tasks where task_type = 'locked' for update")
        monkeypatch.setattr("orchestrator.diagnostics.doctor.database.NAMED_MISSING", 304)
        why = await missing(empty_database)
        assert why == "more than 304 tasks Queued or In Progress; the leader finds them within an hour"
        notes = "\n".join((await migrate(empty_database)).notes)
    assert "301 tasks were missing in the queue, and are in it now" in notes
    assert "1 tasks are missing in the queue, locked by open transactions" in notes
    assert "3 tasks cannot be in the queue" in notes
    assert (await missing(empty_database)).startswith("4 tasks Queued or In Progress")
    await project.execute("select orchestrator.maintain_at(now())")
    (one,) = await rows(project, """select count(*) filter (where state = 'ready') as ready,
        count(*) filter (where state = 'running' and nonce is null and worker_id = 'somebody') as theirs
        from orchestrator.live""")  # fmt: skip
    assert one == {"ready": 302, "theirs": 1}
