"""The knowledge base has all 43 rows, and each of their phrases finds its row."""

import pytest

from orchestrator.cli.command_table import COMMANDS
from orchestrator.core.findings import GUARDS
from orchestrator.diagnostics import knowledge
from orchestrator.diagnostics.knowledge import CATALOGUE, Gotcha
from tests.unit.diagnostics.test_causes import COMMAND, KNOWN_VARIABLES

PHRASES = [(one, phrase) for one in CATALOGUE for phrase in (*one.printed, *one.asked, one.title)]
SUBJECTS = {name for section in COMMANDS.values() for name in section}


def test_all_rows_are_there_in_their_order() -> None:
    """U1 to U43."""
    assert [one.u for one in CATALOGUE] == list(range(1, 44))
    assert [knowledge.row(u) for u in (0, 1, 43, 44)] == [None, CATALOGUE[0], CATALOGUE[-1], None]


@pytest.mark.parametrize("one", CATALOGUE, ids=lambda one: one.id)
def test_a_row_says_what_it_is_why_and_what_to_do(one: Gotcha) -> None:
    """In sentences; phrases are compared in small letters and without double spaces."""
    assert one.title
    assert one.cause.endswith(".")
    assert one.fix
    assert one.printed or one.asked
    for phrase in (*one.printed, *one.asked):
        assert phrase == " ".join(phrase.lower().split())
        assert len(phrase) >= 3
    assert {match[1] for match in COMMAND.finditer(one.fix)} <= SUBJECTS


@pytest.mark.parametrize(("one", "phrase"), PHRASES, ids=[f"{one.id} {phrase}" for one, phrase in PHRASES])
def test_each_phrase_finds_its_row(one: Gotcha, phrase: str) -> None:
    """As it is typed, and within an error message."""
    if len(phrase) >= knowledge.SHORTEST:
        assert one in knowledge.find(phrase)
    assert one in knowledge.find(f"ValueError: {phrase.upper()} (at step 3)")


@pytest.mark.parametrize(("one", "phrase"), [pair for pair in PHRASES if pair[1] in pair[0].printed])
def test_each_printed_phrase_is_found_in_a_log(one: Gotcha, phrase: str) -> None:
    """With its line, whatever surrounds it."""
    log = f"epoch 1\nRuntimeError: {phrase.upper()} after 3 s\nthe end\n"
    assert (one, f"RuntimeError: {phrase.upper()} after 3 s") in knowledge.in_log(log)


@pytest.mark.parametrize("text", ["", "the", "epoch 3 loss 0.12", "Traceback (most recent call last):", "x" * 5_000])
def test_ordinary_text_finds_nothing(text: str) -> None:
    """No row is quoted without a reason."""
    assert knowledge.find(text) == ()
    assert knowledge.in_log(text) == ()


def test_the_catalogue_of_the_issue_is_answered() -> None:
    """The three questions that it names."""
    first, *_ = knowledge.find("Image size of 700x70000 pixels must be less than 2^16")
    assert first.u == 37
    assert knowledge.CATALOGUE[21].codes[:1] == ("GPU_LOST",)
    assert "XID_79" in knowledge.CATALOGUE[21].codes


@pytest.mark.parametrize(
    ("line", "u"),
    [
        ("Killed", 9),
        ("4711 Killed", 9),
        ("train.sh: line 3:  4711 Killed                  python train.py", 9),
        ("/bin/sh: 1: Killed", 9),
        ("env: 'bash\\r': No such file or directory", 26),
        ("/usr/bin/env: \u2018bash\\r\u2019: No such file or directory", 26),
        ("env: \u2018python3\\r\u2019: No such file or directory", 26),
        ("bash: ./run.sh: /bin/bash^M: bad interpreter: No such file or directory", 26),
    ],
)
def test_bare_lines_of_shells_are_explained(line: str, u: int) -> None:
    """They are all that a log may have."""
    assert knowledge.find(line)[0].u == u
    assert [one.u for one, _ in knowledge.in_log(f"epoch 3\n{line}\n")] == [u]


@pytest.mark.parametrize("line", ["killed 3 stale workers", "the job was killed by us", "7 killed it", "unskilled"])
def test_a_sentence_about_killing_is_not_a_shells_line(line: str) -> None:
    assert knowledge.in_log(line) == ()


def test_each_finding_of_an_agent_has_its_row() -> None:
    """`explain <code>` can name it."""
    assert all(knowledge.row(guard.u) for guard in GUARDS.values())


def test_the_variables_that_remedies_name_exist() -> None:
    """Those of the orchestrator; others are of PyTorch and its libraries."""
    theirs = {"PYTORCH_CUDA_ALLOC_CONF", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
    ours = {
        word.strip(".,:;()=")
        for one in CATALOGUE
        for word in one.fix.split()
        if word.startswith(("RUNPOD_", "WORKER_", "TASK_", "MAX_"))
    }
    assert {word.partition("=")[0] for word in ours} - theirs <= KNOWN_VARIABLES
