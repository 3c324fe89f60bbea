"""The lists of integrity.sql and columns.sql are complete: a database without a fault must not be reported."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = ROOT / "migrations" / "functions"
INTEGRITY, COLUMNS = ((FUNCTIONS / name).read_text() for name in ("base/integrity.sql", "base/columns.sql"))
TRIGGERS = re.compile(
    r"^ *create (?:or replace|constraint) trigger \W?([!~]?\w+).*?\bon public\.(\w+)", re.MULTILINE | re.DOTALL
)
OPTIONAL = "tasks tasks_dependant_on"  # only if the project has the column


def listed(function: str, sql: str = INTEGRITY) -> list[str]:
    """The texts of a function."""
    body = sql.partition(f"function public.{function}(")[2].partition("$$;")[0].partition("$$")[2]
    return re.findall(r"'([^']+)'", body.replace("'public.'", ""))


def documented() -> Iterator[tuple[str, str]]:
    """Every table, with an empty text and with each of its columns as "name type"."""
    for part in (ROOT / "docs/tables.md").read_text().split("\n## `")[1:]:
        table = part.partition("`")[0]
        yield table, ""
        for name, kind in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", part, re.MULTILINE):
            yield table, f"{name} {kind.replace('int', 'integer') if kind == 'int' else kind}"


def test_every_table_is_listed() -> None:
    """The ledger of the migrations is not on the page."""
    public = {table for table, _ in documented() if "." not in table} - {"task_attempts"}  # which is a view
    assert sorted(listed("internal_tables")) == sorted({"schema_migrations"} | public)


def test_every_column_of_the_tables_that_users_change_is_listed() -> None:
    """With its type. To correct it: .venv/bin/python .ci/reference_pages.py."""
    columns = {table: [c for t, c in documented() if t == table and c] for table in ("tasks", "workers")}
    texts = listed("internal_columns", COLUMNS)
    at = texts.index("workers")
    assert sorted(texts[1:at]) == sorted(columns["tasks"])
    assert sorted(texts[at + 1 :]) == sorted(columns["workers"])


def test_every_trigger_is_listed() -> None:
    """Except one that only some projects have."""
    made = {f"{table} {name}" for name, table in TRIGGERS.findall((ROOT / "migrations/triggers.sql").read_text())}
    assert sorted(listed("internal_triggers")) == sorted(made - {OPTIONAL})
