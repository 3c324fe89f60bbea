"""Every code has a sentence, a party that must act, what happens next, and a fix that can be pasted."""

import re
from pathlib import Path

import pytest

from orchestrator.cli.command_table import COMMANDS
from orchestrator.cli.commands.tasks import tasks
from orchestrator.core.blocked import BlockedReason
from orchestrator.core.clusters.diagnoses import Diagnosis
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import SILENCES, FailureCode
from orchestrator.core.states import WaitingOn
from orchestrator.core.xids import XIDS
from orchestrator.diagnostics import causes
from orchestrator.diagnostics.causes import Cause
from orchestrator.errors import KINDS

ROOT = Path(__file__).resolve().parents[3]
COMMAND = re.compile(r"python -m orchestrator ([a-z]+)(?: ([a-z]+))?")
VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
KNOWN_VARIABLES = set(re.findall(r"^([A-Z][A-Z0-9_]*)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
GUARDS_XIDS = (48, 62, 64, 79, 95, 109, 119, 120, 140, 143, 158, 74, 13, 31, 43, 45, 69, 94, 63, 92)  # U22
WHO = {*WaitingOn, "nobody"}


def everything() -> list[Cause]:
    """Every cause, including refined ones and some Xids."""
    made = [causes.of(code) for code in (*causes.codes(), *(f"XID_{n}" for n in (*GUARDS_XIDS, 999)))]
    made += [causes.of(code, subcause) for code in FailureCode for subcause in code.row.subcauses]
    made += [causes.silence(subcause) for subcause in SILENCES]
    made += [causes.of_cluster(code) for code in Diagnosis]
    made += [causes.ending(cause) for cause in ExitCause] + [causes.waiting(on) for on in WaitingOn]
    return [cause for cause in made if cause is not None]


@pytest.mark.parametrize("code", FailureCode)
def test_every_failure_code_is_explained(code: FailureCode) -> None:
    """None is missing."""
    assert causes.of(code) is not None


@pytest.mark.parametrize("cause", ExitCause)
def test_every_exit_cause_is_explained(cause: ExitCause) -> None:
    """None is missing."""
    assert causes.ending(cause) is not None


@pytest.mark.parametrize("on", WaitingOn)
def test_every_party_to_wait_for_is_explained(on: WaitingOn) -> None:
    """None is missing."""
    told = causes.waiting(on)
    assert told is not None
    assert told.who == on


@pytest.mark.parametrize("number", GUARDS_XIDS)
def test_every_xid_that_guards_act_on_is_known_by_number(number: int) -> None:
    """The sentence names the number and what it is."""
    told = causes.of(f"XID_{number}")
    assert told is not None
    assert f"Xid {number}: {XIDS[number][1]}" in told.means


def test_an_unknown_xid_is_distinguished() -> None:
    """It is explained all the same."""
    told = causes.of("XID_777")
    assert told is not None
    assert "not in our list" in told.means


@pytest.mark.parametrize("cause", everything(), ids=lambda cause: f"{cause.code}-{cause.means[:20]}")
def test_each_is_one_sentence_with_a_party_to_act_and_the_next_step(cause: Cause) -> None:
    """Short enough for a line, and never empty."""
    assert re.fullmatch(r"[A-Z].{10,150}\.", cause.means)
    assert cause.who in WHO
    assert cause.then


@pytest.mark.parametrize("cause", everything(), ids=lambda cause: f"{cause.code}-{cause.means[:20]}")
def test_each_fix_names_a_command_or_a_variable_that_exists(cause: Cause) -> None:
    """And none that does not."""
    check_fix(cause.fix)


@pytest.mark.parametrize("kind", BlockedReason)
def test_what_blocks_scaling_has_such_a_fix_too(kind: BlockedReason) -> None:
    """Each kind of reason, and what happens then."""
    assert kind.row.who in WHO
    assert kind.row.then
    assert kind.row.words
    check_fix(kind.row.fix)


def test_a_word_means_what_was_typed() -> None:
    """An exit cause and a failure code may differ in nothing but their case; one word may mean two things."""
    assert [cause.code for cause in causes.lookup("STALE_CODE")] == ["STALE_CODE"]
    assert [cause.code for cause in causes.lookup("stale_code")] == ["stale_code"]
    assert [cause.code for cause in causes.lookup("no_capacity")] == ["NO_CAPACITY"]
    assert len(causes.lookup("budget")) == 2
    assert causes.lookup("gpu-1") == ()


def test_a_cause_names_the_worker_with_which_it_is_shown() -> None:
    """The fix contains the id."""
    told = causes.of("NO_PROCESS")
    assert told is not None
    assert told.about(worker="gpu-1").fix.endswith("python -m orchestrator logs gpu-1")


def test_every_error_id_has_a_fix() -> None:
    """`explain E0xx` shows it."""
    assert all(kind.what and kind.fix for kind in KINDS.values())


def check_fix(fix: str) -> None:
    """Each command and each variable in it exists, and there is one."""
    names = {name for section in COMMANDS.values() for name in section}
    commands, variables = COMMAND.findall(fix), set(VARIABLE.findall(fix)) - set(causes.codes())
    assert commands or variables, fix
    assert {command for command, _ in commands} <= names
    assert {sub for command, sub in commands if command == "tasks"} <= set(tasks.commands)
    assert variables <= KNOWN_VARIABLES, variables - KNOWN_VARIABLES


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("XID 31", "XID_31"),
        ("xid 79", "XID_79"),
        ("Xid: 13", "XID_13"),
        ("NVRM: Xid (PCI:0000:41:00): 31, pid=1234, name=python, Ch 00000008", "XID_31"),
        ("kernel: NVRM: Xid (0000:41:00): 79, GPU has fallen off the bus.", "XID_79"),
        ("an XID of some kind", None),
        ("exid 31", None),
        ("x" * 2_000 + " Xid 31", None),
    ],
)
def test_a_line_of_the_kernel_log_is_explained_by_its_number(text: str, code: str | None) -> None:
    """An Xid of a program must not read as one of the hardware: the pod need not be replaced."""
    assert [cause.code for cause in causes.xid_in(text)] == ([code] if code else [])
