"""The first migration of a project with rows: it fires no trigger of the user's, and starts no unwanted work."""

from collections.abc import AsyncIterator

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.migrate import migrate, missing_sql, removed
from tests.db.conformance.builders import Fleet
from tests.db.conformance.test_schema import NOW
from tests.db.conformance.test_schema_legacy import ENUM, MAKE_ENUM, ROWS, TASKS, TEXT, WORKERS, project, rows

__all__ = ["project"]

FILL = """
insert into tasks (task_type, status, attempts, created_at, dependant_on)
select 'old', (array['Queued', 'In Progress', 'Complete', 'Failed'])[1 + i % 4]::{status},
       case when i % 3 = 0 then null else 0 end, case when i % 5 = 0 then null else now() end,
       case when i % 7 = 0 then '00000000-0000-0000-0000-000000000001'::uuid end
  from generate_series(1, 6000) i;
insert into workers (id, instance_type, status) select 'old-' || i, 'gpu', 'active' from generate_series(1, 300) i;
"""
# A user's triggers of each kind: one fires also on a replica, and one is switched off.
TRIGGERS = """
create table audit (what text, op text);
create function noted() returns trigger language plpgsql as
$$ begin insert into audit values (tg_name, tg_op); return coalesce(new, old); end $$;
create trigger b_row before insert or update or delete on {table} for each row execute function noted();
create trigger a_row after update on {table} for each row execute function noted();
create trigger a_statement after update on {table} for each statement execute function noted();
create trigger b_statement before update on {table} for each statement execute function noted();
create constraint trigger late after update on {table} deferrable initially deferred for each row
    execute function noted();
create trigger always after update on {table} for each row execute function noted();
create trigger never after update on {table} for each row execute function noted();
alter table {table} enable always trigger always;
alter table {table} disable trigger never;
"""
MODES = """select tgname, tgenabled::text from pg_trigger g join pg_proc p on p.oid = g.tgfoid
            where p.proname = 'noted' order by 1"""
OLD = """
insert into tasks (task_type, status, worker_id, attempts, created_at, updated_at, generation_started_at)
select 'old', 'In Progress', 'gone', 1, now() - i * interval '10 days', now() - i * interval '10 days', null
  from generate_series(1, 4) i;
insert into tasks (task_type, status, worker_id, attempts) values ('new', 'In Progress', 'theirs', 1);
insert into workers (id, instance_type, status) values ('theirs', 'gpu', 'active');
"""


@pytest.fixture(params=[TEXT, pytest.param(ENUM, marks=pytest.mark.full)], ids=["text", "enum"])
async def filled(request: pytest.FixtureRequest, project: AsyncConnection[DictRow]) -> AsyncConnection[DictRow]:
    """A project with rows that need every kind of completion."""
    status = str(request.param)
    if status == ENUM:
        await project.execute(MAKE_ENUM)
    await project.execute(TASKS.format(status=status, extra="dependant_on uuid,").encode())
    await project.execute(WORKERS)
    await project.execute(FILL.format(status="text" if status == TEXT else "task_status").encode())
    return project


@pytest.mark.parametrize("way", ["migrate", "printed"])
@pytest.mark.parametrize("table", ["tasks", "workers"])
async def test_no_trigger_of_the_users_fires(
    filled: AsyncConnection[DictRow], empty_database: str, table: str, way: str
) -> None:
    """For no row and no statement; afterwards each trigger is as it was, and every row is complete."""
    await filled.execute(TRIGGERS.format(table=table).encode())
    modes = await rows(filled, MODES)
    assert {row["tgenabled"] for row in modes} == {"O", "A", "D"}
    if way == "migrate":
        await migrate(empty_database)
    else:
        await filled.execute((await missing_sql(empty_database, NOW)).encode())
    assert await rows(filled, "select what, op, count(*) from audit group by 1, 2") == []
    assert await rows(filled, MODES) == modes
    (found,) = await rows(
        filled,
        """select count(*) filter (where attempts is null or t.created_at is null) as incomplete,
                  count(*) filter (where depends_on <> array_remove(array[dependant_on], null)) as unfollowed,
                  count(*) filter (where (q.state = 'waits_for_tasks')
                                         <> (status = 'Queued' and dependant_on is not null)) as unblocked,
                  count(*) filter (where status = 'In Progress' and lease_expires_at is null) as unleased
             from tasks t left join orchestrator.live q on q.task_id = t.id""",
    )
    assert found == {"incomplete": 0, "unfollowed": 0, "unblocked": 0, "unleased": 0}
    assert await rows(filled, "select from workers where status <> 'terminated'") == []
    await filled.execute(f"update {table} set status = status".encode())  # noqa: S608  one of two words
    assert await rows(filled, "select from audit")


