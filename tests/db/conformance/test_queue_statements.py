"""Every form of a user's statement on `tasks` is followed by the queue in the same way."""

import asyncio
import re
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from tests.db.conformance.builders import Agent, Fleet
from tests.db.conformance.consistency import broken

COPIED = "$5\tcopied\t{}\n$6\tcopied\t{$0}\n$7\tcopied\t{$5,$6}\n"
START = """
    insert into tasks (id, task_type, depends_on)
    values ('$0', 't', '{}'), ('$1', 't', '{$0}'), ('$2', 't', '{$1}'),
           ('$3', 't', '{}'), ('$4', 't', '{$3,$0}')"""
STATEMENTS = {
    "merge: insert, update and delete": """
        merge into tasks t using (values ('$0'::uuid, 'Complete'), ('$3', 'Cancelled'), ('$2', 'gone'),
                                         ('$5', 'Queued'), ('$6', 'Queued')) s (id, status) on t.id = s.id
        when matched and s.status = 'gone' then delete
        when matched then update set status = s.status
        when not matched and s.status <> 'gone' then insert (id, task_type, status, depends_on)
             values (s.id, 'merged', s.status, case when s.id = '$6' then array['$0'::uuid] else '{}' end)""",
    "merge: back to the queue": """
        merge into tasks t using (select '$0'::uuid as id) s on t.id = s.id
        when matched then update set status = 'Queued', depends_on = array['$3'::uuid]""",
    "on conflict do update": """
        insert into tasks (id, task_type, status, depends_on)
        values ('$0', 't', 'Queued', '{}'), ('$5', 'new', 'Queued', '{$0}')
        on conflict (id) do update set status = 'Complete', priority = 7""",
    "on conflict do nothing": """
        insert into tasks (id, task_type, depends_on)
        values ('$0', 't', '{}'), ('$5', 'new', '{$4}') on conflict do nothing""",
    "writing CTEs": """
        with ended as (update tasks set status = 'Complete' where id = '$0' returning id),
             gone as (delete from tasks where id = '$3' returning id)
        insert into tasks (task_type, depends_on) select 'new', array[id] from ended
        union all select 'lost', array[id] from gone""",
    "an update with a join": "update tasks t set priority = d.priority + 1, run_after = now() from tasks d "
                             "where d.id = any (t.depends_on)",
    "a deletion with a join": "delete from tasks t using tasks d where d.depends_on @> array[t.id]",
    "an updatable view": "update seen set status = 'Cancelled' where depends_on = '{}'",
}  # fmt: skip
PLANS = ("force_generic_plan", "force_custom_plan")


def named(statement: str) -> bytes:
    """Return the statement with ids in place of $0 to $7."""
    return re.sub(r"\$([0-7])", r"00000000-0000-0000-0000-00000000000\1", statement).encode()


@pytest.fixture
async def fleet(direct: PostgresDb) -> Fleet:
    """A fleet that we lead; over one transport, since this is about what the database does."""
    fleet = Fleet(direct, now=datetime.now(UTC))  # as users' statements have it
    fleet.term = (await fleet.lead())["term"]
    return fleet


async def finished(fleet: Fleet, agent: Agent) -> None:
    """Do all that can be done, an hour and more later too."""
    for _ in range(2):
        await fleet.maintain()
        while tasks := await agent.claim(batch=3):
            for task in tasks:
                assert await agent.complete(task) == "ok"
        fleet.wait(2 * 3600)
        fleet.term = (await fleet.lead())["term"]
        await fleet.fleet("retention")


