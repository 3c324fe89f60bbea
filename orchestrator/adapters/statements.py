"""The SQL of a function call with named arguments, and the parameters of its values."""

import json
from functools import lru_cache
from typing import Any

from psycopg.types.json import Jsonb

from orchestrator.adapters.arguments import check_names, plain

ARRAYS = frozenset({"p_from"})  # list arguments that are SQL arrays; every other list or mapping is jsonb
JSON_ARGS = frozenset({
    "p_tasks", "p_token", "p_scope", "p_cursor", "p_ids", "p_agent", "p_beats", "p_health", "p_logs",
    "p_result_data", "p_results", "p_output", "p_failure", "p_handled", "p_items", "p_messages", "p_alerts",
    "p_answers", "p_pools", "p_releases", "p_task_types", "p_worker", "p_fields", "p_evidence", "p_decision",
    "p_schedule", "p_missed", "p_payload", "p_webhook", "p_busy", "p_args", "p_filter",
})  # fmt: skip
STATEMENTS = 256  # that are kept


@lru_cache(STATEMENTS)
def statement(function: str, names: tuple[str, ...]) -> bytes:
    """Compose a statement once for each set of names: composing took a fifth of a call's CPU time."""
    check_names((function, *names))
    named = [f'"{name}" => %({name})s{"::text[]" if name in ARRAYS else ""}' for name in names]
    return f'select "public"."{function}"({", ".join(named)})'.encode()


def bind(name: str, value: Any) -> Any:
    """Return a number as untyped text. The function's signature gives the type, as with PostgREST."""
    if value is None or name in ARRAYS:
        return value
    if name in JSON_ARGS:
        return Jsonb(plain(value))
    text = plain(value)
    return text if isinstance(text, str) else json.dumps(text)
