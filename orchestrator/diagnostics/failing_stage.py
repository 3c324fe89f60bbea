"""Why a worker's bring-up makes no progress, from the worker's row alone. `list` and `explain` show the same cause."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.core.states import State, WaitingOn
from orchestrator.diagnostics import causes
from orchestrator.diagnostics.causes import Cause

KNOWN_PARTY = (WaitingOn.CAPACITY, WaitingOn.BUDGET)  # the row says precisely what is waited for


def failing_stage(row: Mapping[str, Any]) -> Cause | None:
    """Return the cause of the last failed attempt at the present stage; None if none failed.

    `trouble` of the row is {code, cause}; rows of an older schema do not have it.
    """
    if row["status"] != State.SPAWNING or row.get("waiting_on") in KNOWN_PARTY:
        return None
    trouble = row.get("trouble") or {}
    code, subcause = row.get("failure_code") or trouble.get("code"), str(trouble.get("cause") or "").upper() or None
    found = causes.of(code, subcause) if code else None
    return replace(found, code=causes.named(found.code, subcause)) if found else None
