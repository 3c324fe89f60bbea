"""Submitting: many at once, all or nothing, idempotent, every mistake named."""

import asyncio
import re
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from orchestrator.ports import BadArgument, Db
from testbed.tasks import ended
from tests.db.conformance.builders import SOON_S, START, Fleet

UUID = "20000000-0000-0000-0000-000000000001"
BAD_LABELS: list[tuple[Any, str]] = [
    (["a"], "labels are a JSON array, not an object"),
    ({f"k{n}": "v" for n in range(17)}, "17 labels, the limit is 16"),
    ({"k" * 64: "v"}, "has 64 characters"),
    ({"": "v"}, "has 0 characters"),
    ({"a=b": "v"}, 'contains "="'),
    ({"a\x1b": "v"}, "a control character"),
    ({"show": 7}, 'value of "show" is a JSON number, not a text'),
    ({"show": None}, 'value of "show" is a JSON null, not a text'),
    ({"show": "v" * 201}, 'value of "show" has 201 characters'),
]


async def test_defaults_and_everything_given(fleet: Fleet) -> None:
    """What is not said has a sensible value; what is said is kept."""
    given = {"id": UUID, "task_type": "x", "params": {"a": [1]}, "pool": "p", "priority": -3, "max_attempts": 7}
    given |= {"run_after": START.isoformat(), "dedupe_key": "k", "timeout_s": 1.5}
    given |= {"tenant": "acme", "labels": {"show": "7", "stage": "final"}}
    plain, full = await fleet.submit({}, given)
    row = await fleet.task(plain)
    assert (row["pool"], row["priority"], row["max_attempts"], row["params"]) == ("default", 0, 3, {})
    assert (row["status"], row["attempts"], row["depends_on"], row["run_after"]) == ("Queued", 0, [], None)
    assert (row["tenant"], row["labels"]) == (None, None)
    row = await fleet.task(full)
    assert {key: row[key] for key in given} == given


async def test_a_live_dedupe_key_stands_for_the_task_that_has_it(fleet: Fleet) -> None:
    """In one batch, in the next one, and until that task has ended."""
    submit = {"task_type": "t", "dedupe_key": "film-7"}
    answer = (await fleet.call("task_submit", p_tasks=[submit, submit]))["tasks"]
    assert [row["created"] for row in answer] == [True, False]
    assert answer[0]["id"] == answer[1]["id"]
    again = (await fleet.call("task_submit", p_tasks=[submit]))["tasks"]
    assert again == [{"id": answer[0]["id"], "created": False}]
    agent = await fleet.agent()
    (task,) = await agent.claim()
    assert (await fleet.call("task_submit", p_tasks=[submit]))["tasks"] == again
    await agent.complete(task)
    (new,) = (await fleet.call("task_submit", p_tasks=[submit]))["tasks"]
    assert new["created"]


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_dedupe_key_that_a_user_takes_from_a_task_is_free(
    fleet: Fleet, hand: AsyncConnection[DictRow], is_running: bool
) -> None:
    """Also while the task runs."""
    (first,) = await fleet.submit(dedupe_key="film-7")
    if is_running:
        await (await fleet.agent()).claim()
    await hand.execute("update tasks set dedupe_key = 'film-8'")
    (second,) = await fleet.submit(dedupe_key="film-7")
    assert second != first
    assert await fleet.submit(dedupe_key="film-8") == [first]


async def test_an_id_is_submitted_once(fleet: Fleet) -> None:
    """The reply was lost, and the caller says it all again."""
    tasks = [{"task_type": "t", "id": UUID}, {"task_type": "t", "depends_on": [UUID], "dedupe_key": "second"}]
    first = (await fleet.call("task_submit", p_tasks=tasks))["tasks"]
    again = (await fleet.call("task_submit", p_tasks=tasks))["tasks"]
    assert [row["id"] for row in first] == [row["id"] for row in again]
    assert [row["created"] for row in again] == [False, False]


async def test_submissions_of_one_key_at_the_same_moment_make_one_task(fleet: Fleet) -> None:
    """And what depends on it in each batch depends on that one."""
    batch = [{"task_type": "t", "dedupe_key": "same"}, {"task_type": "u", "depends_on": ["#0"]}]
    answers = await asyncio.gather(*(fleet.call("task_submit", p_tasks=batch) for _ in range(8)))
    firsts = [answer["tasks"][0] for answer in answers]
    assert len({row["id"] for row in firsts}) == 1
    assert [row["created"] for row in firsts].count(True) == 1
    for answer in answers:
        assert (await fleet.task(answer["tasks"][1]["id"]))["depends_on"] == [firsts[0]["id"]]


