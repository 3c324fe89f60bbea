"""The arguments of SQL functions, the same for every transport: checked names, and values of JSON's own types."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

LEAVES = frozenset({str, int, float, bool, type(None)})
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError for an invalid function or argument name, so that no caller's text becomes SQL or a path."""
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(f"not the name of a function or argument: {name!r}")


def plain(value: Any) -> Any:
    """Convert mappings, times, enums and ids at any depth to JSON's own types."""
    if type(value) in LEAVES:  # fast path: the checks below would take most of the time of a large body
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value
