"""Dependencies: what waits is neither claimed nor counted as demand; what can never run fails with the cause."""

import asyncio

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from tests.db.conformance.builders import Fleet
from tests.db.conformance.consistency import broken


async def test_a_task_waits_for_all_it_depends_on_and_gets_their_outputs(fleet: Fleet) -> None:
    """In the order in which it names them."""
    a, b, stitch = await fleet.submit({}, {"task_type": "other"}, {"depends_on": ["#1", "#0"], "priority": 9})
    agent = await fleet.agent()
    (demand,) = (await fleet.snapshot())["demand"]
    assert (demand["claimable"], demand["blocked"]) == (
        2,
        {"dependencies": 1, "concurrency": 0, "scheduled": 0, "paused": 0},
    )
    first, second = await agent.claim(batch=9)
    assert [first["id"], second["id"]] == [a, b]
    await agent.complete(first, p_output_location="s3://b/a", p_result_data={"frames": 3})
    assert await agent.claim() == []
    await agent.complete(second, p_output_location="s3://b/b")
    (task,) = await agent.claim()
    assert task["id"] == stitch
    assert task["dependencies"] == [
        {"id": b, "task_type": "other", "output_location": "s3://b/b", "result_data": None},
        {"id": a, "task_type": "t", "output_location": "s3://b/a", "result_data": {"frames": 3}},
    ]


async def test_a_task_whose_dependencies_are_done_already_is_free_at_once(fleet: Fleet) -> None:
    """Submitted later, by id."""
    (first,) = await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim()
    await agent.complete(task)
    await fleet.submit({"depends_on": [first]})
    assert len(await agent.claim()) == 1


async def test_a_failure_fails_all_that_depends_on_it_in_turn(fleet: Fleet) -> None:
    """Transitively, each with its own cause; what does not depend on it goes on."""
    other, a, b, c, d = await fleet.submit(
        {}, {"max_attempts": 1, "priority": 1}, *({"depends_on": on} for on in (["#1"], ["#2"], ["#3", "#0"]))
    )
    agent = await fleet.agent()
    (task,) = await agent.claim()
    assert await agent.fail(task, code="OOM", message="no memory") == "failed"
    rows = [await fleet.task(task_id) for task_id in (a, b, c, d, other)]
    assert [row["status"] for row in rows] == ["Failed"] * 4 + ["Queued"]
    assert [row["failure_code"] for row in rows[:4]] == ["OOM"] + ["DEPENDENCY_FAILED"] * 3
    first = f"Dependency {a} (t) ended as Failed: OOM: no memory"
    assert [row["error_message"] for row in rows[1:4]] == [
        first, f"Dependency {b} (t) ended as Failed: {first}", f"Dependency {c} (t) ended as Failed: {first}"
    ]  # fmt: skip


async def test_a_cancelled_dependency_fails_its_dependants_too(fleet: Fleet) -> None:
    """Otherwise they would wait for ever."""
    a, b = await fleet.submit({}, {"depends_on": ["#0"]})
    await fleet.call("task_cancel", p_id=a)
    row = await fleet.task(b)
    assert (row["status"], row["failure_code"]) == ("Failed", "DEPENDENCY_FAILED")
    (late,) = await fleet.submit({"depends_on": [a]})
    assert (await fleet.task(late))["status"] == "Failed"


async def test_a_retry_also_requeues_tasks_that_failed_only_because_of_it(fleet: Fleet) -> None:
    """The whole chain, waiting again; what failed by itself stays."""
    a, b, c = await fleet.submit({"max_attempts": 1}, {"depends_on": ["#0"]}, {"depends_on": ["#1"]})
    agent = await fleet.agent()
    (task,) = await agent.claim()
    await agent.fail(task)
    answer = await fleet.call("task_retry", p_id=a)
    assert (answer["outcome"], sorted(answer["tasks"])) == ("requeued", sorted([a, b, c]))
    for expected in (a, b, c):
        (task,) = await agent.claim(batch=9)
        assert task["id"] == expected
        await agent.complete(task)


async def test_a_long_chain_fails_as_one(fleet: Fleet) -> None:
    """No level of it is too deep."""
    first, *rest = await fleet.submit({}, *({"depends_on": [f"#{n}"]} for n in range(1000)))
    await fleet.call("task_cancel", p_id=first)
    counts = (await fleet.call("task_list", p_status=None, p_task_type=None, p_limit=1))["counts"]
    assert counts == {"Cancelled": 1, "Failed": len(rest)}


