"""The OpenAPI 3.1 document of the API, made from the table of operations."""

import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from orchestrator import __version__
from orchestrator.web.api.models import ProblemShown
from orchestrator.web.api.operations import Operation
from orchestrator.web.api.problems import MEDIA_TYPE

EVERYWHERE = (400, 401, 403, 404, 413, 429, 500, 502, 503)  # refusals of every operation
WITH_BODY = (408, 415, 422)
SAID = {
    400: "The request cannot be read",
    401: "The token is missing or not valid",
    403: "The token may not do this",
    404: "There is no such thing for this token, or the API is off",
    408: "The body did not arrive in time",
    409: "It is not in a state for this",
    412: "It has changed: If-Match names another version",
    413: "The request is too large",
    415: "The body is not application/json",
    422: "The request is not valid",
    429: "Too many requests; Retry-After says when to try again",
    500: "An error within the orchestrator",
    502: "The bucket refuses the orchestrator",
    503: "The database or the bucket gave no clear answer",
}
Json = dict[str, Any]


def document(operations: Iterable[Operation], base: str) -> Json:
    """The document; `base` is the path before each operation's."""
    operations = tuple(operations)
    paths: dict[str, Json] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gpu-orchestrator",
            "version": __version__,
            "description": "Submit tasks to the GPU queue, follow them, and operate the fleet.",
        },
        "servers": [{"url": base}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": _schemas(operations),
        },
    }


def _schemas(operations: Iterable[Operation]) -> Json:
    wanted: dict[type[BaseModel], str] = {ProblemShown: "serialization"}
    for one in operations:
        if one.result:
            wanted[one.result] = "serialization"
        if one.body:
            wanted[one.body] = "validation"
    modes: Any = list(wanted.items())
    _, made = models_json_schema(modes, ref_template="#/components/schemas/{model}")
    return dict(made["$defs"])


def _reference(model: type[BaseModel]) -> Json:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _operation(one: Operation) -> Json:
    made: Json = {
        "operationId": one.name,
        "summary": one.summary,
        "description": f"Needs a token with the scope {' or '.join(sorted(one.scopes))}.",
        "parameters": [*_path(one), *_query(one), *_headers(one)],
        "responses": _responses(one),
    }
    if one.body:
        required = any(field.is_required() for field in one.body.model_fields.values())
        content = {"application/json": {"schema": _reference(one.body)}}
        made["requestBody"] = {"required": required, "content": content}
    return made


def _path(one: Operation) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", one.path)
    ]


def _query(one: Operation) -> list[Json]:
    schema = one.query.model_json_schema()
    found = []
    for name, own in schema.get("properties", {}).items():
        choices = [choice for choice in own.get("anyOf", ()) if choice.get("type") != "null"]
        plain = {**own, **(choices[0] if choices else {})}
        for key in ("anyOf", "title", "default", "description"):
            plain.pop(key, None)
        if own.get("default") is not None:
            plain["default"] = own["default"]
        parameter: Json = {"name": name, "in": "query", "required": False, "schema": plain}
        if "description" in own:
            parameter["description"] = own["description"]
        found.append(parameter)
    return found


def _headers(one: Operation) -> list[Json]:
    found: list[Json] = []
    if one.is_idempotent_by_key:
        schema = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"}
        text = "A repetition with the same key does nothing more, for 24 hours at least"
        found.append({"name": "Idempotency-Key", "in": "header", "description": text, "schema": schema})
    if one.takes_trace:
        text = "The trace of the tasks (W3C Trace Context); one that cannot be used is ignored"
        found.append({"name": "traceparent", "in": "header", "description": text, "schema": {"type": "string"}})
    if one.takes_version:
        text = "The ETag of the task: if it has another one now, the answer is 412"
        found.append({"name": "If-Match", "in": "header", "description": text, "schema": {"type": "string"}})
    return found


def _responses(one: Operation) -> Json:
    if one.result:
        content: Json = {"application/json": {"schema": _reference(one.result)}}
        content |= {kind: {"schema": {"type": "string"}} for kind in one.media_types if kind not in content}
    else:
        content = {kind: {"schema": {"type": "string"}} for kind in one.media_types}
    success: Json = {"description": one.summary, "content": content}
    if one.has_version:
        success["headers"] = {"ETag": {"description": "The version of the task", "schema": {"type": "string"}}}
    made: Json = {str(one.status): success}
    for status, text in one.also.items():
        made[str(status)] = {"description": text} if status >= 300 else success | {"description": text}  # noqa: PLR2004
    refusal = {MEDIA_TYPE: {"schema": _reference(ProblemShown)}}
    for status in sorted({*EVERYWHERE, *one.problems, *(WITH_BODY if one.body else ())}):
        made[str(status)] = {"description": SAID[status], "content": refusal}
    return made
