"""Adoption of a user's own table of 10 million rows, while the user's application writes it."""

import asyncio
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from orchestrator.migrate import migrate
from testbed.services.postgres import EmbeddedPostgres

TRIES = 3
ROWS = int(os.environ.get("BENCH_ADOPT_ROWS", "10000000"))  # finished tasks
QUEUED = ROWS // 100
WRITERS = 4
ALONE_S = 3.0  # for which the application writes before the migration begins
SAMPLE = 10_000  # rows whose versions are compared
GOALS = {
    "longest_wait_s": ("<=", 1.0),
    "rows_updated": ("<=", 0.0),
    "triggers_fired": ("<=", 0.0),
    "open_tasks_lost": ("<=", 0.0),
}
TOLD = ("adopted_s", "added_mb")
Connection = psycopg.AsyncConnection[TupleRow]
# A project's own table, with a trigger that counts each write.
TABLES: LiteralString = """
create table tasks (
    id uuid primary key default gen_random_uuid(), task_type text not null, params jsonb not null default '{}',
    status text not null default 'Queued' check (status in ('Queued', 'In Progress', 'Complete', 'Failed')),
    worker_id text, attempts int default 0, output_location text, error_message text,
    created_at timestamptz default now(), updated_at timestamptz default now(), result_data jsonb);
create table fired (what text);
create function noted() returns trigger language plpgsql as
    $$ begin insert into public.fired values (tg_op); return new; end $$"""
FILL: LiteralString = """
insert into tasks (task_type, params, status, created_at, result_data)
select 'old', jsonb_build_object('clip', n), status, now() - n * interval '1 second',
       case status when 'Complete' then jsonb_build_object('frames', n) end
  from (select n, case when n %% 101 = 0 then 'Queued' else 'Complete' end as status from generate_series(1, %s) n) r"""
TRIGGER: LiteralString = """
create trigger noted after insert or update or delete on tasks for each row execute function noted();
create table sample as select id, ctid as place, xmin::text as version from tasks limit 0"""
FILL_SAMPLE = "insert into sample select id, ctid, xmin::text from tasks tablesample system (%s) limit %s"
UPDATED = """
select (select count(*) from sample s join tasks t on t.id = s.id where (t.ctid, t.xmin::text) <> (s.place, s.version)),
       (select count(*) from fired),
       (select count(*) from tasks t where t.status = 'Queued'
           and not exists (select from orchestrator.live q where q.task_id = t.id))"""
SIZE = "select pg_database_size(current_database())"
WRITES: tuple[LiteralString, ...] = (
    "insert into tasks (task_type) values ('mine') returning id",
    "update tasks set status = 'In Progress', worker_id = 'mine' where id = %s",
    "update tasks set status = 'Complete', result_data = '{}' where id = %s",
)


@dataclass
class Application:
    """The user's programs: each inserts a task and changes it twice, again and again."""

    url: str
    waits: list[float] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until it is told to stop."""
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            while not self.done.is_set():
                row = await self._write(connection, WRITES[0])
                for statement in WRITES[1:]:
                    await self._write(connection, statement, *row)

    async def _write(self, connection: Connection, statement: LiteralString, *values: Any) -> TupleRow:
        began_s = time.monotonic()
        cursor = await connection.execute(statement, values)
        self.waits.append(time.monotonic() - began_s)
        return await cursor.fetchone() or () if cursor.description else ()


async def measure(work: Path, tries: int) -> dict[str, Any]:
    """Return medians of some adoptions, each of a copy of one database."""
    async with EmbeddedPostgres(work / "data", durable=False, keep=False) as server:
        await _fill(server.url)
        results = [await _adopted(server, number) for number in range(tries)]
    figures: dict[str, Any] = {"rows": ROWS, "queued": QUEUED, "writers": WRITERS}
    return figures | {name: statistics.median(one[name] for one in results) for name in results[0]}


async def _fill(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as owner:
        await owner.execute(TABLES)
        await owner.execute(FILL, (ROWS + QUEUED,))
        await owner.execute("vacuum (freeze, analyze) tasks")
        await owner.execute(TRIGGER)
        await owner.execute(FILL_SAMPLE, (min(100.0, 200.0 * SAMPLE / ROWS), SAMPLE))
        await owner.execute("checkpoint")


async def _adopted(server: EmbeddedPostgres, number: int) -> dict[str, float]:
    name = f"copy_{number}"
    async with await psycopg.AsyncConnection.connect(server.url_of("postgres"), autocommit=True) as owner:
        copy = sql.SQL("create database {} template orchestrator strategy file_copy")
        await owner.execute(copy.format(sql.Identifier(name)))
        try:
            return await _measured(server.url_of(name))
        finally:
            await owner.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


async def _measured(url: str) -> dict[str, float]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as owner:
        programs = [Application(url) for _ in range(WRITERS)]
        writing = [asyncio.create_task(one.run()) for one in programs]
        await asyncio.sleep(ALONE_S)
        alone = [len(one.waits) for one in programs]
        (before,) = await (await owner.execute(SIZE)).fetchone() or (0,)
        began_s = time.monotonic()
        await migrate(url)
        adopted_s = time.monotonic() - began_s
        for one in programs:
            one.done.set()
        await asyncio.gather(*writing)
        (after,) = await (await owner.execute(SIZE)).fetchone() or (0,)
        updated, fired, lost = await (await owner.execute(UPDATED)).fetchone() or (0, 0, 0)
    during = [wait for one, n in zip(programs, alone, strict=True) for wait in one.waits[n:]]
    return {
        "longest_wait_s": max(during),
        "longest_wait_before_s": max(wait for one, n in zip(programs, alone, strict=True) for wait in one.waits[:n]),
        "writes_meanwhile": len(during),
        "adopted_s": adopted_s,
        "added_mb": (after - before) / 1e6,
        "rows_updated": updated,
        "triggers_fired": fired - sum(len(one.waits) for one in programs),
        "open_tasks_lost": lost,
    }