async def test_dependencies_that_end_at_the_same_moment_free_their_dependant(fleet: Fleet) -> None:
    """Neither of two completions may take the other for unfinished."""
    agent = await fleet.agent()
    for _ in range(5):
        await fleet.submit(*({} for _ in range(8)), {"depends_on": [f"#{n}" for n in range(8)]})
        tasks = await agent.claim(batch=8)
        assert await asyncio.gather(*(agent.complete(task) for task in tasks)) == ["ok"] * 8
        await fleet.maintain()  # whatever they could not lock in time
        (last,) = await agent.claim(batch=8)
        await agent.complete(last)


async def test_a_dependant_submitted_while_its_dependency_ends_is_never_stuck(fleet: Fleet) -> None:
    """Either the submission sees the end, or the end sees the dependant."""
    agent = await fleet.agent()
    for round_ in range(15):
        (first,) = await fleet.submit({"max_attempts": 1})
        (task,) = await agent.claim()
        end = agent.complete(task) if round_ % 2 else agent.fail(task)
        _, (second,) = await asyncio.gather(end, fleet.submit({"depends_on": [first]}))
        await fleet.maintain()  # whatever they could not lock in time
        row = await fleet.task(second)
        assert row["status"] == ("Queued" if round_ % 2 else "Failed")
        await fleet.call("task_cancel", p_id=second)


