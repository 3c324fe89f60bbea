"""A user's `tasks` with many rows is adopted while the user's programs write it: none of them waits long."""

import asyncio
import sys
import time
from dataclasses import dataclass, field

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.migrate import migrate, run
from orchestrator.ports import Unavailable
from tests.db.conformance.test_schema_legacy import TASKS, TEXT, WORKERS, project, rows

__all__ = ["project"]

ROWS = 200_000
MARGIN_S = 6.0  # of a busy machine, as CI shows it
FILL = """
insert into tasks (task_type, status, attempts, created_at, dependant_on)
select 'old', case i % 10 when 0 then 'Queued' when 1 then 'In Progress' else 'Complete' end,
       case when i % 3 = 0 then null else 0 end, case when i % 5 = 0 then null else now() end,
       case when i % 100 = 0 then '00000000-0000-0000-0000-000000000001'::uuid end
  from generate_series(1, %s) i
"""
NOTES = """
create table audit (what text);
create function noted() returns trigger language plpgsql as
$$ begin insert into audit values (coalesce(new.task_type, old.task_type)); return null; end $$;
create trigger noted after insert or update or delete on tasks for each row execute function noted();
"""
STATEMENTS = (
    "insert into tasks (task_type, status) values ('mine', 'Queued')",
    "update tasks set status = 'In Progress' where task_type = 'mine' and status = 'Queued'",
    "delete from tasks where task_type = 'mine' and status = 'In Progress'",
)


@dataclass
class Writer:
    """A user's program: it inserts, changes and deletes a row, again and again, and notes how long each took."""

    url: str
    table: str = "tasks"
    waits: list[float] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until it is told to stop; any error is the test's."""
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            while not self.done.is_set():
                for statement in STATEMENTS:
                    began = time.monotonic()
                    await connection.execute(statement.replace("tasks", self.table).encode())
                    self.waits.append(time.monotonic() - began)


@pytest.fixture
async def live(project: AsyncConnection[DictRow]) -> AsyncConnection[DictRow]:
    """Such a table, with rows in which much is missing, an index for the user's queries, and a trigger."""
    await project.execute(TASKS.format(status=TEXT, extra="dependant_on uuid,").encode())
    await project.execute(WORKERS)
    await project.execute(FILL.replace("%s", str(ROWS)).encode())
    await project.execute(NOTES)
    await project.execute("create index mine on tasks (task_type) where task_type = 'mine'; analyze tasks")
    return project


async def test_no_writer_waits_longer_than_one_lock_may_take(
    live: AsyncConnection[DictRow], empty_database: str
) -> None:
    """And afterwards every open task is in the queue, and no row was updated."""
    await live.execute("create table before as select id, ctid as place, xmin::text as version from tasks")
    await live.execute("create table apart (task_type text, status text)")
    writer, apart = Writer(empty_database), Writer(empty_database, "apart")  # the second waits for the machine alone
    writing = [asyncio.create_task(one.run()) for one in (writer, apart)]
    began = time.monotonic()
    report = await migrate(empty_database)
    took = time.monotonic() - began
    for one in (writer, apart):
        one.done.set()
    await asyncio.gather(*writing)
    longest = max(writer.waits)
    sys.stdout.write(f"{ROWS} rows in {took:.1f} s; {len(writer.waits)} writes, the longest took {longest:.2f} s\n")
    stalls = 3 * max(apart.waits)  # a busy machine holds up the migration with the lock, and then the writer
    assert longest < run.LOCK_TIMEOUT_S + MARGIN_S + stalls
    assert any("tasks In Progress got a lease of one hour" in note for note in report.notes)
    noted = await rows(live, "select what, count(*) from audit group by what")
    assert noted == [{"what": "mine", "count": len(writer.waits)}]  # each write of the user's, and nothing else
    (found,) = await rows(
        live,
        """select count(*) filter (where status = 'Queued' and dependant_on is not null
                                     and q.state <> 'waits_for_tasks') as unblocked,
                  count(*) filter (where status = 'In Progress' and q.lease_expires_at is null) as unleased,
                  count(*) filter (where status in ('Queued', 'In Progress') and q.task_id is null) as missing,
                  count(*) filter (where b.place <> t.ctid or b.version <> t.xmin::text) as updated,
                  count(b.id) as before
             from tasks t left join orchestrator.live q on q.task_id = t.id left join before b on b.id = t.id
            where t.task_type = 'old'""",
    )
    assert found == {"unblocked": 0, "unleased": 0, "missing": 0, "updated": 0, "before": ROWS}
    assert await rows(live, "select from orchestrator.differences") == []
    assert await rows(live, "select 1 from pg_constraint where conrelid = 'tasks'::regclass and not convalidated") == []
    assert await rows(live, "select 1 from pg_index where indrelid = 'tasks'::regclass and not indisvalid") == []


async def test_an_index_whose_building_was_interrupted_is_built_again(
    project: AsyncConnection[DictRow], empty_database: str
) -> None:
    """An invalid index is used by no query, and IF NOT EXISTS alone would keep it."""
    await migrate(empty_database)
    await project.execute("delete from schema_migrations where version = '0032'")
    await project.execute("update pg_index set indisvalid = false where indexrelid = 'workers_cluster'::regclass")
    assert (await migrate(empty_database)).applied == ("0032",)
    (found,) = await rows(project, "select indisvalid from pg_index where indexrelid = 'workers_cluster'::regclass")
    assert found == {"indisvalid": True}


async def test_a_lock_that_is_not_to_be_had_is_named(
    project: AsyncConnection[DictRow], empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the statement that waited and the session that holds it; afterwards it goes on where it stopped."""
    monkeypatch.setattr(run, "LOCK_TIMEOUT_S", 0.1)
    monkeypatch.setattr(run, "LOCK_TRIES", 2)
    monkeypatch.setattr(run, "LOCK_PAUSE_S", 0.01)
    await project.execute(TASKS.format(status=TEXT, extra="").encode())
    async with await psycopg.AsyncConnection.connect(empty_database) as other:
        await other.execute("select 1 from tasks")
        pid = other.info.backend_pid
        with pytest.raises(
            Unavailable, match=rf"tables/0001_baseline.sql: .*alter table public.tasks.*{pid}.*on tasks"
        ):
            await migrate(empty_database)
    assert (await migrate(empty_database)).applied[0] == "0001"
