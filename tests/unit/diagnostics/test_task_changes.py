"""Actions on all tasks that fit a filter, in words."""

from typing import Any

import pytest

from orchestrator.diagnostics.task_changes import cost_text, count_text, filter_text, groups_text, state, took_s


def seen(*by: tuple[str, str, int, float | None], is_all: bool = True, groups: int | None = None) -> dict[str, Any]:
    """A preview with these groups: type, status, tasks, dollars."""
    rows = [{"task_type": kind, "status": status, "tasks": n, "usd": usd} for kind, status, n, usd in by]
    known = [usd for *_, usd in by if usd is not None]
    usd = sum(known) if len(known) == len(by) else None
    return {"tasks": sum(n for _, _, n, _ in by), "is_all": is_all, "by": rows, "groups": groups or len(by), "usd": usd}


@pytest.mark.parametrize(
    ("action", "preview", "text"),
    [
        ("cancel", seen(), "No task fits now."),
        ("cancel", seen(is_all=False), "None of those tasks fits."),
        ("cancel", seen(("t", "Queued", 3, 0)), "None of them runs, so no work is lost."),
        ("cancel", seen(("t", "In Progress", 1, 1.5)), "Their running attempts have cost $1.50 so far, which is lost."),
        (
            "cancel",
            seen(("t", "Queued", 3, 0), is_all=False),
            "Their running attempts have cost at least $0.00 so far, which is lost.",
        ),
        ("retry", seen(("t", "Failed", 3, 2)), "One attempt of each costs about $2.00, as in the last seven days."),
        (
            "retry",
            seen(("t", "Failed", 3, None)),
            "What an attempt of t costs is unknown: none ended in the last seven days.",
        ),
        (
            "retry",
            seen(("t", "Failed", 3, None), ("u", "Failed", 3, 2), is_all=False),
            (
                "What an attempt of t costs is unknown: none ended in the last seven days. "
                "One attempt of each of the others costs at least about $2.00, as in the last seven days."
            ),
        ),
    ],
)
def test_what_an_action_costs_is_said(action: str, preview: dict[str, Any], text: str) -> None:
    """Also that nobody knows, and that there may be more."""
    assert cost_text(action, preview) == text


def test_tasks_are_counted_by_group() -> None:
    """Of many groups, the largest."""
    many = seen(*((f"t{n}", "Failed", 2_000, None) for n in range(9)), groups=60, is_all=False)
    assert count_text(many) == "more than 18,000 tasks"
    assert groups_text(many).startswith("2,000 Failed of type t0, 2,000 Failed of type t1, ")
    assert groups_text(many).endswith("of type t7, and 52 other groups")
    assert (count_text(seen(("t", "Queued", 1, 0))), groups_text(seen(("t", "Queued", 1, 0)))) == (
        "1 task",
        "1 Queued of type t",
    )


def test_a_filter_is_said_in_words() -> None:
    """In the order of its fields."""
    wanted = {"status": ["Queued", "In Progress"], "pool": "p", "labels": [{"a": "1"}, {"b": "2"}], "task_type": "t"}
    assert filter_text(wanted) == "Queued or In Progress, type t, pool p, label a=1, label b=2"


def test_the_time_of_a_change_counts_from_its_first_step() -> None:
    """Until it has looked at every task, or ended."""
    begin, later, end = (f"2026-01-01T00:00:{n:02}+00:00" for n in (0, 10, 30))
    row: dict[str, Any] = {"started_at": None, "walked_at": None, "ended_at": None, "outcome": None}
    assert (state(row), took_s(row, end)) == ("waits", None)
    row["started_at"] = begin
    assert (state(row), took_s(row, end)) == ("runs", 30)
    row |= {"walked_at": later, "ended_at": end, "outcome": "done"}
    assert (state(row), took_s(row, end)) == ("done", 10)
