"""What a statement over many tasks costs: its triggers' work grows with the rows, also after a small statement."""

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.errors import Diagnostic
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from tests.db.conformance.builders import Fleet, limit

SMALL, LARGE = 250, 1000
MOST_GROWTH = 1.5 * LARGE / SMALL  # four times the rows are sixteen times the work if it is quadratic
STATEMENTS = {
    "a change of priority": "update tasks set priority = priority + 1 where labelled = {n}",
    "a cancellation with dependants": "update tasks set status = 'Cancelled' where labelled = {n} and first",
    "a completion with dependants": "update tasks set status = 'Complete' where labelled = {n} and first",
    "a start": "update tasks set status = 'In Progress' where labelled = {n} and first",
    "a deletion": "delete from tasks where labelled = {n}",
    "a deletion of what others need": "delete from tasks where labelled = {n} and first",
    "an insertion": """insert into tasks (task_type, params, depends_on)
                       select 'u', params, array[id] from tasks where labelled = {n} and first""",
}

FIRST = "insert into tasks (task_type, params) select 't', jsonb_build_object('n', %s::int) from generate_series(1, %s)"
SECOND = """insert into tasks (task_type, params, depends_on)
            select 't', params, array[id] from tasks where params->>'n' = %s"""


def nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The plan and all plans within it."""
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


def rows_met(plan: Mapping[str, Any]) -> float:
    """How many rows the plan's nodes returned or threw away."""
    met = 0.0
    for node in nodes(plan):
        removed = node.get("Rows Removed by Join Filter", 0) + node.get("Rows Removed by Filter", 0)
        met += node["Actual Loops"] * (node["Actual Rows"] + removed)
    return met


async def plans(hand: AsyncConnection[DictRow], statement: str) -> list[Mapping[str, Any]]:
    """The plan of a statement and those of all statements of its triggers."""
    found: list[Mapping[str, Any]] = []

    def note(notice: Diagnostic) -> None:
        _, explained, plan = (notice.message_primary or "").partition("plan:\n")
        if explained:
            found.append(json.loads(plan)["Plan"])

    hand.add_notice_handler(note)
    await hand.execute(statement.encode())
    hand.remove_notice_handler(note)
    return found


async def work(hand: AsyncConnection[DictRow], statement: str) -> float:
    """The rows that a statement and all statements of its triggers met: the same at any load of the machine."""
    return sum(map(rows_met, await plans(hand, statement)))


async def explained(hand: AsyncConnection[DictRow]) -> None:
    """Have the server tell of each statement what it met."""
    await hand.execute("load 'auto_explain'")
    for setting in ("log_min_duration = 0", "log_analyze = on", "log_timing = off", "log_nested_statements = on",
                    "log_format = json", "log_level = notice"):  # fmt: skip
        await hand.execute(f"set auto_explain.{setting}".encode())


TABLES = ("tasks", "orchestrator.live", "orchestrator.edges")


@pytest.fixture
async def emptied(hand: AsyncConnection[DictRow]) -> AsyncIterator[None]:
    """Tables that were analyzed with a few rows on many pages: plans for them look cheap, row by row."""
    for table in TABLES:
        await hand.execute(f"alter table {table} set (autovacuum_enabled = off)".encode())
    await hand.execute(FIRST, (-1, LARGE))
    await hand.execute(SECOND, ("-1",))
    await hand.execute("delete from tasks where id <> (select id from tasks where depends_on <> '{}' limit 1)")
    await hand.execute(f"analyze {', '.join(TABLES)}".encode())
    yield
    for table in TABLES:
        await hand.execute(f"alter table {table} reset (autovacuum_enabled)".encode())


async def _is_not_quadratic(hand: AsyncConnection[DictRow], statement: str) -> None:
    for number, rows in enumerate((1, SMALL, LARGE)):
        await hand.execute(FIRST, (number, rows))
        await hand.execute(SECOND, (str(number),))
    await explained(hand)
    query = statement.replace("first", "depends_on = '{}'").replace("labelled = {n}", "params->>'n' = '{n}'")
    _, small, large = [await work(hand, query.replace("{n}", str(n))) for n in range(3)]
    assert small > SMALL
    assert large < MOST_GROWTH * small, f"{small} rows, then {large}"


@pytest.mark.parametrize("statement", STATEMENTS)
async def test_a_large_statement_after_a_small_one_is_not_quadratic(
    hand: AsyncConnection[DictRow], statement: str
) -> None:
    """In the same session, whose plans were made for the small one."""
    await _is_not_quadratic(hand, STATEMENTS[statement])


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.usefixtures("emptied")
async def test_a_large_statement_on_an_emptied_queue_is_not_quadratic(
    hand: AsyncConnection[DictRow], statement: str
) -> None:
    """Whatever the statistics say."""
    await _is_not_quadratic(hand, STATEMENTS[statement])


LIMITED = """insert into tasks (task_type, concurrency_key, tenant, run_after)
             select 'u', {key}, {tenant}, {due} from generate_series(1, {n})"""