@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        ({}, "task 1 has no task_type"),
        ({"task_type": ""}, "task 1 has no task_type"),
        ({"task_type": "t", "colour": 1}, "unknown key 'colour'.*known are: id, task_type"),
        ({"task_type": "t", "params": [1]}, "params is not valid"),
        ({"task_type": "t", "params": {"x": "y" * 1_100_000}}, "params is not valid"),
        ({"task_type": "t", "pool": "a b"}, 'pool is not valid.*got "a b"'),
        ({"task_type": "t", "pool": "x\n"}, "pool is not valid"),
        ({"task_type": "t", "priority": 1.5}, "priority is not valid"),
        ({"task_type": "t", "priority": 10**12}, "priority is not valid"),
        ({"task_type": "t", "max_attempts": 0}, "max_attempts is not valid.*from 1 to 100"),
        ({"task_type": "t", "run_after": "tomorrow-ish"}, "run_after is not valid"),
        ({"task_type": "t", "run_after": "infinity"}, "run_after is not valid"),
        ({"task_type": "t", "run_after": "9999-12-31T23:59:59-14:00"}, "run_after is not valid"),
        ({"task_type": "t", "run_after": "0001-01-01T00:00:00+14:00"}, "run_after is not valid"),
        ({"task_type": "t", "timeout_s": -1}, "timeout_s is not valid"),
        ({"task_type": "t", "id": "seven"}, "id is not valid"),
        ({"task_type": "t", "dedupe_key": ""}, "dedupe_key is not valid"),
        ({"task_type": "t", "tenant": ""}, "tenant is not valid"),
        ({"task_type": "t", "tenant": "x" * 201}, "tenant is not valid"),
        *(({"task_type": "t", "labels": labels}, f"labels is not valid.*{why}") for labels, why in BAD_LABELS),
        ({"task_type": "t", "depends_on": "#0"}, "depends_on is not valid"),
        ({"task_type": "t", "depends_on": ["#1"]}, "depends on '#1', which does not exist"),
        ({"task_type": "t", "depends_on": ["#7"]}, "depends on '#7', which does not exist"),
        ({"task_type": "t", "depends_on": [UUID]}, f"depends on '{UUID}', which does not exist"),
        ({"task_type": "t", "depends_on": ["x'y"]}, "which does not exist"),
        ("t", "task 1 must be a JSON object"),
    ],
)
async def test_a_mistake_is_named_and_nothing_is_submitted(fleet: Fleet, task: Any, complaint: str) -> None:
    """The error has what, why and the fix. The valid task before it is not submitted either."""
    with pytest.raises(BadArgument, match=f"(?s){complaint}"):
        await fleet.call("task_submit", p_tasks=[{"task_type": "t"}, task])
    assert (await fleet.snapshot())["queued_total"] == 0


@pytest.mark.parametrize("tasks", [None, {"task_type": "t"}, "t", [{"task_type": "t"}] * 2001])
async def test_an_invalid_list_of_tasks_is_refused(fleet: Fleet, tasks: Any) -> None:
    """And so is a list beyond the bound."""
    with pytest.raises(BadArgument, match="p_tasks must be a list"):
        await fleet.call("task_submit", p_tasks=tasks)


async def test_a_full_batch_is_accepted(fleet: Fleet) -> None:
    """Two thousand with keys and a last one that depends on the rest."""
    tasks = [{"task_type": "t", "dedupe_key": f"k{n}"} for n in range(1999)]
    tasks.append({"task_type": "t", "depends_on": [f"#{n}" for n in range(1999)]})  # type: ignore[dict-item]
    answer = (await fleet.call("task_submit", p_tasks=tasks))["tasks"]
    assert len({row["id"] for row in answer}) == 2000


async def test_a_list_is_newest_first_with_counts_of_all(fleet: Fleet) -> None:
    """Filtered by status and type, bounded."""
    old, new = await fleet.submit({"task_type": "a"}, {"task_type": "b"})
    await fleet.call("task_cancel", p_id=old)

    async def listed(status: str | None, task_type: str | None, limit: int) -> list[str]:
        answer = await fleet.call("task_list", p_status=status, p_task_type=task_type, p_limit=limit)
        if task_type is None:
            assert answer["counts"] == {"Cancelled": 1, "Queued": 1}
        return [row["id"] for row in answer["tasks"]]

    assert await listed(None, None, 10) == [new, old]
    assert await listed(None, None, 1) == [new]
    assert await listed("Cancelled", None, 10) == [old]
    assert await listed(None, "b", 10) == [new]
    assert await listed("Queued", "a", 10) == []


