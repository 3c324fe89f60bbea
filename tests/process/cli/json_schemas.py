"""The checked-in schemas of `--json` (docs/schemas/): every test that runs a command with --json checks its answer.

`JSON_SCHEMAS_RECORD=1 ./run test tests/process/cli -n 0` widens the schemas to what the commands answer. Look at the
difference: a number that becomes a text is an error of the command.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from orchestrator.cli.main import Commands

ROOT = Path(__file__).resolve().parents[3]
SCHEMAS = ROOT / "docs" / "schemas"
RECORDS = bool(os.environ.get("JSON_SCHEMAS_RECORD"))
DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_NAMED = 60  # keys of an object; more are names of things, such as ids
MAX_DEPTH = 3  # of objects whose keys are checked; those within are rows that other commands show
# Objects whose keys are names of things: pools, states, codes, settings.
MAPS = frozenset(
    (
        *("pools", "counts", "states", "health", "agent", "evidence", "metadata", "detail", "inputs", "params"),
        *("result_data", "progress", "labels", "cost_by_kind", "by_kind", "blocked", "paused", "workers_by_status"),
        *("limits", "scale_limits", "policies"),
        *("task_counts", "rpc_function_tests", "usual", "stages", "output_object", "settings", "prices"),
        *("adapter_detail", "smoke_evidence"),
    )
)


AMOUNT = re.compile(r"usd|price|seconds|share|_s$|p50|p95|per_")  # a number that may have decimals
NEVER_NULL = frozenset(
    (
        "",
        "schema_version",
        "id",
        "worker_id",
        "status",
        "pool",
        "outcome",
        "task_type",
        "kind",
        "created_at",
        "what",
        "why",
    )
)


def command_of(arguments: Sequence[str]) -> str:
    """Return the name of the schema: `list`, `tasks-list`."""
    words = [word for word in arguments if not word.startswith("-")]
    group = Commands()
    is_group = isinstance(group.get_command(click.Context(group), words[0]), click.Group)
    return "-".join(words[: 2 if is_group else 1])


def load(name: str) -> dict[str, Any]:
    """Return a schema. FileNotFoundError if there is none."""
    schema: dict[str, Any] = json.loads((SCHEMAS / f"{name}.json").read_text())
    return schema


def check(arguments: Sequence[str], document: Mapping[str, Any]) -> None:
    """Check an answer against its schema. Raises AssertionError with each place that differs."""
    name = "errors" if "errors" in document else command_of(arguments)
    path = SCHEMAS / f"{name}.json"
    if RECORDS:
        known = json.loads(path.read_text()) if path.exists() else None
        if known and "oneOf" in known:
            return  # a person keeps it
        merged = _merged(known, _seen(document))
        made = {"$schema": DIALECT, "title": f"orchestrator {name.replace('-', ' ', 1)} --json", **merged}
        SCHEMAS.mkdir(exist_ok=True)
        path.write_text(text_of(made))
        return
    assert path.exists(), f"{path} is missing: see {__file__}"
    differs = list(faults(json.loads(path.read_text()), document, "$"))
    assert not differs, (name, differs)


def text_of(schema: Mapping[str, Any]) -> str:
    """Return the content of a file: each list of names, and each plain type, in one line."""
    text = re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found[0].split()), json.dumps(schema, indent=1))
    return re.sub(r'\{\s*("type": (?:"\w+"|\[[^]]*\]))\s*\}', r"{\1}", text) + "\n"


def faults(schema: Mapping[str, Any], value: Any, where: str) -> Iterator[str]:
    """Yield each difference. It knows the keywords that the schemas use: type, required, properties, items, oneOf.

    Of several forms, the differences from the nearest one are those of the value.
    """
    if forms := schema.get("oneOf"):
        yield from min((list(faults(form, value, where)) for form in forms), key=len)
    kinds = schema.get("type")
    if kinds is not None and _kind(value) not in _kinds(kinds):
        yield f"{where} is {_kind(value)}, not {kinds}"
    if isinstance(value, dict):
        yield from (f"{where}.{name} is missing" for name in schema.get("required", ()) if name not in value)
        known, other = schema.get("properties", {}), schema.get("additionalProperties", {})
        for name, one in value.items():
            yield from faults(known.get(name, other if isinstance(other, dict) else {}), one, f"{where}.{name}")
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from faults(schema.get("items", {}), one, f"{where}[{number}]")


def _kinds(kinds: Any) -> set[str]:
    named = {kinds} if isinstance(kinds, str) else set(kinds)
    return named | ({"integer"} if "number" in named else set())


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", dict: "object", list: "array", type(None): "null"}
    return names[type(value)]


def _seen(value: Any, name: str = "", depth: int = 1) -> dict[str, Any]:
    """Return the schema of one value. Nothing is concluded from a null, and most columns may be null."""
    if value is None:
        return {}
    kind = "number" if _kind(value) == "integer" and AMOUNT.search(name) else _kind(value)
    made: dict[str, Any] = {"type": kind if isinstance(value, list) or name in NEVER_NULL else [kind, "null"]}
    if isinstance(value, dict):
        if name in MAPS or len(value) > MAX_NAMED or depth > MAX_DEPTH:
            return made
        made["required"] = sorted(value)
        made["properties"] = {key: _seen(value[key], key, depth + 1) for key in sorted(value)}
    elif isinstance(value, list):
        for one in value:
            made["items"] = _merged(made.get("items"), _seen(one, "", depth))
    return made


def _merged(one: Mapping[str, Any] | None, other: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that both values fit."""
    if one is None:
        return dict(other)
    if "type" not in one or "type" not in other:
        found = one if "type" in one else other
        return {**found, "type": sorted({*_listed(found["type"]), "null"})} if "type" in found else {}
    names = {*_listed(one["type"]), *_listed(other["type"])}
    names -= {"integer"} if "number" in names else set()
    made: dict[str, Any] = {"type": sorted(names) if len(names) > 1 else names.pop()}
    objects = [schema for schema in (one, other) if "properties" in schema]
    if objects:
        made["required"] = sorted(set.intersection(*(set(schema["required"]) for schema in objects)))
        keys = sorted({key for schema in objects for key in schema["properties"]})
        made["properties"] = {key: _both(objects, key) for key in keys}
    lists = [schema["items"] for schema in (one, other) if "items" in schema]
    if lists:
        made["items"] = _merged(lists[0], lists[-1])
    return made


def _both(objects: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    found = [schema["properties"][key] for schema in objects if key in schema["properties"]]
    return _merged(found[0], found[-1])


def _listed(kinds: Any) -> list[str]:
    return [kinds] if isinstance(kinds, str) else list(kinds)
