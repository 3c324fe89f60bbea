"""The OpenAPI document: made from the table, equal to the routes, and true of the answers."""

import re
from typing import Any

from starlette.routing import Route

from orchestrator.web.api.openapi import document
from orchestrator.web.api.routes import BASE, OPERATIONS, routes
from tests.process.web.api_rig import ApiRig


def references(part: Any) -> list[str]:
    """Every schema that a part of the document refers to."""
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [name for value in part.values() for name in references(value)]
    return [name for value in part for name in references(value)] if isinstance(part, list) else []


async def test_the_document_names_the_routes_and_no_others(rig: ApiRig) -> None:
    """With every parameter of the path, and a schema for each reference."""
    served = {
        (method, route.path.removeprefix(BASE))
        for route in routes(rig.api)
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    made = (await rig.client.get(f"{BASE}/openapi.json")).json()
    assert made == document(OPERATIONS, BASE)
    named = {(method.upper(), path) for path, methods in made["paths"].items() for method in methods}
    assert named | {("GET", "/openapi.json")} == served
    assert made["openapi"].startswith("3.1")
    names = [one["operationId"] for methods in made["paths"].values() for one in methods.values()]
    assert len(names) == len(set(names))
    for path, methods in made["paths"].items():
        for one in methods.values():
            given = {parameter["name"] for parameter in one["parameters"] if parameter["in"] == "path"}
            assert given == set(re.findall(r"{(\w+)}", path))
    assert {name.rpartition("/")[2] for name in references(made)} <= set(made["components"]["schemas"])
