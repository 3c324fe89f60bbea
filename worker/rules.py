"""What may be the result of a task and the name of an output: one rule for the pod, the gateway and `handlers test`.

The pod applies it before anything is sent: what the gateway, the database or the store would refuse later is refused
once, with its name. docs/outputs.md lists the limits.
"""

from __future__ import annotations

import decimal
import json
import math
import unicodedata

from .redaction import own_secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RESULT_BYTES = 1 << 20  # bytes of a result as PostgreSQL writes it: UTF-8, a space after ':' and ',', no exponents
RESULT_DEPTH = 60  # levels of nested lists and objects
RESULT_VALUES = 20_000  # keys and values; an empty list or object counts twice
NUMBER_CHARS = 1_000  # of one number; an RSA modulus of 2,048 bits has 617 digits
LONG_NUMBER_CHARS = 25  # a number of more is a long one; Python writes a float with 24 at most
LONG_NUMBERS = 64
WIDE_NUMBERS = 4_000  # numbers with exponents of three digits: these cost four times as much as others
WIDE_DIGITS = 3
MAX_BITS = 3_400  # an integer of more has more than NUMBER_CHARS digits; to write a very long one takes long
LOCATION_BYTES = 4_096  # of an output_location as JSON
NAME_BYTES = 800  # of an output's name in UTF-8; a store takes 1,024 for the whole key
NAME_PART_BYTES = 255  # of each part between slashes: the limit of file systems, and of stores that use one
NAME_PARTS = 32
LIST_NAME = ".outputs.jsonl"  # the list of very many outputs: no other output may have this name
NOT_IN_A_NAME = {"Cc", "Cs", "Zl", "Zp"}  # Unicode categories: control characters, bytes that are not UTF-8, line ends
SHOWN_CHARS = 100  # of a name or a place in a message
TOO_LARGE = f"it has more than {RESULT_BYTES} bytes as JSON"
TOO_MANY = f"it has more than {RESULT_VALUES} keys and values"


def shown(text: str) -> str:
    """Return the beginning of a text for a message. Its secrets are removed first: nobody would recognize a half."""
    return own_secrets().clean_text(text)[:SHOWN_CHARS]


def name_problem(name: str) -> str:
    """Return why an output cannot have this name, or "" if it can."""
    parts = name.split("/")
    sizes = [len(part.encode("utf-8", "surrogatepass")) for part in parts]
    size = sum(sizes) + len(parts) - 1
    bad = next((one for one in name if unicodedata.category(one) in NOT_IN_A_NAME), "")
    problems = {
        "it is empty": not name,
        "it is not UTF-8": "\ud800" <= bad <= "\udfff",
        f"it contains the control character {bad!a}": bool(bad),
        "it contains a backslash": "\\" in name,
        "it has an empty part, or a part '.' or '..'": not {"", ".", ".."}.isdisjoint(parts),
        f"it has {size} bytes, more than {NAME_BYTES}": size > NAME_BYTES,
        f"a part of it has more than {NAME_PART_BYTES} bytes": max(sizes) > NAME_PART_BYTES,
        f"it has {len(parts)} parts, more than {NAME_PARTS}": len(parts) > NAME_PARTS,
    }
    return next((why for why, applies in problems.items() if applies), "")


def location_problem(location: Any) -> str:
    """Return why a task cannot have this output_location, or "" if it can."""
    if location is None:
        return ""
    if not isinstance(location, str):
        return f"output_location is not a text, but of the type {type(location).__name__}"
    if why := _text_problem(location):
        return f"output_location: {why}"
    size = len(json.dumps(location, ensure_ascii=False).encode())
    return f"output_location has {size} bytes, more than {LOCATION_BYTES}" if size > LOCATION_BYTES else ""


def result_problem(result: Any) -> str:
    """Return why the orchestrator would refuse a result, or "" if it takes it. Its place is named, such as `a.0.b`."""
    return _Check().problem(result)


class _Check:
    """Counts what a result holds, one value at a time: it may be circular, or larger than memory as JSON."""

    def __init__(self) -> None:
        self._values = self._chars = self._long = self._wide = self._expanded = 0
        self._todo: list[tuple[Any, tuple[Any, ...], int]] = []  # value, place, levels around it

    def problem(self, result: Any) -> str:
        self._todo = [(result, (), 0)]
        while self._todo:
            value, place, depth = self._todo.pop()
            self._values += 1
            why = self._value_problem(value, place, depth)
            if why:
                where = shown(".".join(str(part) for part in place))
                return f"{where.encode('ascii', 'backslashreplace').decode()}: {why}" if where else why
            if self._values > RESULT_VALUES:
                return TOO_MANY
        size = len(json.dumps(result, ensure_ascii=False).encode()) + self._expanded
        return f"{TOO_LARGE}: {size}" if size > RESULT_BYTES else ""

    def _value_problem(self, value: Any, place: tuple[Any, ...], depth: int) -> str:
        why = ""
        if isinstance(value, str):
            self._chars += len(value)
            why = _text_problem(value) if self._chars <= RESULT_BYTES else TOO_LARGE
        elif isinstance(value, (dict, list, tuple)):
            why = self._nested_problem(value, place, depth)
        elif isinstance(value, float):
            why = self._float_problem(value)
        elif isinstance(value, int):
            why = self._int_problem(value)
        elif value is not None:
            why = f"a value of the type {type(value).__name__} is not JSON"
        return why

    def _nested_problem(self, value: Any, place: tuple[Any, ...], depth: int) -> str:
        if depth == RESULT_DEPTH:
            return f"it is nested deeper than {RESULT_DEPTH} levels"
        if len(value) > RESULT_VALUES:
            return TOO_MANY
        self._values += not value
        if isinstance(value, dict):
            return self._object_problem(value, place, depth)
        self._todo += [(one, (*place, number), depth + 1) for number, one in enumerate(value)]
        return ""

    def _object_problem(self, value: dict[Any, Any], place: tuple[Any, ...], depth: int) -> str:
        names: set[str] = set()
        for key, content in value.items():
            if isinstance(key, tuple):
                return "a key of the type tuple is not JSON"
            if why := self._value_problem(key, place, depth):
                return f"a key: {why}"
            name = key if isinstance(key, str) else json.dumps(key)
            if name in names:
                return f"two keys are {shown(name)!a} as JSON"
            names.add(name)
            self._todo.append((content, (*place, key), depth + 1))
        self._values += len(value)
        return ""

    def _float_problem(self, value: float) -> str:
        text = float.__repr__(value)
        if not math.isfinite(value):
            return f"{text} is not JSON"
        exponent = text.partition("e")[2]
        if exponent:
            self._wide += len(exponent.lstrip("+-")) >= WIDE_DIGITS
            self._expanded += len(format(decimal.Decimal(text), "f")) - len(text)
        many = f"it has more than {WIDE_NUMBERS} numbers with exponents of three digits: store them as an output file"
        return many if self._wide > WIDE_NUMBERS else ""

    def _int_problem(self, value: int) -> str:
        if value.bit_length() > MAX_BITS or (size := len(int.__repr__(value))) > NUMBER_CHARS:
            return f"a number has more than {NUMBER_CHARS} digits: write it as a text"
        self._long += size > LONG_NUMBER_CHARS
        many = f"it has more than {LONG_NUMBERS} numbers of more than {LONG_NUMBER_CHARS} digits: write them as texts"
        return many if self._long > LONG_NUMBERS else ""


def _text_problem(text: str) -> str:
    if "\0" in text:
        return "a text contains a NUL character, which PostgreSQL cannot store"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "a text contains half of a surrogate pair: it is not UTF-8"
    return ""
