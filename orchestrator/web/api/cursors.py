"""Cursors of lists: the place after which the next page begins, as a text that callers send back as it is."""

import base64
import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime

from orchestrator.errors import BAD_ARGUMENT
from orchestrator.web.api.problems import Problem

TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?[+-](?:0[0-9]|1[0-5]):[0-5][0-9]"
)


def cursor_of(place: Sequence[str] | None) -> str | None:
    """The cursor of a place [time, id]; None at the end of a list."""
    return None if place is None else base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def place_of(cursor: str | None, id_of: Callable[[str], str]) -> list[str] | None:
    """The place [time, id] that a cursor names. `id_of` returns an id, or raises ValueError. Raises Problem."""
    if cursor is None:
        return None
    try:
        at, row_id = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        datetime.fromisoformat(at)
        return [TIME.fullmatch(at)[0], id_of(row_id)]  # type: ignore[index]  # None is no place: TypeError
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Problem(400, BAD_ARGUMENT, "the cursor is none of ours", fix="use `next` of a page as it is") from None