async def test_an_end_by_hand_counts_like_any_other(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """The rule is the table's, not the functions'."""
    a, b, c, d = await fleet.submit({}, {"depends_on": ["#0"]}, {}, {"depends_on": ["#2"]})
    await hand.execute("update tasks set status = 'Complete' where id = %s", (a,))
    await hand.execute("update tasks set status = 'Failed' where id = %s", (c,))
    assert [(await fleet.task(task_id))["status"] for task_id in (b, d)] == ["Queued", "Failed"]
    assert (await fleet.task(b))["state"] != "waits_for_tasks"


async def test_rows_inserted_by_hand_wait_for_a_task_that_is_inserted_later(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """A project's own inserts need no order."""
    early, late = "10000000-0000-0000-0000-000000000001", "10000000-0000-0000-0000-000000000002"
    insert = "insert into tasks (id, task_type, depends_on) values (%s, 't', %s)"
    await hand.execute(insert, (early, [late]))
    agent = await fleet.agent()
    assert await agent.claim() == []
    await hand.execute(insert, (late, []))
    (task,) = await agent.claim(batch=9)
    assert task["id"] == late
    await agent.complete(task)
    assert [task["id"] for task in await agent.claim()] == [early]


async def test_a_batch_behind_a_task_that_has_failed_fails_as_a_whole(fleet: Fleet) -> None:
    """Also what waits for another one of the same batch: it must not wait for ever."""
    (lost,) = await fleet.submit()
    await fleet.call("task_cancel", p_id=lost)
    first, second, third = await fleet.submit({"depends_on": [lost]}, {"depends_on": ["#0"]}, {"depends_on": ["#1"]})
    assert [(await fleet.task(task_id))["status"] for task_id in (first, second, third)] == ["Failed"] * 3


async def test_a_dependency_deleted_after_it_completed_is_satisfied_and_hands_on_its_result(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Also while the dependant still waits for another one, and when it is claimed again."""
    first, other, second = await fleet.submit({}, {}, {"depends_on": ["#1", "#0"]})
    agent = await fleet.agent()
    one, two = await agent.claim(batch=2)
    key = f"outputs/{first}/1/frames"
    await agent.complete(one, p_output_location=f"s3://bucket/{key}", p_result_data={"frames": 3})
    await hand.execute("delete from tasks where id = %s", (first,))
    await agent.complete(two)
    await hand.execute("delete from tasks where id = %s", (other,))
    for _ in range(2):
        (task,) = await agent.claim(number=(number := next(agent.numbers)))
        assert [dependency["id"] for dependency in task["dependencies"]] == [other, first]
        assert task["dependencies"][1]["result_data"] == {"frames": 3}
        assert await agent.claim(number=number) == [task], "the same claim, asked again"
        granted = await agent.call("grants", p_items=[{"method": "GET", "key": key}])
        assert (granted["refused"], len(granted["items"])) == ([], 1)
        await fleet.fleet("retention")
        await agent.release(task)
    assert (await fleet.task(second))["status"] == "Queued"


async def test_the_result_of_a_deleted_task_is_kept_while_a_task_needs_it(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Retention removes it then; the result of a task that nobody needs is not kept at all."""
    first, _, other = await fleet.submit({}, {"depends_on": ["#0"]}, {})
    agent = await fleet.agent()
    for task in await agent.claim(batch=2):
        await agent.complete(task, p_result_data={"n": 1})
    await hand.execute("delete from tasks where id = any(%s)", ([first, other],))
    kept = "select id::text from task_results"
    await fleet.fleet("retention")
    assert [row["id"] for row in await (await hand.execute(kept)).fetchall()] == [first]
    (task,) = await agent.claim()
    await agent.complete(task)
    await fleet.fleet("retention")
    assert await (await hand.execute(kept)).fetchall() == []


async def test_a_dependency_deleted_before_it_completed_fails_its_dependants(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """With a reason of its own, and what waits for them in turn."""
    first, second, third, fourth = await fleet.submit(
        {}, {"depends_on": ["#0"]}, {"depends_on": ["#1"]}, {"depends_on": ["#0"]}
    )
    await hand.execute("delete from tasks where id = %s", (first,))
    rows = [await fleet.task(task_id) for task_id in (second, fourth, third)]
    assert [(row["status"], row["failure_code"]) for row in rows] == [
        ("Failed", "DEPENDENCY_DELETED"), ("Failed", "DEPENDENCY_DELETED"), ("Failed", "DEPENDENCY_FAILED")
    ]  # fmt: skip
    assert first in rows[0]["error_message"]


async def test_a_dependency_that_is_not_inserted_within_an_hour_fails_its_dependants(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Until then it may still come."""
    absent = "10000000-0000-0000-0000-00000000000f"
    query = "insert into tasks (task_type, depends_on) values ('t', array[%s::uuid]) returning id::text"
    (row,) = await (await hand.execute(query, (absent,))).fetchall()
    await hand.execute("update tasks set updated_at = %s where id = %s", (fleet.now, row["id"]))
    fleet.wait(1800)
    await fleet.fleet("retention")
    assert (await fleet.task(row["id"]))["status"] == "Queued"
    fleet.wait(1900)
    await fleet.fleet("retention")
    assert (await fleet.task(row["id"]))["failure_code"] == "DEPENDENCY_DELETED"


TAKES_BACK = {
    "an update": ("update tasks set status = 'Queued', worker_id = null where id = %(id)s",),
    "an update to In Progress": ("update tasks set status = 'In Progress' where id = %(id)s",),
    "a deletion": (
        "delete from tasks where id = %(id)s",
        "insert into tasks (id, task_type) values (%(id)s, 't')",
    ),
    "a truncation": (
        "create temporary table kept on commit drop as select * from tasks",
        "truncate tasks",
        "insert into tasks select * from kept",
        "update tasks set status = 'Queued', worker_id = null where id = %(id)s",
    ),
}


@pytest.mark.parametrize("way", TAKES_BACK)
async def test_a_task_waits_again_when_a_user_takes_back_the_complete_task_that_it_needs(
    fleet: Fleet, hand: AsyncConnection[DictRow], way: str
) -> None:
    """At once, and it is no demand; a task that runs already goes on, and waits if it comes back."""
    first, ready, running = await fleet.submit({}, {"depends_on": ["#0"]}, {"depends_on": ["#0"], "priority": 9})
    agent = await fleet.agent()
    (task,) = await agent.claim()
    await agent.complete(task)
    (task,) = await agent.claim()
    assert task["id"] == running
    async with hand.transaction():
        for statement in TAKES_BACK[way]:
            await hand.execute(statement.encode(), {"id": first})
    assert [(await fleet.task(i))["state"] == "waits_for_tasks" for i in (ready, running)] == [True, False]
    if way != "a truncation":
        assert await agent.release(task) == "ok"
        assert (await fleet.task(running))["state"] == "waits_for_tasks"
    (demand,) = (await fleet.snapshot())["demand"]
    assert demand["claimable"] == (way != "an update to In Progress")
    assert [task["id"] for task in await agent.claim(batch=9)] == [first] * demand["claimable"]
    rules = await broken(hand)
    assert rules == {}
    await hand.execute("update tasks set status = 'Complete' where id = %s", (first,))
    assert (await fleet.task(ready))["state"] != "waits_for_tasks"


@pytest.mark.parametrize("status", ["Failed", "Cancelled"])
@pytest.mark.parametrize("way", ["an update", "a deletion"])
async def test_a_user_who_fails_a_complete_task_fails_its_dependants_that_have_not_run(
    fleet: Fleet, hand: AsyncConnection[DictRow], way: str, status: str
) -> None:
    """Ready tasks too, and those that wait for them in turn."""
    first, second, third = await fleet.submit({}, {"depends_on": ["#0"]}, {"depends_on": ["#1"]})
    await hand.execute("update tasks set status = 'Complete' where id = %s", (first,))
    if way == "an update":
        await hand.execute("update tasks set status = %s where id = %s", (status, first))
    else:
        await hand.execute("delete from tasks where id = %s", (first,))
        insert = "insert into tasks (id, task_type, status) values (%s, 't', %s)"
        await hand.execute(insert, (first, status))
    rows = [await fleet.task(task_id) for task_id in (second, third)]
    assert [(row["status"], row["failure_code"]) for row in rows] == [("Failed", "DEPENDENCY_FAILED")] * 2
    assert f"{first} (t) ended as {status}" in rows[0]["error_message"]
    assert await broken(hand) == {}


async def test_tasks_that_wait_for_each_other_because_a_user_takes_one_back_end_with_that_reason(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """The one that was Complete needed the one that needs it."""
    rows = [{"id": numbered(1), "needs": []}, {"id": numbered(2), "needs": [numbered(1)]}]
    await hand.execute(NEEDS, (Jsonb(rows),))
    await hand.execute("update tasks set status = 'Complete' where id = %s", (numbered(1),))
    await hand.execute("update tasks set depends_on = array[%s::uuid] where id = %s", (numbered(2), numbered(1)))
    assert (await fleet.task(numbered(2)))["state"] != "waits_for_tasks"
    await hand.execute("update tasks set status = 'Queued' where id = %s", (numbered(1),))
    await fleet.maintain()
    assert [(await fleet.task(numbered(n)))["failure_code"] for n in (1, 2)] == ["DEPENDENCY_CYCLE"] * 2


NEEDS = """insert into tasks (id, task_type, depends_on)
           select n.id::uuid, 't', n.needs::uuid[] from jsonb_to_recordset(%s) n (id text, needs text[])"""


def numbered(n: int) -> str:
    """The id of this number."""
    return f"20000000-0000-0000-0000-{n:012x}"


@pytest.mark.parametrize("statements", ["one", "each its own", "an update"])
async def test_tasks_that_wait_for_each_other_end_with_that_reason(
    fleet: Fleet, hand: AsyncConnection[DictRow], statements: str
) -> None:
    """And what waits for them; what can still run is left alone."""
    (running,) = await fleet.submit()
    needs = {1: [2], 2: [3], 3: [1], 4: [3], 5: [5], 6: []}
    rows = [{"id": numbered(n), "needs": [numbered(other) for other in others]} for n, others in needs.items()]
    rows.append({"id": numbered(7), "needs": [running, numbered(6)]})
    if statements == "one":
        await hand.execute(NEEDS, (Jsonb(rows),))
    elif statements == "each its own":
        for row in rows:
            await hand.execute(NEEDS, (Jsonb([row]),))
    else:
        await hand.execute(NEEDS, (Jsonb([row | {"needs": []} for row in rows]),))
        update = "update tasks t set depends_on = n.needs::uuid[] from jsonb_to_recordset(%s) n (id text, needs text[])"
        await hand.execute(f"{update} where t.id = n.id::uuid".encode(), (Jsonb(rows),))
    await fleet.maintain()
    found = {n: await fleet.task(numbered(n)) for n in range(1, 8)}
    assert [n for n, row in found.items() if row["status"] == "Failed"] == [1, 2, 3, 4, 5]
    assert [found[n]["failure_code"] for n in (1, 2, 3, 5)] == ["DEPENDENCY_CYCLE"] * 4
    assert found[4]["failure_code"] in {"DEPENDENCY_CYCLE", "DEPENDENCY_FAILED"}
    assert await broken(hand) == {}


async def test_a_cycle_behind_a_running_task_or_of_many_tasks_ends_within_the_hour(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """What an insertion does not look for, the hourly look at all finds: in time that grows with the tasks."""
    many = 3000
    (running,) = await fleet.submit()
    rows = [{"id": numbered(n), "needs": [numbered((n + 1) % many)]} for n in range(many)]
    rows[0]["needs"] = [numbered(1), running]
    await hand.execute(NEEDS, (Jsonb(rows),))
    assert (await fleet.task(numbered(5)))["status"] == "Queued"
    await hand.execute("update tasks set status = 'Complete' where id = %s", (running,))
    await fleet.fleet("retention")
    counts = (await fleet.call("task_list", p_status=None, p_task_type=None, p_limit=1))["counts"]
    assert counts == {"Complete": 1, "Failed": many}


async def test_tasks_that_wait_for_each_other_end_also_if_they_need_a_complete_task_that_was_deleted(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Its result is kept for them; it is not what they wait for."""
    (first,) = await fleet.submit()
    rows = [{"id": numbered(1), "needs": [numbered(2), first]}, {"id": numbered(2), "needs": [numbered(1)]}]
    await hand.execute(NEEDS, (Jsonb(rows),))
    agent = await fleet.agent()
    (task,) = await agent.claim()
    await agent.complete(task)
    await hand.execute("delete from tasks where id = %s", (first,))
    await fleet.fleet("retention")
    assert [(await fleet.task(numbered(n)))["failure_code"] for n in (1, 2)] == ["DEPENDENCY_CYCLE"] * 2


async def test_a_dependant_that_a_user_completes_after_it_has_failed_needs_nothing_more(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """What it needed is kept for a retry only, whether the triggers see the write or not."""
    for role in ("origin", "replica"):
        first, second = await fleet.submit({}, {"depends_on": ["#0"]})
        await fleet.call("task_cancel", p_id=first)
        await fleet.maintain()
        assert (await fleet.task(second))["failure_code"] == "DEPENDENCY_FAILED"
        await hand.execute(f"set session_replication_role = {role}".encode())
        await hand.execute("update tasks set status = 'Complete', failure_code = null where id = %s", (second,))
        await hand.execute("reset session_replication_role")
        await hand.execute("select orchestrator.audit(1000)")
        edges = await hand.execute("select * from orchestrator.edges where task_id = %s", (second,))
        assert await edges.fetchall() == []


async def test_a_task_that_ran_while_a_user_failed_what_it_needs_fails_when_it_comes_back(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Its attempt goes on; the next one would have no input."""
    first, second = await fleet.submit({}, {"depends_on": ["#0"]})
    agent = await fleet.agent()
    (task,) = await agent.claim()
    await agent.complete(task)
    (task,) = await agent.claim()
    await fleet.maintain()
    await hand.execute("update tasks set status = 'Cancelled' where id = %s", (first,))
    assert await agent.beat(task) is not None
    assert await agent.release(task) == "ok"
    await hand.execute("select orchestrator.look_at_rechecks(1000)")  # the audit would find it, too, within an hour
    assert (await fleet.task(second))["failure_code"] == "DEPENDENCY_FAILED"


@pytest.mark.parametrize("status", ["Cancelled", "Failed"])
async def test_a_failed_task_of_which_a_user_takes_back_another_need_is_settled(
    fleet: Fleet, hand: AsyncConnection[DictRow], status: str
) -> None:
    """The queue does not look at it again and again; it is queued again only with both."""
    a, b, _ = await fleet.submit({}, {"max_attempts": 1}, {"depends_on": ["#0", "#1"]})
    agent = await fleet.agent()
    first, second = await agent.claim(batch=2)
    assert await agent.complete(first) == "ok"
    assert await agent.fail(second) == "failed"
    await hand.execute("update tasks set status = %s where id = %s", (status, a))
    assert await broken(hand) == {}
    assert await (await hand.execute("select from orchestrator.differences")).fetchall() == []
    await fleet.call("task_retry", p_id=b)
    assert [task["id"] for task in await agent.claim(batch=5)] == [b]
    await fleet.call("task_retry", p_id=a)
    assert [task["id"] for task in await agent.claim(batch=5)] == [a]
