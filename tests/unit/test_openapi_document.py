"""The OpenAPI document in the repository, from which clients are made.

Fix: `.venv/bin/python .ci/openapi_document.py`, then `npm run generate` in clients/typescript.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def test_the_repository_has_the_document_as_it_is() -> None:
    """In clients/openapi.json."""
    command = (sys.executable, ROOT / ".ci" / "openapi_document.py", "-")
    made = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60).stdout.decode()
    assert made == (ROOT / "clients" / "openapi.json").read_text()


def test_the_types_of_the_typescript_client_have_each_field() -> None:
    """Without Node; the full test run generates the types again and compares them."""
    schemas: dict[str, Any] = json.loads((ROOT / "clients" / "openapi.json").read_text())["components"]["schemas"]
    types = (ROOT / "clients" / "typescript" / "src" / "schema.d.ts").read_text()
    parts = {name: types.partition(f"        {name}: {{\n")[2].partition("\n        };\n")[0] for name in schemas}
    fields = [(name, field) for name, schema in schemas.items() for field in schema.get("properties", {})]
    assert [one for one in fields if f" {one[1]}:" not in parts[one[0]] and f" {one[1]}?:" not in parts[one[0]]] == []
