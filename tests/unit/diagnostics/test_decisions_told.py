"""How decisions are told: equal ones as one line, and what was blocked in a time."""

from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrator.core.blocked import Blocked, BlockedReason
from orchestrator.diagnostics import blocked_times
from orchestrator.diagnostics.decision_lines import folded

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def full(count: int = 1, limit: int = 2) -> dict[str, Any]:
    """A pool has all the workers that it may have."""
    return Blocked(BlockedReason.MAX_ACTIVE, count, detail={"limit": limit}).as_json()


def no_list() -> dict[str, Any]:
    """RunPod does not answer."""
    return Blocked(BlockedReason.NO_POD_LIST, 1, detail={"error": "HTTP 503"}).as_json()


def decision(minute: int, *blocked: Any, pool: str = "a", target: int = 2, actions: tuple[str, ...] = ()) -> Any:
    """A row of `decisions`, so many minutes after noon."""
    at = (NOON + timedelta(minutes=minute)).isoformat()
    return {"id": minute, "pool": pool, "at": at, "rule": f"rule {minute}", "target": target, "blocked": list(blocked),
            "inputs": {"claimable": minute, "blocked": {"paused": 1}}, "actions": list(actions)}  # fmt: skip


def test_decisions_that_differ_in_numbers_alone_are_one_line() -> None:
    """With the newest of them, how many they are, and since when; also with those of another pool between them."""
    rows = [decision(5, full(3)), decision(4, pool="b"), decision(3, full(2)), decision(2, full(1)), decision(1)]
    lines = folded(rows)
    assert [(one.row["id"], one.count, one.first_at) for one in lines] == [
        (5, 3, rows[3]["at"]), (4, 1, rows[1]["at"]), (1, 1, rows[4]["at"])
    ]  # fmt: skip
    assert lines[0].blocked[0].text.startswith("3 spawns blocked")
    assert lines[0].inputs == [("claimable", "5"), ("blocked paused", "1")]


def test_a_decision_with_an_action_has_a_line_of_its_own() -> None:
    """And another target, or another reason, says something else."""
    spawn = ("spawn gpu-1",)
    rows = [
        decision(5, actions=spawn),
        decision(4, actions=spawn),
        decision(3),
        decision(2, target=1),
        decision(1, full()),
    ]
    assert [one.count for one in folded(rows)] == [1] * 5


def test_a_decision_blocks_until_the_next_one_of_its_pool() -> None:
    """Also one from before the time. Numbers are those of the newest."""
    rows = [decision(50), decision(40, full(5), no_list()), decision(10, full(3), actions=("spawn gpu-1",)),
            decision(-30, full(1))]  # fmt: skip
    (told,) = blocked_times.explained(rows, NOON, NOON + timedelta(hours=1))
    assert (told.decisions, told.idle, told.actions, told.last["id"]) == (3, 2, ["spawn gpu-1"], 50)
    most, least = told.blocked
    assert (most.seconds, most.decisions, most.since) == (50 * 60, 3, NOON)
    assert (most.until, least.until) == (NOON + timedelta(minutes=50),) * 2
    assert (least.seconds, least.since) == (10 * 60, NOON + timedelta(minutes=40))
    assert most.reason.text.startswith("5 spawns blocked")


def test_a_reason_that_goes_and_comes_counts_the_time_between_not() -> None:
    """A remark, which blocks nothing, is not told. Each pool is told alone."""
    rows = [decision(40, full()), decision(20, full(0)), decision(10, pool="b"), decision(0, full())]
    told = blocked_times.explained(rows, NOON, NOON + timedelta(hours=1))
    assert [(one.pool, len(one.blocked)) for one in told] == [("a", 1), ("b", 0)]
    (blocked,) = told[0].blocked
    assert (blocked.seconds, blocked.since, blocked.until) == (40 * 60, NOON, NOON + timedelta(hours=1))
