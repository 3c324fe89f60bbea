"""docs/gpu-guards.md names each code of the agent in the row of its guard, and only modules and tests that exist."""

import re
from pathlib import Path

from worker.findings import CODES

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/gpu-guards.md").read_text()
AGENT = PAGE.partition("## Guards outside the agent")[0]
ROWS = [line.split("|") for line in AGENT.splitlines() if re.match(r"\| \d+ \|", line)]


def test_each_code_stands_in_the_row_of_its_guard_with_its_severity() -> None:
    """The severity follows the last code of a group."""
    written = {}
    for row in ROWS:
        for group in re.findall(r"((?:`[A-Z0-9_]+`[ ,]*(?:\([^)]*\) )?)+)([CHMI])\b", row[3]):
            for code in re.findall(r"`([A-Z0-9_]+)`", group[0]):
                written[code] = (int(row[1]), group[1])
    assert {code: written.get(code) for code in CODES} == CODES


def test_modules_and_tests_that_the_page_names_exist() -> None:
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    named = {name for row in ROWS for name in re.findall(r"`(test_\w+\.py)", row[5])}
    assert named
    assert named <= files
    assert all((ROOT / path).exists() for row in ROWS for path in re.findall(r"`([\w/]+\.py)`", row[4]))


def test_all_43_rows_of_the_catalogue_are_there_and_name_what_exists() -> None:
    """A row without a module says that it is not covered."""
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)
    ]
    assert {int(row[0]) for row in rows} == set(range(1, 44))
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    for row in rows:
        modules, tests = re.findall(r"`([\w/]+\.py)`", "|".join(row)), re.findall(r"`(test_\w+\.py)", "|".join(row))
        assert set(tests) <= files, row
        assert all((ROOT / path).exists() for path in modules if "/" in path), row
        assert (modules and tests) or "**not covered**" in row[-1] or row[0] in {"3", "5", "40", "43"}, row
