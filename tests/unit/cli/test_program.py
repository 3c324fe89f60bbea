"""The program's name as the user typed it, and the words that somebody probably meant."""

import sys

import pytest

from orchestrator.cli.program import CALLED_AS, PROGRAM, as_typed, suggestion, typed


@pytest.mark.parametrize(
    ("argv0", "wrapper", "shown"),
    [
        ("/x/bin/orchestrator", "", "orchestrator"),
        ("/x/orchestrator/__main__.py", "", PROGRAM),
        ("/x/orchestrator/__main__.py", "./run", "./run"),
        ("/x/orchestrator/__main__.py", "x" * 101, PROGRAM),
        ("", "", PROGRAM),
    ],
)
def test_texts_name_the_program_as_it_was_typed(
    monkeypatch: pytest.MonkeyPatch, argv0: str, wrapper: str, shown: str
) -> None:
    """The installed command, the module, or the wrapper of the repository."""
    monkeypatch.setattr(sys, "argv", [argv0])
    monkeypatch.setenv(CALLED_AS, wrapper)
    assert typed() == shown
    assert as_typed(f"fix: {PROGRAM} list") == f"fix: {shown} list"


@pytest.mark.parametrize(
    ("word", "meant"), [("lst", ' Did you mean "list"?'), ("LIST", ' Did you mean "list"?'), ("zzz", "")]
)
def test_only_a_similar_word_is_suggested(word: str, meant: str) -> None:
    """Capital letters do not matter."""
    assert suggestion(word, ["list", "cost"]) == meant
