"""Numbers of things in sentences: `1 task`, `3 tasks`."""

from collections.abc import Mapping
from string import Formatter
from typing import Any


def counted(count: float, one: str, many: str | None = None) -> str:
    """Return the number with its noun: `1 task`, `3,000 tasks`. `many` is needed if it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def filled(template: str, facts: Mapping[str, Any]) -> str:
    """Return a template with its facts. `{count:task waits|tasks wait}` becomes `1 task waits` or `3 tasks wait`."""
    return _COUNTING.vformat(template, (), facts)


class _Counting(Formatter):
    """A format of two forms separated by `|` is a number with the form that belongs to it."""

    def format_field(self, value: Any, format_spec: str) -> str:
        one, between, many = format_spec.partition("|")
        if not between:
            return str(super().format_field(value, format_spec))
        return counted(value, one, many)


_COUNTING = _Counting()
