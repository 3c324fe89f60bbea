"""The trace of a task: kept if it is one, ignored with a reason if not, and never a reason to refuse work."""

from typing import Any

import pytest

from tests.db.conformance.builders import Fleet

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_an_agent_gets_the_trace(fleet: Fleet) -> None:
    """In every attempt, as it was submitted."""
    (task_id,) = await fleet.submit({"traceparent": TRACE})
    agent = await fleet.agent()
    (task,) = await agent.claim()
    assert (task["id"], task["traceparent"]) == (task_id, TRACE)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "it has 0 characters, not 55"),
        (TRACE * 1_000, "it has 55000 characters, not 55"),
        (TRACE.upper(), "in lower case"),
        (TRACE.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32), "other than zero"),
        (TRACE.replace("00f067aa0ba902b7", "0" * 16), "other than zero"),
        (TRACE.replace("00-", "ff-", 1), "it is not 00-"),
        (TRACE[:-1] + "\n", "it is not 00-"),
        ("x" * 55, "it is not 00-"),
        (7, "it is not a text"),
        ({"a": 1}, "it is not a text"),
    ],
)
async def test_an_invalid_trace_is_ignored_and_reported(fleet: Fleet, given: Any, why: str) -> None:
    """The other tasks of the batch keep theirs."""
    tasks = [{"task_type": "t", "traceparent": given}, {"task_type": "t", "traceparent": TRACE}, {"task_type": "t"}]
    bad, good, none = (await fleet.call("task_submit", p_tasks=tasks))["tasks"]
    assert why in bad["ignored"]
    assert ("ignored" in good, "ignored" in none) == (False, False)
    traces = [(await fleet.task(one["id"]))["traceparent"] for one in (bad, good, none)]
    assert traces == [None, TRACE, None]


async def test_a_row_that_a_user_writes_is_checked_too(fleet: Fleet, hand: Any) -> None:
    """The statement succeeds."""
    await hand.execute("insert into tasks (task_type, traceparent) values ('t', 'nonsense'), ('t', %s)", (TRACE,))
    await hand.execute("update tasks set traceparent = traceparent || 'x' where traceparent is not null")
    shown = (await fleet.call("task_list", p_status=None, p_task_type=None, p_limit=9))["tasks"]
    claimed = await (await fleet.agent()).claim(batch=2)
    assert [task["traceparent"] for task in (*shown, *claimed)] == [None] * 4
