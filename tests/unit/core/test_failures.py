"""The failure catalogue: every code that something uses has a row, and no row lacks a field."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from orchestrator.core.failures import (
    NEVER_CREATED,
    UNTRIED,
    Blames,
    Breaker,
    FailureCode,
    FailureRow,
    PodExistence,
    codes_where,
)
from orchestrator.core.meanings import Explained
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import Stage
from orchestrator.core.task_failures import TaskFailure
from tests.unit.core.build import policy

ROOT = Path(__file__).resolve().parents[3]
OPTIONAL = {"phrase", "subcauses"}
ADD_A_ROW = (
    'Add `{code} = "{code}", FailureRow(means, who, then, fix, Blames.…)` to orchestrator/core/failures.py: what it '
    "means in one sentence, who must act, what happens by itself, a command or setting as the fix, and whom it blames. "
    "Without `breaker=` it counts as a failed bring-up; without `pod=` the pod may exist. No other file lists codes. "
    "(For the code of a task: `Meaning(…)` in orchestrator/core/task_failures.py.)"
)
# How the agent and the SQL functions write a failure code.
AGENT = (
    re.compile(r'failed\(\s*"([A-Z_]+)"'),
    re.compile(r'return "[a-z_]+", "([A-Z_]+)", '),
    re.compile(r'StartError\("([A-Z_]+)"'),
    re.compile(r'SlurmFailed\("([A-Z_]+)"'),
    re.compile(r'"[A-Z_]+": \("([A-Z_]+)", (?:True|False)\)'),
)
SQL = (re.compile(r"failure_code = '([A-Z_]+)'"), re.compile(r"'code', '([A-Z_]+)'"))
KNOWN = {*FailureCode, *TaskFailure}


def named(root: Path) -> Iterator[tuple[str, str]]:
    """Each `FailureCode.NAME` in the code below: where, and the name."""
    for path in sorted(root.rglob("*.py")):
        if "FailureCode" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "FailureCode":
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.attr


def written(root: Path, suffix: str, patterns: tuple[re.Pattern[str], ...]) -> Iterator[tuple[str, str]]:
    """Each code that the files below write as a string: where, and the code."""
    for path in sorted(root.rglob(f"*{suffix}")):
        text = path.read_text()
        for found in (found for pattern in patterns for found in pattern.finditer(text)):
            yield f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}", found[1]


def used() -> list[tuple[str, str]]:
    """Each failure code that stages, planner, agent or SQL use: where, and the code."""
    ours = (pair for pair in named(ROOT / "orchestrator") if pair[1].isupper())
    return [*ours, *written(ROOT / "worker", ".py", AGENT), *written(ROOT / "migrations", ".sql", SQL)]


def test_every_code_that_stages_the_agent_or_sql_use_has_a_row() -> None:
    """A code that only a stage check knows would have no explanation."""
    found = used()
    assert {"DISK", "HANDLER_ERROR", "OOM", "DEPENDENCY_FAILED", "RELEASED", "STALE_CODE"} <= {
        code for _, code in found
    }
    unknown = [f"{where} uses {code}. {ADD_A_ROW.format(code=code)}" for where, code in found if code not in KNOWN]
    assert not unknown, "\n".join(unknown)


def test_a_member_without_a_row_is_refused_with_what_to_write() -> None:
    """Where it is defined, not where it is explained first."""
    with pytest.raises(TypeError, match=r"Codes SMOKE has no row: write NAME = 'SMOKE', Meaning\("):

        class Codes(Explained):
            SMOKE = "SMOKE"


@pytest.mark.parametrize("code", FailureCode)
def test_no_field_of_a_row_is_missing(code: FailureCode) -> None:
    """Each has a value, and the member is written like its name."""
    assert code == code.name
    empty = [f.name for f in fields(FailureRow) if f.name not in OPTIONAL and not getattr(code.row, f.name)]
    assert not empty, f"the row of {code} in orchestrator/core/failures.py has no {', '.join(empty)}"


def test_a_refusal_to_rent_never_created_a_pod_and_says_nothing_about_image_or_host() -> None:
    """The fields of a row agree with each other."""
    assert NEVER_CREATED <= UNTRIED
    assert not UNTRIED - NEVER_CREATED - codes_where(breaker=Breaker.HOST)
    assert all(code.row.blames is Blames.NOTHING for code in NEVER_CREATED)


def test_the_fix_of_a_pod_that_starts_late_gives_it_more_time() -> None:
    """The deadline of the stage ends it before that of the whole bring-up: either one alone changes nothing."""
    fix = FailureCode.NO_RUNTIME.row.fix
    advised = {name: int(seconds) for name, seconds in re.findall(r"(\w+)=(\d+)", fix)}
    assert set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", fix)) == {
        "BRINGUP_DEADLINES", "SPAWNING_TIMEOUT_SEC", "RUNPOD_REGISTRY_AUTH",
    }  # fmt: skip
    assert advised["pod_running"] > STAGE_SPECS[Stage.POD_RUNNING].deadline_s
    assert advised["SPAWNING_TIMEOUT_SEC"] > max(advised["pod_running"], policy().spawning_timeout_s)


def test_an_xid_has_a_row_by_its_number() -> None:
    """A fatal one blames the machine, a program's own does not."""
    assert FailureCode.xid(79).row.blames is Blames.FAULT
    assert FailureCode.xid(13).row.blames is Blames.NOTHING
    assert FailureCode.xid(777).row.pod is PodExistence.MAY_EXIST
