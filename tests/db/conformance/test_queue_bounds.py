"""What no worker could read: refused where it enters, and alone in its failure where it entered another way."""

import json
from datetime import datetime
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from orchestrator.ports import BadArgument
from tests.db.conformance.builders import FLEET, Fleet

DEPTH = 2_000
NESTED = '{"a":' + "[" * DEPTH + "]" * DEPTH + "}"
AT_THE_LIMIT = '{"a":' + "[" * 64 + "]" * 64 + "}"
BEYOND_IT = '{"a":' + "[" * 65 + "]" * 65 + "}"
SPOILT = {
    "nested": NESTED,
    "just too deep": BEYOND_IT,
    "in objects": '{"a":' * 100 + "1" + "}" * 100,
    "a long number": '{"a": [1, {"b": 1e5000}]}',
    "a long negative number": '{"a": -1e4300}',
    "very long numbers": '{"a": [' + ",".join(["1e131071"] * 20) + "]}",
}
UNSEEN = """
    insert into tasks (task_type, params, pool, max_attempts) values ('bad', %s::jsonb, 'default', 3) returning id::text
"""
SUBMIT = "select task_submit(jsonb_build_array(jsonb_build_object('task_type', 't', 'params', %s::jsonb)))"
INSERT = "insert into tasks (task_type, params, priority) values ('bad', %s::jsonb, 9) returning id::text"

TOO_MANY = """update tasks set depends_on = array(select gen_random_uuid() from generate_series(1, 10001))
               where priority = 1"""
MANY = """insert into tasks (task_type, depends_on) select 't', array_agg(gen_random_uuid())
            from generate_series(1, 9000), generate_series(1, 5) k group by k"""
CALLS = 20


async def entered(hand: AsyncConnection[DictRow], params: str) -> str:
    """The id of a task that got past the triggers."""
    async with hand.transaction():
        await hand.execute("alter table tasks disable trigger user")
        row = await (await hand.execute(UNSEEN, (params,))).fetchone()
        await hand.execute("alter table tasks enable trigger user")
    assert row is not None
    return str(row["id"])


@pytest.mark.parametrize("how", SPOILT)
async def test_a_task_that_no_worker_could_read_is_refused_at_its_insertion(
    fleet: Fleet, hand: AsyncConnection[DictRow], how: str
) -> None:
    """By a submission, an insert and an update, with the limit in the message; the queue is as it was."""
    with pytest.raises(psycopg.Error, match=r"params (cannot be read|is too large)"):
        await hand.execute(INSERT, (SPOILT[how],))
    with pytest.raises(psycopg.Error, match="params is not valid") as refusal:
        await hand.execute(SUBMIT, (SPOILT[how],))
    assert "64 levels" in str(refusal.value.diag.message_hint)
    (task_id,) = await fleet.submit()
    with pytest.raises(psycopg.Error):
        await hand.execute("update tasks set params = %s::jsonb", (SPOILT[how],))
    assert [task["id"] for task in await (await fleet.agent()).claim(batch=9)] == [task_id]


async def test_a_submission_that_is_too_large_or_too_deep_is_refused(fleet: Fleet) -> None:
    """Through the port as through SQL; the limit itself is fine."""
    for params in (json.loads(BEYOND_IT), {"x": "y" * 1_048_576}):
        with pytest.raises(BadArgument):
            await fleet.submit(params=params)
    (task_id,) = await fleet.submit(params=json.loads(AT_THE_LIMIT))
    (task,) = await (await fleet.agent()).claim()
    assert (task["id"], task["params"]) == (task_id, json.loads(AT_THE_LIMIT))


async def test_other_columns_that_a_claim_carries_are_bounded(hand: AsyncConnection[DictRow]) -> None:
    """The type, and how many tasks one may depend on."""
    spoilt = {
        "task_type": "repeat('t', 201)",
        "task_type, params": "'t', jsonb_build_object('x', repeat('y', 1048576))",
        "task_type, depends_on": "'t', array_fill(gen_random_uuid(), array[10001])",
    }
    for columns, values in spoilt.items():
        with pytest.raises(psycopg.Error, match=r"too (long|large)"):
            await hand.execute(f"insert into tasks ({columns}) values ({values})".encode())  # noqa: S608


