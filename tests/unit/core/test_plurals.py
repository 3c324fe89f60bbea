"""A number and its noun agree, in every sentence."""

import re
from pathlib import Path

import pytest

from orchestrator.core.plurals import counted, filled

ROOT = Path(__file__).resolve().parents[3]
BOTH = re.compile(r"[a-rt-z]\(s\)[ :,.\"'}]")  # `worker(s)`
SOURCES = [path for name in ("orchestrator", "worker", "demo", "migrations") for path in (ROOT / name).rglob("*.*")]


@pytest.mark.parametrize(
    ("said", "is_"),
    [
        (counted(0, "task"), "0 tasks"),
        (counted(1, "task"), "1 task"),
        (counted(2, "message waits", "messages wait"), "2 messages wait"),
        (counted(100_000, "task"), "100,000 tasks"),
        (filled("{n:task waits|tasks wait} in {pool}, ${usd:.2f}/h", {"n": 1, "pool": "a|b(s)", "usd": 0.5}),
         "1 task waits in a|b(s), $0.50/h"),
        (filled("the account has {usd:usd}", {"usd": -0.03}), "the account has -$0.03"),
        (filled("the account has {usd:usd}", {"usd": 1234.5}), "the account has $1,234.50"),
        (filled("{n:row: its pod is|rows: their pods are} gone", {"n": 2}), "2 rows: their pods are gone"),
    ],
)  # fmt: skip
def test_a_noun_is_singular_or_plural_by_its_number(said: str, is_: str) -> None:
    """One, and every other number."""
    assert said == is_


def test_no_sentence_has_an_optional_plural() -> None:
    """`2 worker(s)` is `2 workers`."""
    sources = [path for path in SOURCES if path.suffix in (".py", ".sql", ".js", ".html")]
    assert [f"{path.name}: {found[0]}" for path in sources for found in BOTH.finditer(path.read_text())] == []
