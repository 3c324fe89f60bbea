"""A task's own limit goes before its type's, and that before the default."""

from typing import Any

import pytest

from orchestrator.diagnostics.task_limits import limits


@pytest.mark.parametrize(
    ("task", "declared", "said"),
    [
        ({"max_attempts": 3, "timeout_s": None}, None, "at most 3 attempts (default), 3600 s each (default)"),
        ({"max_attempts": 5, "timeout_s": 60}, None, "at most 5 attempts (its own), 60 s each (its own)"),
        (
            {"max_attempts": 2, "timeout_s": 7200.0}, {"max_attempts": 2, "timeout_s": 7200},
            "at most 2 attempts (its type), 7200 s each (its type)",
        ),
        (
            {"max_attempts": 3, "timeout_s": 7200.0}, {"max_attempts": 2, "timeout_s": 3600},
            "at most 3 attempts (its own), 7200 s each (its own)",
        ),
        (
            {"max_attempts": 2, "timeout_s": None}, {"max_attempts": 2, "timeout_s": None},
            "at most 2 attempts (its type), 3600 s each (default)",
        ),
    ],
)  # fmt: skip
def test_each_limit_names_its_source(task: dict[str, Any], declared: dict[str, Any] | None, said: str) -> None:
    """As `explain <task>` shows it."""
    assert limits(task, declared) == said
