"""Numbers in sentences: `1 task`, `3 tasks`, `-$0.03`."""

from collections.abc import Mapping
from string import Formatter
from typing import Any

MOST_QUEUED = 10_000  # tasks of a kind that the queue counts in a pool (c_most of orchestrator.demand)


class BoundedCount(int):
    """A count that stopped at a bound, or a sum with one: sentences say `at least 10,000 tasks`."""

    def __add__(self, other: int) -> "BoundedCount":
        return BoundedCount(int(self) + other)

    __radd__ = __add__

    def __format__(self, format_spec: str) -> str:
        return f"at least {int(self):{format_spec or ','}}"


def queued(count: int) -> int:
    """Return a count of queued tasks, as a bound if the queue may have stopped to count."""
    return BoundedCount(count) if count >= MOST_QUEUED else count


def counted(count: float, one: str, many: str | None = None) -> str:
    """Return the number with its noun: `1 task`, `3,000 tasks`. `many` is needed if it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def dollars(amount: float, digits: int = 2) -> str:
    """Return an amount of money: `$1,234.50`, `-$0.03`."""
    sign = "-" if round(amount, digits) < 0 else ""
    return f"{sign}${abs(amount):,.{digits}f}"


def at_least(amount: str, unknown: int) -> str:
    """Return a sum, as text, that lacks so many unknown amounts: `at least $0.44/h`."""
    return f"at least {amount}" if unknown else amount


def filled(template: str, facts: Mapping[str, Any]) -> str:
    """Return a template with its facts.

    `{count:task waits|tasks wait}` becomes `1 task waits` or `3 tasks wait`, and `{amount:usd}` becomes `-$0.03`.
    """
    text = _COUNTING.vformat(template, (), facts)
    return f"A{text[1:]}" if text.startswith("at least ") else text


class _Counting(Formatter):
    """A format of two forms separated by `|` is a number with the form that belongs to it; `usd` is money."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "usd":
            return dollars(value)
        one, between, many = format_spec.partition("|")
        if not between:
            return str(super().format_field(value, format_spec))
        return counted(value, one, many)


_COUNTING = _Counting()