async def test_a_worker_waiting_for_tasks_is_notified_when_one_can_be_claimed(fleet: Fleet, db: Db) -> None:
    """By pool: inserted, freed by its dependency, requeued; not when it only waits."""
    heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def listen() -> None:
        async for event in db.notifications():
            if event[0] != "orchestrator_fleet":
                heard.put_nowait(event)

    async def next_heard() -> tuple[str, str]:
        async with asyncio.timeout(SOON_S):
            return await heard.get()

    listener = asyncio.create_task(listen())
    assert await next_heard() == ("connected", "")
    agent = await fleet.agent(pool="pa")
    await fleet.submit({"pool": "pa"}, {"pool": "pb", "depends_on": ["#0"]})
    assert await next_heard() == ("orchestrator_tasks", "pa")
    (task,) = await agent.claim()
    await agent.release(task)
    assert await next_heard() == ("orchestrator_tasks", "pa")
    (task,) = await agent.claim()
    await agent.complete(task)
    assert await next_heard() == ("orchestrator_tasks", "pb")
    await fleet.submit({"pool": "marker"})
    assert await next_heard() == ("orchestrator_tasks", "marker")  # and nothing in between
    await ended(listener)


async def test_a_projects_own_insert_needs_nothing_but_a_type(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """The rest has defaults, as before."""
    await hand.execute("insert into tasks (task_type, params) values ('t', '{\"a\": 1}')")
    agent = await fleet.agent()
    (task,) = await agent.claim()
    assert task["params"] == {"a": 1}


@pytest.mark.parametrize(("labels", "why"), BAD_LABELS)
async def test_labels_that_are_not_valid_are_refused_in_a_plain_write(
    hand: AsyncConnection[DictRow], labels: Any, why: str
) -> None:
    """An insert and an update say which label, and what is allowed; the limits themselves are fine."""
    most = {"k" * 61 + f"{n:02}": "é" * 200 for n in range(16)}
    await hand.execute("insert into tasks (task_type, tenant, labels) values ('t', %s, %s)", ("x" * 200, Jsonb(most)))
    for statement in ("insert into tasks (task_type, labels) values ('t', %s)", "update tasks set labels = %s"):
        with pytest.raises(psycopg.Error, match="labels are not valid") as refusal:
            await hand.execute(statement, (Jsonb(labels),))
        assert re.search(why, str(refusal.value.diag.message_detail))
        assert "at most 16 keys" in str(refusal.value.diag.message_hint)
    with pytest.raises(psycopg.Error, match="tenant is not valid"):
        await hand.execute("update tasks set tenant = ''")
    await hand.execute("update tasks set labels = null, tenant = null")


async def test_tasks_with_labels_of_another_shape_from_before_can_still_be_changed(
    hand: AsyncConnection[DictRow],
) -> None:
    """A project had these columns already: a write of another column is not refused."""
    async with hand.transaction():
        await hand.execute("alter table tasks disable trigger tasks_inserted")
        await hand.execute("insert into tasks (task_type, tenant, labels) values ('t', '', '[1]')")
        await hand.execute("alter table tasks enable trigger tasks_inserted")
    await hand.execute("update tasks set params = '{}'")


# What a generated client (Supabase's, for one) takes for required: no default, not nullable, not generated.
REQUIRED = """
    select column_name from information_schema.columns
     where table_schema = 'public' and table_name = 'tasks'
       and is_nullable = 'NO' and column_default is null and is_identity = 'NO' and is_generated = 'NEVER'
"""


async def test_a_generated_client_may_leave_out_all_but_the_type(hand: AsyncConnection[DictRow]) -> None:
    """What a plain insert may omit is optional in the types that are generated from the catalogue."""
    assert await (await hand.execute(REQUIRED)).fetchall() == [{"column_name": "task_type"}]


async def test_no_pool_means_the_pool_of_the_type(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """In an insert that leaves it out or says NULL, and in an update to NULL; a task that names one keeps it."""
    await fleet.fleet("declare_pools", p_pools=[{"task_type": "film", "pool": "big", "max_attempts": 7}])
    await hand.execute("insert into tasks (task_type) values ('film')")
    await hand.execute("insert into tasks (task_type, pool, max_attempts, timeout_s) values ('film', null, null, null)")
    await hand.execute("insert into tasks (task_type, pool, max_attempts) values ('film', 'small', 2)")
    query = "select pool, max_attempts from orchestrator.live order by created_at"
    kept = await (await hand.execute(query)).fetchall()
    assert [tuple(row.values()) for row in kept] == [("big", 7), ("big", 7), ("small", 2)]
    await hand.execute("update tasks set pool = null, max_attempts = null")
    kept = await (await hand.execute(query)).fetchall()
    assert [tuple(row.values()) for row in kept] == [("big", 7)] * 3
