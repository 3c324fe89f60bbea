"""Every fix names the program in the same way, so that each command in it can be copied."""

import re
from collections.abc import Iterator

import pytest

from orchestrator.cli.command_table import COMMANDS
from orchestrator.cli.program import PROGRAM
from orchestrator.core.blocked import BlockedReason
from orchestrator.core.clusters.diagnoses import Diagnosis
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.task_failures import TaskFailure
from orchestrator.diagnostics.condition_kinds import ConditionKind
from orchestrator.errors import KINDS

NAMES = "|".join(sorted({name for section in COMMANDS.values() for name in section}, key=len, reverse=True))
WHOLE = re.compile(rf"{PROGRAM} [a-z]+(?: [a-z]+\b)?")
# A command with a placeholder, an option or one of its own commands behind it is no word of a sentence.
BARE = re.compile(
    rf"(?<![\w/-])(?:{NAMES})(?: [<{{]\w+[>}}]| --\w+| (?:list|show|add|cancel|retry|submit|scale|explain)\b)"
)


def fixes() -> Iterator[tuple[str, str]]:
    """The name and the fix of each row of each catalogue."""
    for catalogue in (BlockedReason, ExitCause, FailureCode, TaskFailure, ConditionKind, Diagnosis):
        for one in catalogue:
            yield f"{catalogue.__name__}.{one.name}", one.row.fix
    for kind in KINDS.values():
        yield kind.id, kind.fix


@pytest.mark.parametrize(("name", "fix"), fixes(), ids=lambda value: value if "." in value else "")
def test_a_command_in_a_fix_can_be_copied(name: str, fix: str) -> None:
    """`python -m orchestrator` stands before each command; it is shown as the user typed it."""
    assert not BARE.findall(WHOLE.sub("", fix)), (name, fix)