@pytest.fixture
async def fleet(project: AsyncConnection[DictRow], empty_database: str) -> AsyncIterator[Fleet]:
    """A fleet on a migrated project with tasks In Progress: four of long ago, and one of now."""
    await project.execute(TASKS.format(status=TEXT, extra="").encode())
    await project.execute(WORKERS)
    await project.execute(OLD)
    report = await migrate(empty_database)
    notes = "\n".join(report.notes)
    assert "1 tasks In Progress got a lease of one hour" in notes
    assert "4 tasks In Progress have not changed for a day: no worker starts for them" in notes
    assert "except 4 that had not changed for a day" in notes
    db = await PostgresDb.open(empty_database)
    fleet = Fleet(db)
    fleet.now = (await rows(project, "select now() as at"))[0]["at"]
    fleet.term = (await fleet.lead())["term"]
    yield fleet
    await db.close()


async def running(fleet: Fleet) -> int:
    """How many tasks the planner counts as running or ready, each of which a worker would be started for."""
    demand = (await fleet.snapshot())["demand"]
    return sum(one["running"] + one["claimable"] for one in demand)


async def test_tasks_of_an_earlier_installation_start_no_worker(
    fleet: Fleet, project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """What ran a moment ago may still run there: only when its hour is over it is queued. Old ones stay as they are."""
    assert await running(fleet) == 0
    fleet.wait(3000)
    assert await running(fleet) == 0
    assert (await fleet.fleet("rescue", p_worker_id=None))["tasks"] == []
    fleet.wait(600)
    (one,) = (await fleet.fleet("rescue", p_worker_id=None))["tasks"]
    assert one["outcome"] == "requeued"
    assert await running(fleet) == 1
    for _ in range(2):
        fleet.wait(30 * 86400)
        assert (await fleet.fleet("rescue_overdue", p_over_s=0))["tasks"] == []
        await fleet.fleet("retention")
        assert await running(fleet) == 1
    (old, *_) = await rows(project, "select id from tasks where task_type = 'old'")
    found = await fleet.call("fleet_task_explain", p_fleet="default", p_task_id=old["id"])
    assert found["holder"]["held_by"] == "nobody"


async def test_old_tasks_are_queued_again_on_request(
    fleet: Fleet, project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """By `migrate --requeue-held`, or by the user's own statement; then they run."""
    one = "select id from tasks where task_type = 'old' limit 1"
    await project.execute(f"update tasks set status = 'Queued' where id = ({one})".encode())  # noqa: S608
    await migrate(empty_database, requeue_held=True)
    assert await rows(project, "select from tasks where status = 'In Progress' and task_type = 'old'") == []
    agent = await fleet.agent()
    tasks = await agent.claim(batch=9)
    assert [task["task_type"] for task in tasks].count("old") == 4
    assert await running(fleet) >= 4
    assert [await agent.complete(task) for task in tasks] == ["ok"] * len(tasks)


# The user's own statements find `kinds` without its schema.
CHECKED = """
create table kinds as select task_type as kind from tasks union select id from workers;
create function known(what text) returns boolean language plpgsql as
$$ begin return exists (select from kinds where kind = what); end $$;
alter table tasks add constraint is_known check (known(task_type));
alter table workers add constraint is_known check (known(id))"""


@pytest.mark.parametrize("way", ["migrate", "printed"])
async def test_a_check_of_the_users_finds_its_tables(
    project: AsyncConnection[DictRow], empty_database: str, way: str
) -> None:
    """Each existing row is checked again when it is completed, and again when `migrate --remove` puts workers back."""
    await project.execute(TASKS.format(status=TEXT, extra="").encode())
    await project.execute(WORKERS)
    await project.execute(ROWS)
    await project.execute(CHECKED)
    if way == "migrate":
        await migrate(empty_database)
    else:
        await project.execute((await missing_sql(empty_database, NOW)).encode())
    assert await rows(project, "select from workers where status <> 'terminated'") == []
    await removed(empty_database)
    before = ["active", "error", "terminated"]
    assert [row["status"] for row in await rows(project, "select status from workers order by id")] == before
    assert len(await rows(project, "select from pg_constraint where conname = 'is_known' and convalidated")) == 2
