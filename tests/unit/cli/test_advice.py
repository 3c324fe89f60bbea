"""The actions of a report, as a person reads them."""

from typing import Any

from orchestrator.cli.commands.diagnose import advised
from tests.unit.cli.test_hostile_lines import lines as shown

AT = "2026-11-23T12:00:00+00:00"


def advice(kind: str, number: int, priority: str = "HIGH") -> dict[str, Any]:
    """One recommendation."""
    text = {"kind": kind, "priority": priority, "category": "Workers", "issue": f"{kind} {number}", "detail": ""}
    return text | {"subject": f"gpu-{number}", "action": f"explain gpu-{number}"}


def test_fifty_workers_with_one_problem_do_not_fill_the_screen() -> None:
    """Three are shown, the others counted; what comes after them keeps its number."""
    found = [advice("silent", n) for n in range(50)] + [advice("other", n) for n in range(3)]
    report = {"timestamp": AT, "recommendations": [*found, advice("silent", 9, "LOW")]}
    lines = [line.strip() for line in shown(*advised(report))]
    assert [line for line in lines if line and not line.startswith("fix: ")] == [
        "1. [HIGH] Workers: silent 0", "2. [HIGH] Workers: silent 1", "3. [HIGH] Workers: silent 2",
        "… and 47 more of this kind; --json has all",
        "51. [HIGH] Workers: other 0", "52. [HIGH] Workers: other 1", "53. [HIGH] Workers: other 2",
        "54. [LOW] Workers: silent 9",
    ]  # fmt: skip


def test_actions_of_one_kind_with_different_fixes_are_all_shown() -> None:
    """Four workers that are stuck in four stages have four causes."""
    found = [advice("stuck", n) | {"action": f"raise the deadline of stage {n}"} for n in range(4)]
    lines = shown(*advised({"timestamp": AT, "recommendations": found}))
    assert sum("] Workers: stuck" in line for line in lines) == 4
    assert not any("more of this kind" in line for line in lines)


def test_further_lines_of_an_action_begin_under_its_text() -> None:
    """On a narrow terminal, the numbers stay free on the left."""
    found = advice("S3", 1) | {"issue": "2 workers run on another continent " * 3, "detail": "gpu-1, " * 20}
    screen = shown(*advised({"timestamp": AT, "recommendations": [found]}), columns=80)
    assert [line[:3] for line in screen if line] == ["1. ", *["   "] * 4]