@pytest.mark.parametrize("how", SPOILT)
async def test_an_unreadable_row_inserted_another_way_fails_alone(
    fleet: Fleet, hand: AsyncConnection[DictRow], how: str
) -> None:
    """It would be claimed first; those of its batch are claimed, and every reader of the queue goes on."""
    bad = await entered(hand, SPOILT[how])
    await fleet.maintain(3)  # the audit finds what no trigger saw
    good = await fleet.submit(count=3)
    assert {task["id"] for task in await (await fleet.agent()).claim(batch=10)} == set(good)
    await fleet.maintain(1)
    row = await fleet.task(bad)
    assert (row["status"], row["failed_at_point"]) == ("Failed", "Claiming")
    assert row["failure_code"] in ("INPUTS_UNREADABLE", "INPUTS_TOO_LARGE")
    listed = await fleet.call("task_list", p_status=None, p_task_type=None, p_limit=10)
    assert {one["id"] for one in listed["tasks"]} == {bad, *good}
    said = await fleet.call("fleet_task_explain", p_fleet=FLEET, p_task_id=bad)
    assert said["task"]["id"] == bad
    assert (await fleet.snapshot())["queued_total"] == 0


async def test_a_deep_result_fails_only_what_would_be_given_it(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """A result that a user wrote into the row of a dependency."""
    (first,) = await fleet.submit()
    second, other = await fleet.submit({"depends_on": [first]}, {})
    result: Any = Jsonb(None, dumps=lambda _: NESTED)
    await hand.execute("update tasks set status = 'Complete', result_data = %s where id = %s", (result, first))
    assert [task["id"] for task in await (await fleet.agent()).claim(batch=10)] == [other]
    await fleet.maintain(1)
    assert (await fleet.task(second))["failure_code"] == "INPUTS_UNREADABLE"
    assert (await fleet.task(first))["status"] == "Complete"


TIMEOUTS = ("NaN", "Infinity", "-Infinity", "-5", "0", "2592001")


@pytest.mark.parametrize("timeout_s", TIMEOUTS)
async def test_an_invalid_timeout_is_refused_at_its_insertion(
    fleet: Fleet, hand: AsyncConnection[DictRow], timeout_s: str
) -> None:
    """By an insert and an update, as task_submit refuses it."""
    with pytest.raises(psycopg.Error, match="timeout_s is not valid"):
        await hand.execute("insert into tasks (task_type, timeout_s) values ('t', %s::numeric)", (timeout_s,))
    (task_id,) = await fleet.submit(timeout_s=5)
    with pytest.raises(psycopg.Error, match="timeout_s is not valid"):
        await hand.execute("update tasks set timeout_s = %s::numeric", (timeout_s,))
    (task,) = await (await fleet.agent()).claim()
    assert (task["id"], float(task["timeout_s"])) == (task_id, 5)


@pytest.mark.parametrize("timeout_s", TIMEOUTS)
async def test_a_timeout_that_got_past_the_triggers_counts_as_none(
    fleet: Fleet, hand: AsyncConnection[DictRow], timeout_s: str
) -> None:
    """No agent gets it; other columns of the row can still be written."""
    (task_id,) = await fleet.submit()
    await hand.execute("set session_replication_role = replica")
    await hand.execute("update tasks set timeout_s = %s::numeric", (timeout_s,))
    await hand.execute("set session_replication_role = origin")
    await hand.execute("update tasks set params = '{}', priority = 1")
    agent = await fleet.agent()
    (task,) = await agent.claim(number=1)
    (again,) = await agent.claim(number=1)
    assert [(one["id"], one["timeout_s"]) for one in (task, again)] == [(task_id, None)] * 2


async def test_a_dependency_that_is_null_is_refused_where_it_enters(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """By an insert and an update."""
    with pytest.raises(psycopg.Error, match="depends_on contains NULL"):
        await hand.execute("insert into tasks (task_type, depends_on) values ('t', '{null}')")
    await fleet.submit()
    with pytest.raises(psycopg.Error, match="depends_on contains NULL"):
        await hand.execute("update tasks set depends_on = '{null}'")


async def test_too_many_dependencies_that_got_past_the_triggers_harm_no_other_task(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """A call of the leader that takes them in would exceed its time, again and again."""
    (queued,) = await fleet.submit(priority=1, depends_on=await fleet.submit(priority=2))
    await hand.execute("set session_replication_role = replica")
    await hand.execute(TOO_MANY)
    await hand.execute(
        "insert into tasks (task_type, depends_on) select 'new', depends_on from tasks where priority = 1"
    )
    await hand.execute("insert into tasks (task_type) values ('other')")
    await hand.execute("set session_replication_role = origin")
    agent = await fleet.agent()
    (first,) = await agent.claim()
    await fleet.maintain()
    assert await (await hand.execute("select count(*) as n from orchestrator.edges")).fetchall() == [{"n": 1}]
    assert await agent.complete(first) == "ok"
    assert [task["task_type"] for task in await agent.claim(batch=9)] == ["other"]
    await fleet.settle()
    assert (await fleet.task(queued))["failure_code"] == "INPUTS_TOO_LARGE"


async def test_many_dependencies_from_a_restore_enter_the_queue_a_part_at_a_time(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Each call of the leader is short."""
    await hand.execute("set session_replication_role = replica")
    await hand.execute(MANY)
    await hand.execute("set session_replication_role = origin")
    seen = [0]
    for _ in range(CALLS):  # of which the first may read pages of rows that are gone
        await fleet.maintain(1)
        (row,) = await (await hand.execute("select count(*)::int as n from orchestrator.edges")).fetchall()
        assert seen[-1] <= row["n"] <= seen[-1] + 20_000
        seen.append(row["n"])
    assert seen[-1] == 45_000


@pytest.mark.parametrize("column", ["result_data", "progress", "output_location"])
async def test_an_enormous_result_of_a_users_program_is_refused(hand: AsyncConnection[DictRow], column: str) -> None:
    """Each list of tasks would have it, and the server's memory would end."""
    value = sql.SQL("repeat('x', 20000000)" if column == "output_location" else "to_jsonb(repeat('x', 20000000))")
    insert = sql.SQL("insert into tasks (task_type, {}) values ('t', {})").format(sql.Identifier(column), value)
    update = sql.SQL("update tasks set {} = {}").format(sql.Identifier(column), value)
    with pytest.raises(psycopg.Error, match=f"{column}.* is too large"):
        await hand.execute(insert)
    await hand.execute("insert into tasks (task_type) values ('t')")
    with pytest.raises(psycopg.Error, match=f"{column}.* is too large"):
        await hand.execute(update)


async def test_an_enormous_message_is_cut(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """A failure is always stored."""
    await fleet.submit()
    await hand.execute("update tasks set status = 'Failed', error_message = repeat('x', 20000000)")
    (shown,) = (await fleet.call("task_list", p_status=None, p_task_type=None, p_limit=1))["tasks"]
    assert len(shown["error_message"]) == 4_000


async def test_an_enormous_result_from_before_the_bound_stops_no_claim_of_its_task(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Only a new value is measured."""
    await fleet.submit()
    agent = await fleet.agent()
    await hand.execute("set session_replication_role = replica")
    await hand.execute("update tasks set result_data = to_jsonb(repeat('x', 20000000))")
    await hand.execute("set session_replication_role = origin")
    (task,) = await agent.claim()
    assert await agent.fail(task) == "requeued"


@pytest.mark.parametrize("at", ["infinity", "-infinity", "20000-01-01", "0044-03-15 BC"])
@pytest.mark.parametrize("column", ["run_after", "created_at"])
async def test_a_time_that_python_cannot_read_is_brought_into_range(
    fleet: Fleet, hand: AsyncConnection[DictRow], column: str, at: str
) -> None:
    """One of them would end every list of tasks."""
    await hand.execute("insert into tasks (task_type) values ('t')")
    name = sql.Identifier(column)
    await hand.execute(sql.SQL("insert into tasks (task_type, {}) values ('t', %s)").format(name), (at,))
    await hand.execute(sql.SQL("update tasks set {} = %s").format(name), (at,))
    rows = (await fleet.call("task_list", p_status=None, p_task_type=None, p_limit=9))["tasks"]
    assert {datetime.fromisoformat(row[column]).year for row in rows} <= {1900, 9000}
    assert len(rows) == 2
