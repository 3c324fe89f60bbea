"""Every regular expression of the program takes linear time, whatever a pod, a user or a provider wrote.

A quadratic pattern holds the interpreter's lock for its whole search: a request of 96 KiB stopped the process for 29 s.
"""

import importlib
import itertools
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from re import _constants as kind  # type: ignore[attr-defined, unused-ignore]
from re import _parser as parser  # type: ignore[attr-defined, unused-ignore]
from typing import Any

import pytest

import orchestrator
import worker
from orchestrator.observability.redaction import SHAPES, Redactor

SIZES = (8 << 10, 64 << 10, 1 << 20)  # bytes
SLACK = 6.0  # times linear growth: a quadratic search grows by 8 and by 16 times as much
OWN = tuple(f"orchestrator.{name}" for name in ("config.ssh_keys", "migrate", "config.types"))  # the operator's text
SEARCHES = re.compile(r"\b(\w+)\.(?:search|finditer|findall|subn?|split)\(")
SOURCES = Path(orchestrator.__file__).parent.rglob("*.py")
SEARCHING = {name for path in SOURCES for name in SEARCHES.findall(path.read_text("utf-8"))}
SLOWEST = 2  # of a pattern's texts are tried in all sizes
FLOOR_S = 0.0005  # below it a measurement is noise


def _patterns() -> dict[str, tuple[re.Pattern[str], bool]]:
    """Each pattern that a module compiles when it is imported, and whether it may begin anywhere in a text."""
    found = {f"SHAPES {marker or 'base64'}": (shape, True) for marker, shape, _ in SHAPES}
    for package in (orchestrator, worker):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__") and not module.name.startswith(OWN):
                loaded = importlib.import_module(module.name)
                for name, value in vars(loaded).items():
                    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                        found[value.pattern] = (value, name in SEARCHING)
    return found


PATTERNS = _patterns()


def _sample(tokens: Any) -> Iterator[str]:
    """The pieces of a text that the pattern matches, one for each element."""
    for op, value in tokens:
        if op is kind.LITERAL:
            yield chr(value)
        elif op is kind.NOT_LITERAL:
            yield "a" if value != ord("a") else "b"
        elif op is kind.ANY:
            yield "a"
        elif op is kind.IN:
            yield _member(value)
        elif op is kind.BRANCH:
            yield from _sample(value[1][0])
        elif op in {kind.SUBPATTERN, kind.ATOMIC_GROUP}:
            yield from _sample(value[-1] if op is kind.SUBPATTERN else value)
        elif op in {kind.MAX_REPEAT, kind.MIN_REPEAT, kind.POSSESSIVE_REPEAT}:
            yield "".join(_sample(value[2])) * max(1, int(value[0]))
        elif op is kind.ASSERT and value[0] < 0:
            yield from _sample(value[1])


def _member(choices: Any) -> str:
    negated = choices[0][0] is kind.NEGATE
    for char in "a0A_- /:.=+%\n\"'":
        if any(_has(choice, char) for choice in choices) != negated:
            return char
    return "~"


def _has(choice: tuple[Any, Any], char: str) -> bool:
    op, value = choice
    if op is kind.LITERAL:
        return bool(ord(char) == value)
    if op is kind.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    if op is kind.CATEGORY:
        shorthand = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}
        name = str(value).removeprefix("CATEGORY_")
        return (re.match(shorthand[name.removeprefix("NOT_")], char) is not None) != name.startswith("NOT_")
    return False


def _attacks(pattern: re.Pattern[str]) -> Iterator[Callable[[int], str]]:
    """Texts of any size made of what the pattern begins to match: its beginnings, and its elements, repeated."""
    pieces = [piece for piece in _sample(parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)) if piece]
    seen = set()
    for count in range(1, len(pieces) + 1):
        before, last = "".join(pieces[: count - 1]), pieces[count - 1]
        for head, pump in (("", before + last), ("", before + last * 9), (before, last), ("", last + " ")):
            if (head, pump) not in seen:
                seen.add((head, pump))
                yield lambda size, head=head, pump=pump: (head + pump * (size // len(pump) + 1))[:size]  # type: ignore[misc]


def _search_s(pattern: re.Pattern[str], anywhere: bool, text: str) -> float:
    """Processor seconds of going through a text."""
    began = time.thread_time()
    if anywhere:
        for _found in pattern.finditer(text):
            pass
    else:
        pattern.fullmatch(text)
    return time.thread_time() - began


def _growths(pattern: re.Pattern[str], anywhere: bool, attack: Callable[[int], str]) -> Iterator[float]:
    """How much longer each size takes than the one before, in times linear growth; the best of three."""
    for smaller, larger in itertools.pairwise(SIZES):
        growth = float("inf")
        for _ in range(3):
            took_s = max(FLOOR_S, _search_s(pattern, anywhere, attack(smaller)))
            growth = min(growth, _search_s(pattern, anywhere, attack(larger)) / took_s * smaller / larger)
            if growth < SLACK:
                break
        yield growth


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_a_pattern_takes_linear_time(name: str) -> None:
    """From 8 KiB to 1 MiB, on the slowest of the texts made of the pattern's own parts."""
    pattern, anywhere = PATTERNS[name]
    attacks = sorted(_attacks(pattern), key=lambda attack: _search_s(pattern, anywhere, attack(SIZES[0])))
    for attack in attacks[-SLOWEST:]:
        for growth in _growths(pattern, anywhere, attack):
            assert growth < SLACK, f"{pattern.pattern} on {attack(40)!r}"


def test_a_redaction_takes_linear_time() -> None:
    """The whole of it, on what held the process up: beginnings of tokens, in one text and in many."""
    hidden = Redactor(["a-secret-of-some-length-0123456789"])

    def redact_s(size: int) -> float:
        began = time.thread_time()
        hidden.redact("eyJ" * (size // 3))
        hidden.redact(["eyJhbGciOi"] * (size // 10))
        return time.thread_time() - began

    took_s = [min(redact_s(size) for _ in range(3)) for size in (8 << 10, 64 << 10)]
    assert took_s[1] < SLACK * 8 * max(FLOOR_S, took_s[0])