async def rows(hand: AsyncConnection[DictRow], query: str) -> list[Any]:
    """What a query finds."""
    return list(await (await hand.execute(query.encode())).fetchall())


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("statement", STATEMENTS)
async def test_a_statement_of_any_form_leaves_the_queue_consistent(
    fleet: Fleet, hand: AsyncConnection[DictRow], statement: str, plan: str
) -> None:
    """Also when it is run again, and prepared with a plan for any values."""
    agent = await fleet.agent()
    await hand.execute("create or replace temp view seen as select * from tasks")
    await hand.execute(f"set plan_cache_mode = {plan}".encode())
    await hand.execute(named(START))
    for _ in range(2):
        await hand.execute(named(STATEMENTS[statement]), prepare=True)
        assert await broken(hand) == {}
    await finished(fleet, agent)
    assert await broken(hand) == {}
    assert await rows(hand, "select id, status from tasks where status in ('Queued', 'In Progress')") == []


async def test_copy_brings_tasks_in(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """With dependencies on each other and on what is there."""
    agent = await fleet.agent()
    await hand.execute(named(START))
    async with hand.cursor().copy("copy tasks (id, task_type, depends_on) from stdin") as copy:
        await copy.write(named(COPIED))
    assert await broken(hand) == {}
    await finished(fleet, agent)
    assert await rows(hand, "select id from tasks where status <> 'Complete'") == []
    assert await broken(hand) == {}


REPLICATED = {
    "inserted": START,
    "completed": "update tasks set status = 'Complete' where id = '$0'",
    "failed": "update tasks set status = 'Failed' where id = '$0'",
    "deleted": "delete from tasks where id = '$0'",
    "truncated": "truncate tasks",
    "requeued": "update tasks set status = 'Queued' where status = 'In Progress'",
    "rescheduled": "update tasks set run_after = now() - interval '1 day', priority = 9",
    "ended": "update tasks set status = 'Cancelled' where status = 'In Progress'",
}


@pytest.mark.parametrize("how", REPLICATED)
async def test_rows_that_were_written_without_triggers_are_found_by_the_audit(
    fleet: Fleet, hand: AsyncConnection[DictRow], how: str
) -> None:
    """As a replication tool or a restore writes them (session_replication_role)."""
    agent = await fleet.agent()
    if how != "inserted":
        await hand.execute(named(START))
        await agent.claim()
    await hand.execute("set session_replication_role = replica")
    await hand.execute(named(REPLICATED[how]))
    await hand.execute("set session_replication_role = origin")
    assert await broken(hand) == {}
    fleet.wait(2 * 3600)
    fleet.term = (await fleet.lead())["term"]
    await fleet.fleet("rescue_overdue", p_over_s=0)
    await finished(fleet, agent)
    assert await broken(hand) == {}
    assert await rows(hand, "select id, status from tasks where status in ('Queued', 'In Progress')") == []


async def test_the_audit_leaves_out_no_page(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """However few it reads at once."""
    await hand.execute("set session_replication_role = replica")
    await hand.execute("insert into tasks (task_type) select 't' from generate_series(1, 1000)")
    await hand.execute("set session_replication_role = origin")
    (size,) = await rows(hand, "select pg_relation_size('tasks') / current_setting('block_size')::int as pages")
    assert size["pages"] > 4
    for _ in range(size["pages"]):
        await hand.execute("select orchestrator.audit(1)")
    (row,) = await rows(hand, "select count(*) as n from orchestrator.live")
    assert row["n"] == 1000


async def test_two_cancellations_of_one_task_at_once_are_one(
    fleet: Fleet, hand: AsyncConnection[DictRow], database: str
) -> None:
    """And the dependants of both fail once."""
    for _ in range(20):
        first, *_ = await fleet.submit({}, *[{"depends_on": ["#0"]}] * 5)

        async def cancel(task_id: str) -> str:
            async with await psycopg.AsyncConnection.connect(database, autocommit=True) as user:
                row = await (await user.execute("select task_cancel(%s)->>'outcome'", (task_id,))).fetchone()
            assert row is not None
            return str(row[0])

        assert sorted(await asyncio.gather(cancel(first), cancel(first))) == ["already", "cancelled"]
    await fleet.snapshot()
    assert await rows(hand, "select id from tasks where status = 'Queued'") == []
    assert await broken(hand) == {}
