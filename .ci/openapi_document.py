"""Write the OpenAPI document of the API, from which clients are made: `.venv/bin/python .ci/openapi_document.py`.

With the argument `-`, it goes to stdout. Then `npm run generate` in clients/typescript writes the types.
"""

import json
import sys
from pathlib import Path

from orchestrator.web.api.openapi import document
from orchestrator.web.api.routes import BASE, OPERATIONS

TARGET = Path(__file__).resolve().parents[1] / "clients" / "openapi.json"


def text() -> str:
    """The document as it lies in the repository: without the version, which changes with every release."""
    made = document(OPERATIONS, BASE)
    made["info"] = {**made["info"], "version": "1"}
    return json.dumps(made, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text()) if sys.argv[1:] == ["-"] else TARGET.write_text(text())
