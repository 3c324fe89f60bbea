"""The limits of a task, and where each comes from: the task itself, its type, or the default (guard U32)."""

from collections.abc import Mapping
from typing import Any

DEFAULTS: Mapping[str, float] = {"max_attempts": 3, "timeout_s": 3600}  # of task_rows.sql and of the agent


def limits(task: Mapping[str, Any], declared: Mapping[str, Any] | None) -> str:
    """Return one line. `declared`: the row of `task_types` of its type, or None."""
    attempts, timeout = (_sourced(name, task, declared or {}) for name in ("max_attempts", "timeout_s"))
    counted = f"{attempts[0]} attempt{'' if attempts[0] == '1' else 's'}"
    return f"at most {counted} ({attempts[1]}), {timeout[0]} s each ({timeout[1]})"


def _sourced(name: str, task: Mapping[str, Any], declared: Mapping[str, Any]) -> tuple[str, str]:
    own, by_type, default = task.get(name), declared.get(name), DEFAULTS[name]
    value = float(default if own is None else own)
    if by_type is not None and value == float(by_type):
        return f"{value:g}", "its type"
    return f"{value:g}", "default" if by_type is None and value == default else "its own"