SHARED = {
    "a type": LIMITED.format(key="null", tenant="null", due="null", n="{n}"),
    "one key": LIMITED.format(key="'k'", tenant="null", due="null", n="{n}"),
    "many keys": LIMITED.format(key="generate_series", tenant="null", due="null", n="{n}"),
    "tenants": LIMITED.format(key="null", tenant="generate_series % 7", due="null", n="{n}"),
    "a time": LIMITED.format(key="null", tenant="null", due="now() + interval '1 hour'", n="{n}"),
}


@pytest.mark.parametrize("by", SHARED)
@pytest.mark.usefixtures("emptied")
async def test_an_insertion_of_limited_tasks_is_not_quadratic(
    hand: AsyncConnection[DictRow], direct: PostgresDb, by: str
) -> None:
    """Tasks that wait for something, or share their turns, on an emptied queue."""
    if by == "a type":
        await limit(Fleet(direct), "u", 100_000, "type")
    await explained(hand)
    small, large = [await work(hand, SHARED[by].replace("{n}", str(n))) for n in (SMALL, LARGE)]
    assert small > SMALL
    assert large < MOST_GROWTH * small, f"{small} rows, then {large}"


KEYED = (
    "update tasks set concurrency_key = concurrency_key || 'x' where params->>'n' = '{n}'",
    "update tasks set status = 'Cancelled' where params->>'n' = '{n}'",
    "update tasks set task_type = 'u' where params->>'n' = '{n}'",
)


@pytest.mark.parametrize("statement", KEYED)
async def test_a_change_of_many_keys_is_not_quadratic(hand: AsyncConnection[DictRow], statement: str) -> None:
    """With the plans that a connection makes for arrays of any length."""
    keyed = """insert into tasks (task_type, params, concurrency_key)
               select 't', jsonb_build_object('n', %s::int), %s || '-' || i / 2 from generate_series(1, %s) i"""
    await hand.execute("set plan_cache_mode = force_generic_plan")
    for number, rows in enumerate((1, SMALL, LARGE)):
        await hand.execute(keyed, (number, number, rows))
    await explained(hand)
    _, small, large = [await work(hand, statement.replace("{n}", str(number))) for number in range(3)]
    assert small > SMALL
    assert large < MOST_GROWTH * small, f"{small} rows, then {large}"
    # These comparisons are no rows that a plan meets.
    scans = [node for plan in await plans(hand, statement.replace("{n}", "1")) for node in nodes(plan)]
    lists = [node["Filter"] for node in scans if node["Node Type"] == "Function Scan" and "Filter" in node]
    assert [condition for condition in lists if re.search(r"(ALL|ANY) \(\$", condition)] == []
    await hand.execute("reset plan_cache_mode")


CHAIN = """insert into tasks (id, task_type, depends_on)
           select md5('{n} ' || g)::uuid, 't', case when g > 0 then array[md5('{n} ' || g - 1)::uuid] else '{}' end
             from generate_series(0, {long}) g"""
MOST_WRITES = 2.2  # of the queue's own tables, for each level of a chain


async def test_a_long_chain_is_inserted_cancelled_and_retried_in_linear_time(hand: AsyncConnection[DictRow]) -> None:
    """A few writes to the queue's own tables for each level, and not one of a user's table."""
    await explained(hand)
    for statement in (CHAIN, "select task_cancel(md5('{n} 0')::uuid)", "select task_retry(md5('{n} 0')::uuid)"):
        _, small, large = [
            await plans(hand, statement.replace("{n}", str(n)).replace("{long}", str(rows)))
            for n, rows in enumerate((1, SMALL, LARGE))
        ]
        assert sum(map(rows_met, small)) > SMALL
        assert sum(map(rows_met, large)) < MOST_GROWTH * sum(map(rows_met, small)), statement
        writes = [plan for plan in large if plan["Node Type"] == "ModifyTable"]
        assert len(writes) < MOST_WRITES * LARGE, statement
        assert len([plan for plan in writes if plan["Relation Name"] == "tasks"]) <= 1, statement


FAN = """with root as (insert into tasks (task_type, params) values ('r', jsonb_build_object('n', {n})) returning id)
         insert into tasks (task_type, depends_on) select 't', array[root.id] from root, generate_series(1, {rows})"""


async def test_the_end_of_a_task_that_many_need_is_not_quadratic(hand: AsyncConnection[DictRow]) -> None:
    """All of them fail with it."""
    for number, rows in enumerate((1, SMALL, LARGE)):
        await hand.execute(FAN.replace("{n}", str(number)).replace("{rows}", str(rows)).encode())
    await explained(hand)
    query = "update tasks set status = 'Failed' where params->>'n' = '{n}'"
    _, small, large = [await work(hand, query.replace("{n}", str(n))) for n in range(3)]
    assert small > SMALL
    assert large < MOST_GROWTH * small, f"{small} rows, then {large}"
