"""Dependencies: what waits is neither claimed nor counted as demand; what can never run fails with the cause."""

import asyncio

from psycopg import AsyncConnection
from psycopg.rows import DictRow

from tests.conformance.builders import Fleet


async def test_a_task_waits_for_all_it_depends_on_and_gets_their_outputs(fleet: Fleet) -> None:
    """In the order in which it names them."""
    a, b, stitch = await fleet.submit({}, {"task_type": "other"}, {"depends_on": ["#1", "#0"], "priority": 9})
    agent = await fleet.agent()
    (demand,) = (await fleet.snapshot())["demand"]
    assert (demand["claimable"], demand["blocked"]) == (2, {"dependencies": 1, "scheduled": 0, "paused": 0})
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


async def test_a_retry_revives_what_failed_only_because_of_it(fleet: Fleet) -> None:
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
        row = await fleet.task(second)
        assert (row["status"], row["blocked"]) == (("Queued", False) if round_ % 2 else ("Failed", False))
        await fleet.call("task_cancel", p_id=second)


async def test_an_end_by_hand_counts_like_any_other(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """The rule is the table's, not the functions'."""
    a, b, c, d = await fleet.submit({}, {"depends_on": ["#0"]}, {}, {"depends_on": ["#2"]})
    await hand.execute("update tasks set status = 'Complete' where id = %s", (a,))
    await hand.execute("update tasks set status = 'Failed' where id = %s", (c,))
    assert [(await fleet.task(task_id))["status"] for task_id in (b, d)] == ["Queued", "Failed"]
    assert not (await fleet.task(b))["blocked"]


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
