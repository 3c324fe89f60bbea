"""The SQL of a function call with named arguments, and the parameters of its values."""

import json
from functools import lru_cache
from typing import Any

from psycopg.types.json import Jsonb

from orchestrator.adapters.arguments import check_names, plain
from orchestrator.ports import EncodedJson

ARRAYS = frozenset({"p_from"})  # list arguments that are SQL arrays; every other list or mapping is jsonb
JSON_ARGS = frozenset({
    "p_tasks", "p_token", "p_scope", "p_cursor", "p_ids", "p_agent", "p_beats", "p_health", "p_logs",
    "p_result_data", "p_results", "p_output", "p_failure", "p_handled", "p_items", "p_messages", "p_alerts",
    "p_answers", "p_pools", "p_releases", "p_task_types", "p_worker", "p_fields", "p_evidence", "p_decision",
    "p_schedule", "p_missed", "p_conditions", "p_payload", "p_webhook", "p_bill", "p_busy", "p_days", "p_owners",
    "p_args", "p_filter", "p_session", "p_rows", "p_review",
})  # fmt: skip
STATEMENTS = 256  # that are kept


@lru_cache(STATEMENTS)
def statement(function: str, names: tuple[str, ...], *, apart: str | None = None) -> bytes:
    """Compose a statement once for each set of names: composing took a fifth of a call's CPU time.

    `apart`: the key of the answer that is a second column, instead of a part of the first.
    """
    check_names((function, *names))
    named = [f'"{name}" => %({name})s{"::text[]" if name in ARRAYS else ""}' for name in names]
    call = f'"public"."{function}"({", ".join(named)})'
    if apart is None:
        return f"select {call}".encode()
    check_names((apart,))
    others = f"(select json_object_agg(e.key, e.value) from json_each(a) e where e.key <> '{apart}')"  # noqa: S608
    return f"select {others}, a->'{apart}' from (select {call} as a offset 0) c".encode()  # noqa: S608 checked names


def bind(name: str, value: Any) -> Any:
    """Return a number as untyped text. The function's signature gives the type, as with PostgREST."""
    if value is None or name in ARRAYS:
        return value
    if isinstance(value, EncodedJson):
        return value.text
    if name in JSON_ARGS:
        return Jsonb(plain(value))
    text = plain(value)
    return text if isinstance(text, str) else json.dumps(text)
